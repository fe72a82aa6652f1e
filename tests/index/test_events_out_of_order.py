"""Blocks stored and removed in any order: gaps in the middle, and blocks whose parent is not known (yet)."""

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index.event_index import TARGET, Blocks, event_index, gpu_copies

from gateway.core.kv_events import BlockStored

ALL_PATHS = ["".join(path) for length in (1, 2, 3, 4) for path in itertools.product("ab", repeat=length)]

runs = st.tuples(st.text("ab", min_size=1, max_size=4), st.integers(0, 3)).filter(lambda run: run[1] < len(run[0]))
operations = st.one_of(
    runs.map(lambda run: ("store", run)),
    runs.map(lambda run: ("store", run)),
    st.sampled_from(ALL_PATHS).map(lambda path: ("remove", path)),
)


@settings(max_examples=2 * settings.default.max_examples)
@given(order=st.lists(operations, max_size=40))
def test_prefix_is_held_exactly_when_each_of_its_blocks_is(order):
    lost = []
    blocks, model = Blocks(event_index(lost)), Counter()
    for what, argument in order:
        before = +model
        lost.clear()
        if what == "store":
            path, start = argument
            blocks.store(path, start)
            model.update(path[: n + 1] for n in range(start, len(path)))
        elif model[argument]:
            blocks.remove(argument)
            model[argument] -= 1
            model = +model
        else:
            blocks.remove(argument)
        for path in ALL_PATHS:
            held = next((n for n in range(len(path)) if not model[path[: n + 1]]), len(path))
            assert blocks.depth(path) == held
        assert len(lost) <= len(before - model)
        if blocks.part is not None:
            assert gpu_copies(blocks.part).items() <= {blocks.name(path): n for path, n in (+model).items()}.items()
            assert len(gpu_copies(blocks.part)) + blocks.part.waiting == len(+model)
    for path in list(model.elements()):
        blocks.remove(path)
    if blocks.part is not None:
        assert (blocks.part.waiting, blocks.part.blocks.held, blocks.part.blocks.gaps) == (0, 0, 0)
        assert blocks.part.blocks.digest == 0
        assert blocks.part.holders.blocks == 0


def test_arrays_do_not_grow_while_blocks_come_and_go_with_gaps_and_orphans():
    rng = random.Random()
    blocks = Blocks(event_index())
    sizes = []
    for _ in range(6):
        kept = Counter()
        for _ in range(300):
            path = rng.choice(ALL_PATHS)
            start = rng.randrange(len(path))
            blocks.store(path, start)
            kept.update(path[: n + 1] for n in range(start, len(path)))
        gone = list(kept.elements())
        rng.shuffle(gone)
        for path in gone:
            blocks.remove(path)
        assert blocks.part.waiting == 0
        sizes.append(blocks.part.blocks.slots)
    assert max(sizes) <= len(ALL_PATHS) + 2


def test_orphan_is_never_taken_for_the_beginning_of_a_prompt_and_found_when_its_parent_comes():
    blocks = Blocks(event_index())
    blocks.store("xab", start=1)
    assert blocks.depth("ab") == blocks.depth("xab") == 0
    assert blocks.part.waiting == 2
    blocks.store("x")
    assert blocks.depth("ab") == 0
    assert blocks.depth("xab") == 3
    assert blocks.part.waiting == 0


def test_orphan_removed_while_it_waits_stays_away_and_what_stands_on_it_is_a_gap():
    blocks = Blocks(event_index())
    blocks.store("xabc", start=1)
    blocks.remove("xa")
    blocks.store("x")
    assert blocks.depth("xabc") == 1
    blocks.store("xa", start=1)
    assert blocks.depth("xabc") == 4


def test_copies_of_an_orphan_are_counted_while_it_waits():
    blocks = Blocks(event_index())
    for _ in range(3):
        blocks.store("xa", start=1)
    blocks.remove("xa")
    blocks.store("x")
    for depth in (2, 2, 1):
        assert blocks.depth("xa") == depth
        blocks.remove("xa")


@pytest.mark.parametrize("size", [1, 16])
def test_long_chain_of_orphans_is_adopted_in_portions(size):
    blocks = Blocks(event_index())
    count = 5000

    def event(first, last):
        tokens = b"\1\0\0\0" * size * (last - first)
        return BlockStored(list(range(first + 1, last + 1)), first or None, tokens, size)

    for first in range(100, count, 100):
        blocks.index.apply(TARGET, event(first, first + 100))
    assert blocks.part.waiting == count - 100
    blocks.index.apply(TARGET, event(0, 100))
    waiting = [blocks.part.waiting]
    while blocks.index.advance(TARGET):
        waiting.append(blocks.part.waiting)
    assert blocks.part.waiting == 0
    assert all(before - after <= 128 for before, after in itertools.pairwise([count - 100, *waiting]))
    assert len(gpu_copies(blocks.part)) == count


def test_orphans_beyond_the_limit_are_forgotten_oldest_first(monkeypatch):
    blocks = Blocks(event_index())
    limit = 32768
    for number in range(limit + 50):
        blocks.index.apply(TARGET, BlockStored([10**6 + number], 10**9 + number, bytes(64), 16))
    assert blocks.part.waiting == limit
    for number in (0, limit + 49):
        blocks.index.apply(TARGET, BlockStored([10**9 + number], None, bytes(64), 16))
    assert [name for name in (10**6, 10**6 + limit + 49) if name in gpu_copies(blocks.part)] == [10**6 + limit + 49]


def test_run_that_goes_on_behind_a_gap_is_held_once_the_gap_is_filled():
    blocks = Blocks(event_index())
    blocks.store("abc")
    blocks.remove("ab")
    blocks.store("abcd", start=3)
    assert blocks.depth("abcd") == 1
    assert blocks.part.blocks.gaps == 1
    blocks.store("abcd", start=1)
    assert blocks.depth("abcd") == 4
    assert blocks.part.blocks.gaps == 0
    assert gpu_copies(blocks.part)[blocks.name("abc")] == 2


@pytest.mark.parametrize(
    "odd",
    [
        {"tokens": bytes(60)},
        {"block_size": 0},
        {"block_size": 7},
        {"names": []},
        {"names": [1, 2, 3]},
        {"extras": []},
        {"extras": [None]},
        {"parent": 1},
        {"parent": 0},
        {"names": [0, 0]},
        {"names": [5, 5]},
        {"block_size": 2**60},
    ],
)
def test_odd_events_neither_raise_nor_disturb_what_is_held(odd):
    blocks = Blocks(event_index())
    blocks.store("abc")
    blocks.index.apply(TARGET, BlockStored([1, 2], None, bytes(128), 16)._replace(**odd))
    assert blocks.depth("abc") == 3
    blocks.remove("zzz")
    blocks.remove("abc")
    assert blocks.depth("abc") == 2


def test_odd_event_before_all_others_does_not_spoil_them():
    blocks = Blocks(event_index())
    blocks.index.apply(TARGET, BlockStored([1, 2], None, bytes(128), 7))
    blocks.store("abc")
    assert blocks.depth("abc") == 3
