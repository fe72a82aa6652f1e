"""Many targets in one index: each sees its own."""

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st
from index.event_index import Blocks, chain_of, event_index

from gateway.core.ids import ReplicaId, Target
from gateway.core.kv_events import AllBlocksCleared


def targets(count):
    return [Target(ReplicaId(f"engine-{number // 2}"), number % 2) for number in range(count)]


class Fleet:
    def __init__(self, count):
        self.index = event_index()
        self.blocks = [Blocks(self.index, target) for target in targets(count)]
        self.held = [set() for _ in self.blocks]

    def store(self, number, path):
        new = [n for n in range(len(path)) if path[: n + 1] not in self.held[number]]
        if new:
            self.blocks[number].store(path, start=new[0])
            self.held[number] |= {path[: n + 1] for n in range(len(path))}

    def shorten(self, number):
        """The longest prefixes go, as they do first in an engine."""
        for path in sorted(self.held[number], key=len)[-2:]:
            self.blocks[number].remove(path)
            self.held[number].discard(path)

    def clear(self, number, *, by_event):
        if by_event:
            self.index.apply(self.blocks[number].target, AllBlocksCleared())
        else:
            self.index.clear(self.blocks[number].target)
        self.held[number].clear()

    def check(self, path, order):
        chain = chain_of(self.blocks[0].prompt(path), 16)
        asked = [self.blocks[number].target for number in order]
        expected = [sum(path[: n + 1] in self.held[number] for n in range(len(path))) for number in order]
        assert self.index.depths(chain, chain.reusable_blocks, asked) == expected


operations = st.tuples(
    st.sampled_from(["store", "store", "store", "shorten", "clear", "event", "purge"]),
    st.integers(0, 5),
    st.text("ab", min_size=1, max_size=5),
)


@given(order=st.lists(operations, max_size=40))
def test_what_one_target_does_never_shows_at_another(order):
    fleet = Fleet(6)
    for what, number, path in order:
        match what:
            case "store":
                fleet.store(number, path)
            case "shorten":
                fleet.shorten(number)
            case "clear" | "event":
                fleet.clear(number, by_event=what == "event")
            case "purge":
                fleet.index.purge(number + 1)
        for asked in ("ababa", "aabba", "bbbbb", path):
            fleet.check(asked, range(6))
    while fleet.index.purge(10):
        pass
    different = set().union(*fleet.held)
    assert {part.holders.blocks for blocks in fleet.blocks if (part := blocks.part)} <= {len(different)}


def test_more_targets_than_one_holder_set_can_hold():
    rng = random.Random()
    fleet = Fleet(150)
    assert fleet.index.depths(chain_of(fleet.blocks[0].prompt("ab"), 16), 2, targets(150)) == [0] * 150
    for number in range(150):
        fleet.store(number, "".join(rng.choices("ab", k=6)))
    for number in range(0, 150, 7):
        fleet.clear(number, by_event=False)
    for number in range(0, 150, 3):
        fleet.store(number, "".join(rng.choices("ab", k=6)))
    for _ in range(30):
        order = rng.sample(range(150), 140)
        fleet.check("".join(rng.choices("ab", k=6)), order)


def test_bit_of_a_cleared_target_is_not_reused_before_its_blocks_are_gone():
    fleet = Fleet(64)
    for number in range(64):
        fleet.store(number, "ab")
    fleet.clear(5, by_event=False)
    late = Blocks(fleet.index, Target(ReplicaId("late")))
    late.store("b")
    assert late.depth("ab") == 0
    assert late.depth("b") == 1
    assert fleet.blocks[5].depth("ab") == 0
    fleet.check("ab", range(64))


def test_memory_of_what_was_cleared_comes_back():
    fleet = Fleet(2)
    rng = random.Random()
    sizes = []
    for _ in range(5):
        for _ in range(300):
            fleet.store(0, "".join(rng.choices("abcdefghijkl", k=6)))
        fleet.clear(0, by_event=False)
        fleet.store(1, "a")
        while fleet.index.purge(100):
            pass
        sizes.append(fleet.index.nbytes)
    assert fleet.blocks[1].part.holders.blocks == 1
    assert max(sizes) < 1.5 * sizes[0]


def test_clearing_a_large_target_is_spread_over_the_events_that_follow():
    fleet = Fleet(2)
    rng = random.Random()
    for _ in range(400):
        fleet.store(0, "".join(rng.choices("abcdefghijkl", k=6)))
    held = len(fleet.held[0])
    table = fleet.blocks[0].part.holders
    fleet.clear(0, by_event=True)
    left = []
    for number in range(200):
        left.append(table.blocks)
        fleet.store(1, f"{number:03}")
    assert left[0] == held
    assert max(before - after for before, after in itertools.pairwise(left)) <= 256
    assert table.blocks == len(fleet.held[1])
    assert fleet.blocks[0].depth("a") == 0
