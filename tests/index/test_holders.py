"""The table of holders against a dictionary of sets."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.kv_events import Medium
from gateway.index.holders import HOLDERS, Holders

# A tree of prefixes: block n of a path is named by the path up to it.
paths = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def chain(path):
    return [hash(("block", *path[: n + 1])) % 2**64 for n in range(len(path))]


@settings(max_examples=2 * settings.default.max_examples)
@given(
    held=st.lists(st.tuples(st.integers(0, 7), paths), max_size=25),
    dropped=st.lists(st.integers(0, 30), max_size=10),
    questions=st.lists(paths, min_size=1, max_size=8),
    wanted=st.sets(st.integers(0, 7)),
    data=st.data(),
)
def test_depths_equal_a_count_by_hand_for_any_whole_prefixes(held, dropped, questions, wanted, data):
    table, model = Holders(), {}
    bits = [table.take_bit() for _ in range(8)]
    assert len(set(bits)) == 8
    prefixes = []
    for holder, path in held:
        prefixes.append((holder, path))
        for block in chain(path):
            table.put(block, bits[holder])
            model.setdefault(block, set()).add(holder)
    for number in dropped:
        # The end of a prefix goes: blocks that no other prefix of the holder needs.
        if number < len(prefixes):
            holder, path = prefixes[number]
            others = {block for h, p in prefixes if h == holder and p is not path for block in chain(p)}
            for block in set(chain(path)) - others:
                table.take(block, bits[holder])
                model[block].discard(holder)
            prefixes[number] = (holder, path[:0])
    assert table.blocks == sum(map(bool, model.values()))
    for question in [*questions, *(path for _, path in held)]:
        blocks = chain(question)
        limit = data.draw(st.integers(0, len(blocks)))
        expected = {}
        for holder in wanted:
            depth = next((n for n in range(limit) if holder not in model.get(blocks[n], ())), limit)
            assert table.depth(blocks, limit, bits[holder]) == depth
            if depth:
                expected[bits[holder]] = depth
        found = {}
        for depth, holders in table.depths(blocks, limit, sum(bits[holder] for holder in wanted)):
            for bit in bits:
                if holders & bit:
                    assert bit not in found
                    found[bit] = depth
        assert found == expected


@given(
    order=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 2), st.sampled_from(["put", "put", "take", *Medium])), max_size=80
    )
)
def test_media_of_blocks_equal_a_dictionary_for_any_changes(order):
    table = Holders()
    bits = [table.take_bit() for _ in range(2)]
    blocks = [2**63 + 7 * n for n in range(3)]
    model = {}
    for holder, number, what in order:
        key = (holder, number)
        if what == "put":
            table.put(blocks[number], bits[holder])
            model.setdefault(key, Medium.GPU)
        elif what == "take":
            table.take(blocks[number], bits[holder])
            model.pop(key, None)
        elif key in model:
            table.set_medium(blocks[number], bits[holder], what)
            model[key] = what
        for asked, bit in enumerate(bits):
            counts = table.count_below(blocks, len(blocks), bit)
            for medium in (Medium.CPU, Medium.DISK):
                assert counts.get(medium, 0) == sum(m is medium for (h, _), m in model.items() if h == asked)
            assert Medium.GPU not in counts
            for n, block in enumerate(blocks):
                assert bool(table.holders(block) & bit) == ((asked, n) in model)
    assert table.blocks == len({number for _, number in model})


def test_block_that_comes_back_is_on_the_fastest_medium_again():
    table = Holders()
    one, other = table.take_bit(), table.take_bit()
    for bit in (one, other):
        table.put(7, bit)
        table.set_medium(7, bit, Medium.DISK)
    table.take(7, one)
    table.put(7, one)
    assert table.count_below([7], 1, one).get(Medium.DISK, 0) == 0
    assert table.count_below([7], 1, other) == {Medium.DISK: 1}


def test_there_is_a_bit_for_each_of_64_holders_and_returned_ones_are_given_out_again():
    table = Holders()
    bits = [table.take_bit() for _ in range(HOLDERS)]
    assert sorted(bits) == [1 << n for n in range(HOLDERS)]
    assert table.take_bit() is None
    table.give_back(bits[17])
    assert table.take_bit() == bits[17]
    assert table.take_bit() is None


def test_blocks_that_come_and_go_leave_nothing_behind():
    rng = random.Random()
    table = Holders()
    bits = [table.take_bit() for _ in range(3)]
    size = None
    for _ in range(4):
        blocks = [rng.getrandbits(64) for _ in range(5000)]
        for block in blocks:
            for bit in bits:
                table.put(block, bit)
            table.set_medium(block, bits[0], Medium.CPU)
        assert table.blocks == 5000
        assert table.count_below(blocks, 5000, bits[0]) == {Medium.CPU: 5000}
        assert table.count_below(blocks, 5000, bits[1]) == {Medium.CPU: 0}
        size = size or table.nbytes
        assert table.nbytes == size
        for block in blocks:
            for bit in bits:
                table.take(block, bit)
        assert table.blocks == 0
        assert not any(map(table.holders, blocks))
