"""The compact map against a dictionary."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.index.holders import NONE, SlotMap


class Model:
    """The map and a dictionary of what should be in it."""

    def __init__(self):
        self.map = SlotMap()
        self.slots = {}
        self.most = 0

    def add(self, key):
        grown = self.map.slots
        slot = self.map.add(key)
        assert slot != NONE
        assert slot not in self.slots.values()
        assert slot < grown or slot == grown == self.map.slots - 1
        self.slots[key] = slot
        self.most = max(self.most, len(self.slots))

    def discard(self, key):
        self.map.discard(self.slots.pop(key))

    def check(self, others=()):
        assert self.map.count == len(self.slots)
        assert self.map.slots == self.most + 1, "a free slot is used again before a new one"
        for key, slot in self.slots.items():
            assert self.map.find(key) == slot
            assert self.map.keys[slot] == key
        for key in others:
            assert self.map.find(key) == self.slots.get(key, NONE)


# Keys that fall into the same buckets again and again, and those at the ends of their range.
keys = st.one_of(st.integers(0, 40), st.integers(0, 20).map(lambda n: n << 32), st.integers(2**64 - 5, 2**64 - 1))


@settings(max_examples=2 * settings.default.max_examples)
@given(order=st.lists(st.tuples(st.booleans(), keys), max_size=150))
def test_any_order_of_additions_and_removals_leaves_what_a_dictionary_holds(order):
    model = Model()
    for add, key in order:
        if add and key not in model.slots:
            model.add(key)
        elif not add and key in model.slots:
            model.discard(key)
    model.check(others=[key for _, key in order])


def test_thousands_of_keys_are_found_while_the_map_grows_and_after_it_was_emptied():
    rng = random.Random()
    model = Model()
    for _ in range(3):
        for count in range(5000):
            model.add(rng.getrandbits(64))
            if count % 1000 == 0:
                model.check()
        model.check(others=[rng.getrandbits(64) for _ in range(1000)])
        for key in rng.sample(sorted(model.slots), 4990):
            model.discard(key)
        model.check()


def test_keys_that_all_fall_into_one_bucket_are_distinguished():
    model = Model()
    for number in range(1, 300):
        model.add(number << 40)
    for number in range(1, 300, 3):
        model.discard(number << 40)
    model.check(others=[number << 40 for number in range(400)])


def test_memory_is_a_few_bytes_a_key_and_stays_when_keys_come_and_go():
    rng = random.Random()
    slots = SlotMap()
    held = [slots.add(rng.getrandbits(64)) for _ in range(20_000)]
    assert slots.nbytes < 20_000 * 24
    size = slots.nbytes
    for _ in range(5):
        for slot in held:
            slots.discard(slot)
        held = [slots.add(rng.getrandbits(64)) for _ in range(20_000)]
    assert slots.nbytes == size
