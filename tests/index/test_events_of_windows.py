"""Models with several groups of layers: what is reused is what all groups hold, or the events are not followed."""

from collections import Counter
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from index.event_index import HASHER, MODEL, TARGET, WORTH, Blocks, chain_of, event_index

from gateway.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, FeedState, IndexSource
from gateway.index import ReplicaIndex

STATE, WINDOW, LARGE = 1, 2, 3
"""Groups beside the full one: a state, a window of 33 tokens, and a window of 60 with blocks of 32 tokens."""

STEPS = {0: 1, STATE: 1, WINDOW: 1, LARGE: 2}
NEEDED = {STATE: 1, WINDOW: 2, LARGE: 2}
KINDS = {
    0: {"sparse": False},
    STATE: {"sparse": True, "window": 1},
    WINDOW: {"sparse": True, "window": 32},
    LARGE: {"sparse": True, "window": 59},
}


class Hybrid:
    """An engine with several groups, as vLLM's ``HybridKVCacheCoordinator``; a letter is a block of 16 tokens."""

    def __init__(self, index, groups):
        self.blocks = Blocks(index)
        self.groups = groups
        self.held = {group: Counter() for group in groups}

    def store(self, path, kept, order):
        """A request over a whole path; sparse groups keep its last ``kept`` blocks."""
        for group in sorted(self.groups, reverse=order):
            step = STEPS[group]
            ends = list(range(step, len(path) + 1, step))
            if not ends:
                continue
            named = ends[-kept:] if group else ends
            self.held[group].update(path[:end] for end in named)
            event = self.blocks.stored(path[: ends[-1]], group=group, **KINDS[group])
            names = [self.blocks.name(path[:end]) for end in named]
            self.blocks.index.apply(TARGET, event._replace(names=names, block_size=16 * step))

    def remove(self, group, number):
        held = self.held[group]
        if held:
            path = sorted(held)[number % len(held)]
            held[path] -= 1
            held += Counter()
            self.blocks.remove(path, group=group)

    def hit(self, path):
        reach = len(path)
        while True:
            before = reach
            for group in self.groups:
                reach = self._found(group, path, reach)
            if reach == before:
                return reach

    def _found(self, group, path, most):
        step, held = STEPS[group], self.held[group]
        ends = range(step, most + 1, step)
        if not group:
            return next((end - step for end in ends if not held[path[:end]]), len(ends))
        for end in reversed(ends):
            window = [e for e in ends if end - NEEDED[group] * step < e <= end]
            if all(held[path[:e]] for e in window):
                return end
        return 0


operations = st.one_of(
    st.tuples(st.just("store"), st.text("ab", min_size=1, max_size=7), st.integers(1, 7)),
    st.tuples(st.sampled_from([0, STATE, WINDOW, LARGE]), st.integers(0, 20), st.none()),
)


@pytest.mark.parametrize("groups", [(0, STATE), (0, WINDOW), (0, STATE, WINDOW), (0, WINDOW, LARGE)])
@given(order=st.lists(operations, max_size=25), reverse=st.booleans())
def test_index_says_what_all_groups_can_reuse(groups, order, reverse):
    engine = Hybrid(event_index(), groups)
    engine.store("zzzz", 4, reverse)  # a group is known from its first event on
    seen = {"a"}
    for what, first, second in order:
        if what == "store":
            engine.store(first, second, reverse)
            seen.add(first)
        elif what in groups:
            engine.remove(what, first)
        for path in seen:
            assert engine.blocks.depth(path) == engine.hit(path), path


def test_a_second_group_of_whole_prefixes_limits_the_first():
    blocks = Blocks(event_index())
    blocks.store("abcd", sparse=False)
    blocks.store("abcd", sparse=False, group=1)
    assert blocks.depth("abcd") == 4
    blocks.remove("abc", group=1)
    assert blocks.depth("abcd") == 2


def test_memory_stays_when_windows_come_and_go():
    engine = Hybrid(event_index(), (0, WINDOW))
    sizes = []
    for turn in range(4):
        for number in range(300):
            engine.store(f"{chr(97 + number % 26)}{chr(97 + number // 26)}{turn}", 2, order=False)
        for group in engine.groups:
            while engine.held[group]:
                engine.remove(group, 0)
        sizes.append((engine.blocks.part.accounted_blocks, engine.blocks.part.blocks.slots))
    assert {accounted for accounted, _ in sizes} == {0}
    assert sizes[-1][1] <= sizes[0][1] + 8


def stored(blocks, *, size=16, kept=4, **other):
    event = blocks.stored("abcd", **other)
    return event._replace(names=event.names[-kept:], block_size=size)


WHOLE = {"sparse": False}
UNDECIDED = {
    "sparse groups only": [{"sparse": True, "window": 32, "kept": 2}],
    "sparse groups only, dense": [{"sparse": True, "window": 32}],
    "parts of a group of unknown kind": [{"kept": 2}],
    "another group of unknown kind": [WHOLE, {"group": 1}],
    "a window of unknown length": [WHOLE, {"group": 1, "sparse": True}],
    "smaller blocks in another group": [{**WHOLE, "size": 32, "kept": 2}, {"group": 1, **KINDS[WINDOW]}],
    "the same, in the other order": [{"group": 1, **KINDS[WINDOW]}, {**WHOLE, "size": 32, "kept": 2}],
    "several sizes in another group": [
        WHOLE, {"group": 1, **KINDS[WINDOW]}, {"group": 1, **KINDS[WINDOW], "size": 32, "kept": 2}
    ],
    "several sizes in the followed group": [WHOLE, {"group": 1, **KINDS[WINDOW]}, {**WHOLE, "size": 32, "kept": 2}],
    "pages smaller than a block": [{**WHOLE, "size": 1, "kept": 4}, {"group": 1, "size": 1, **KINDS[WINDOW]}],
}  # fmt: skip


@pytest.mark.parametrize("events", UNDECIDED.values(), ids=UNDECIDED)
def test_events_that_do_not_say_what_is_reused_are_not_followed(events):
    index = ReplicaIndex(HASHER, lambda replica: MODEL, WORTH, default_blocks=1000, speculative_ttl_seconds=30.0)
    blocks = Blocks(index)
    index.set_feed(TARGET, FeedState.LIVE)
    for fields in events:
        event = stored(blocks, **fields)
        if event.block_size == 1:
            event = event._replace(tokens=event.tokens[:16])
        index.apply(TARGET, event)
    assert index.problem(TARGET)
    assert index.state(TARGET).source is IndexSource.PREDICTED
    chain = chain_of(blocks.prompt("abcd"), 16)
    assert index.holdings([chain], [TARGET], 0.0)[0].tokens == 0  # nothing was sent there
    lease = index.begin([chain], TARGET, 0.0)
    index.computed(lease)
    index.complete(lease, 0, [chain], 1.0)
    assert index.holdings([chain], [TARGET], 1.0)[0].tokens == 64
    # Later events neither raise nor make it warm.
    for path, group in zip(("abcd", "wxyz") * 4, count()):
        index.apply(TARGET, blocks.stored(path, group=group % 3, sparse=False))
        index.apply(TARGET, BlockRemoved([blocks.name(path)], group=group % 3))
    if len(events) > 1 or ("kept" in events[0] and events[0].get("sparse") is None):
        assert index.problem(TARGET)
        assert index.holdings([chain_of(blocks.prompt("wxyz"), 16)], [TARGET], 1.0)[0].tokens == 0
    index.apply(TARGET, AllBlocksCleared())
    index.apply(TARGET, blocks.stored("abcd", sparse=False))
    assert (index.problem(TARGET), index.state(TARGET).source) == ("", IndexSource.EVENTS)


def test_a_sparse_group_that_comes_first_does_not_hide_the_full_one():
    index = ReplicaIndex(HASHER, lambda replica: MODEL, WORTH, default_blocks=1000, speculative_ttl_seconds=30.0)
    blocks = Blocks(index)
    index.set_feed(TARGET, FeedState.LIVE)
    index.apply(TARGET, stored(blocks, group=0, kept=2, sparse=True, window=32))
    assert index.state(TARGET).source is IndexSource.PREDICTED
    index.apply(TARGET, stored(blocks, group=1, sparse=False))
    assert index.state(TARGET).source is IndexSource.EVENTS
    assert index.holdings([chain_of(blocks.prompt("abcd"), 16)], [TARGET], 0.0)[0].tokens == 64


def test_too_many_groups_are_not_followed():
    blocks = Blocks(event_index())
    blocks.store("abcd", sparse=False)
    for group in range(1, 70):
        blocks.index.apply(TARGET, BlockStored([1], None, bytes(64), 16, group=group, sparse=True, window=16))
    assert blocks.index.problem(TARGET)
