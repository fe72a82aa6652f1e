"""Events in portions: the same changes in the same order."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Medium, UnknownEvent
from gateway.kv_events.event_portions import PIECE_BLOCKS, pieces


def run(first, count, parent, **fields):
    tokens = array("I", range(first * 4, (first + count) * 4)).tobytes()
    return BlockStored(list(range(first, first + count)), parent, tokens, 4, **fields)


EVENTS = st.one_of(
    st.builds(
        run,
        first=st.integers(1, 40),
        count=st.sampled_from([1, 2, 300]),
        parent=st.one_of(st.none(), st.integers(1, 60)),
        medium=st.sampled_from([Medium.GPU, Medium.CPU]),
        group=st.integers(0, 1),
    ),
    st.builds(BlockRemoved, st.lists(st.integers(1, 50), max_size=400), st.sampled_from([Medium.GPU, Medium.CPU])),
    st.sampled_from([AllBlocksCleared(), UnknownEvent("New")]),
)


def one_by_one(events):
    """Every block by itself."""
    changes = []
    for event in events:
        if isinstance(event, BlockStored):
            parent = event.parent
            for number, name in enumerate(event.names):
                tokens = event.tokens[number * 16 : (number + 1) * 16]
                changes.append(event._replace(names=[name], parent=parent, tokens=tokens))
                parent = name
        elif isinstance(event, BlockRemoved):
            changes += [event._replace(names=[name]) for name in event.names]
        else:
            changes.append(event)
    return changes


@given(st.lists(EVENTS, max_size=8))
def test_portions_are_the_same_changes_and_none_is_large(events):
    portions = list(pieces(events))
    assert one_by_one(portions) == one_by_one(events)
    for portion in portions:
        if isinstance(portion, BlockStored | BlockRemoved):
            assert len(portion.names) <= PIECE_BLOCKS


def test_pages_sent_one_by_one_become_runs():
    events = [run(number, 1, number - 1 or None) for number in range(1, 1001)]
    assert len(list(pieces(events))) == -(-1000 // PIECE_BLOCKS)
