"""The memory of computed blocks."""

from array import array
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.explain.seen.block_tree import NUMBERS, BlockTree, note, noted_at
from gateway.tokenize.block_hashes import ChainHasher

LARGE = 1 << 20
KEYS = [0, 1 << 63, 12345]


def chain(tokens):
    """One block for each token."""
    return array("Q", ChainHasher().chain(7, array("I", tokens).tobytes(), 1).hashes)


def put(tree, blocks, value, key=0):
    tree.write(key, blocks, lambda _: value)


def notes(tree, blocks, key=0, start=0, stop=None):
    return each(tree.notes(key, blocks, start, len(blocks) if stop is None else stop))


def each(runs):
    return [noted for noted, count in runs for _ in range(count)]


prompts = st.lists(st.integers(0, 2), max_size=14)
"""Few different tokens: prompts continue others, leave them in their middle, and are their beginnings."""

changes = st.one_of(
    st.integers(1, 3).map(lambda value: lambda _: value),
    st.integers(1, 3).map(lambda value: partial(max, value)),
    st.integers(0, 2).map(lambda bit: lambda before: before | 1 << bit),
)


@given(st.lists(st.tuples(prompts, st.sampled_from(KEYS), changes), max_size=25), prompts, st.booleans())
def test_every_block_has_its_own_note(written, asked, whole_chains):
    tree, noted = BlockTree(LARGE, whole_chains=whole_chains), {}
    for tokens, key, change in written:
        blocks = chain(tokens)
        before = [noted.get((key, block), 0) for block in blocks]
        assert each(tree.write(key, blocks, change)) == before
        for block, previous in zip(blocks, before, strict=True):
            noted[key, block] = change(previous)
    blocks = chain(asked)
    for key in KEYS:
        known = [noted[key, block] for block in blocks if (key, block) in noted]
        for start in range(len(blocks) + 1):
            assert notes(tree, blocks, key, start) == known[start:]
            assert notes(tree, blocks, key, 0, start) == known[:start]


@given(st.lists(st.tuples(prompts, st.integers(0, 6)), max_size=25), prompts)
def test_ends_of_chains_whose_beginning_was_never_given_are_known_behind_them(written, asked):
    """Where chains begin later, others begin, leave or end: here at every even block."""
    tree, noted = BlockTree(LARGE, whole_chains=False), {}
    for value, (tokens, pairs) in enumerate(written, 1):
        blocks = chain([token for token in tokens for _ in range(2)])[2 * pairs :]
        for end in range(2, len(blocks) + 1, 2):
            put(tree, blocks[:end], value)
        noted |= dict.fromkeys(blocks, value)
    blocks = chain([token for token in asked for _ in range(2)])
    for start in range(0, len(blocks), 2):
        known = []
        for block in blocks[start:]:
            if block not in noted:
                break
            known.append(noted[block])
        assert notes(tree, blocks, start=start) == known


def test_an_end_whose_beginning_was_never_given_is_found_from_any_of_its_blocks():
    tree, blocks = BlockTree(LARGE, whole_chains=False), chain(range(12))
    put(tree, blocks[4:10], 1)
    for start in range(4, 10):
        assert notes(tree, blocks, start=start) == [1] * (10 - start)
    for start in (0, 3, 10, 11):
        assert notes(tree, blocks, start=start) == []


def test_of_two_ends_with_a_gap_between_them_the_first_does_not_lead_to_the_second():
    tree, blocks = BlockTree(LARGE, whole_chains=False), chain(range(12))
    put(tree, blocks[2:4], 1)
    put(tree, blocks[6:8], 2)
    assert notes(tree, blocks, start=2) == [1] * 2
    assert notes(tree, blocks, start=4) == []
    assert notes(tree, blocks, start=7) == [2]


def test_a_beginning_that_arrives_after_its_end_is_joined_with_it():
    tree, blocks = BlockTree(LARGE, whole_chains=False), chain(range(12))
    put(tree, blocks[6:], 1)
    assert notes(tree, blocks) == []
    assert notes(tree, blocks, start=6) == [1] * 6
    put(tree, blocks[:9], 2)
    assert notes(tree, blocks) == [2] * 9 + [1] * 3


@pytest.mark.parametrize(("begin", "end", "kept"), [(6, 8, 12), (6, 20, 20)])
def test_of_an_end_that_arrives_too_late_to_be_joined_the_longer_one_stays(begin, end, kept):
    tree, blocks = BlockTree(LARGE, whole_chains=False), chain(range(20))
    put(tree, blocks[:12], 1)
    put(tree, blocks[begin:end], 2)
    put(tree, blocks[:begin], 3)
    assert len(notes(tree, blocks)) == kept


def test_keys_are_kept_apart():
    tree, blocks = BlockTree(LARGE), chain(range(5))
    put(tree, blocks, 1, key=1)
    put(tree, blocks, 2, key=2)
    assert notes(tree, blocks, 1) == [1] * 5
    assert notes(tree, blocks, 2) == [2] * 5
    assert notes(tree, blocks, 3) == []


def test_successive_blocks_with_the_same_note_are_one_run():
    tree, blocks = BlockTree(LARGE, whole_chains=False), chain(range(10))
    for end in range(1, 10):
        put(tree, blocks[:end], 5)
    assert tree.notes(0, blocks, 2, 10) == [(5, 7)]
    assert tree.write(0, blocks, lambda _: 6) == [(5, 9), (0, 1)]


@pytest.mark.parametrize("whole_chains", [True, False])
def test_memory_is_bounded_and_the_blocks_not_written_for_longest_are_forgotten_first(whole_chains):
    tree = BlockTree(100_000, whole_chains=whole_chains)
    chains = [chain([number, *range(50)]) for number in range(1000)]
    for number, blocks in enumerate(chains):
        put(tree, blocks, number + 1)
        put(tree, chains[3], 7)
        assert tree.nbytes <= 100_000
    kept = [number for number, blocks in enumerate(chains) if len(notes(tree, blocks)) == 51]
    assert kept == [3, *range(1000 - len(kept) + 1, 1000)]
    assert len(kept) > 100
    assert tree.has_forgotten


def test_nothing_is_forgotten_before_the_memory_is_full():
    tree = BlockTree(100_000)
    for number in range(100):
        put(tree, chain([number, *range(50)]), 1)
    assert not tree.has_forgotten
    assert len(notes(tree, chain([0, *range(50)]))) == 51


def test_a_prompt_that_continues_earlier_ones_takes_no_more_memory_than_one_that_was_sent_at_once():
    turns, at_once, blocks = BlockTree(LARGE), BlockTree(LARGE), chain(range(100))
    for end in range(0, 101, 5):
        put(turns, blocks[:end], end)
    put(at_once, blocks, 1)
    assert turns.nbytes == at_once.nbytes


def test_the_end_of_a_prompt_that_another_one_leaves_stays_as_old_as_it_is():
    tree = BlockTree(16_000)
    old, other = chain([1] * 500), chain([2] * 500)
    put(tree, old, 1)
    put(tree, other, 2)
    put(tree, chain([1] * 10 + [3] * 10), 3)
    put(tree, chain([4] * 1100), 4)
    assert notes(tree, other) == [2] * 500
    assert 10 < len(notes(tree, old)) < 300
    put(tree, chain([5] * 700), 5)
    assert notes(tree, old) == [3] * 10
    assert len(notes(tree, other)) < 300


def test_of_a_prompt_larger_than_the_memory_the_beginning_is_kept():
    tree, blocks = BlockTree(16_000), chain(range(5000))
    put(tree, blocks, 1)
    assert notes(tree, blocks) == [1] * ((16_000 - 280) // 8)


@given(st.lists(prompts, min_size=10, max_size=60), st.integers(500, 3000))
def test_a_beginning_is_never_forgotten_before_what_follows_it(written, max_bytes):
    tree = BlockTree(max_bytes)
    for tokens in written:
        put(tree, chain(tokens), 1)
        for other in written:
            blocks = chain(other)
            known = len(notes(tree, blocks))
            assert all(notes(tree, blocks, start=start) == [] for start in range(known, len(blocks)))


@given(st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=12), st.sampled_from([0, 1])), max_size=60))
def test_arbitrary_numbers_instead_of_chains_do_no_harm(written):
    tree = BlockTree(2000, whole_chains=False)
    for blocks, key in written:
        assert sum(count for _, count in tree.write(key, array("Q", blocks), lambda _: 1)) == len(blocks)
        assert 0 <= tree.nbytes <= 2000
        tree.notes(key, array("Q", blocks), 0, len(blocks))
    tree.clear()
    assert tree.nbytes == 0
    put(tree, chain(range(5)), 1)
    assert notes(tree, chain(range(5))) == [1] * 5


def test_notes_are_a_time_and_a_number():
    noted = note(12.5, 99)
    assert (noted_at(noted), noted & NUMBERS) == (12.5, 99)
    assert note(12.5, 99) < note(13, 0)
    assert note(-5, 3) == note(0, 3) > 0
