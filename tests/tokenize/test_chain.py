import itertools
import pickle
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from gateway.core.prompt import MediaItem
from gateway.core.space import CacheSpace
from gateway.engines import media_extra
from gateway.tokenize.block_hashes import ChainHasher, space_root


def tokens(ids):
    return array("I", ids).tobytes()


def by_hand(root, ids, size):
    """The formula of the contract, written out."""
    found, previous = [], root
    for start in range(0, len(ids) - size + 1, size):
        previous = xxh3_64_intdigest(previous.to_bytes(8, "little") + tokens(ids[start : start + size]))
        found.append(previous)
    return found


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 511, 512, 513, 1024, 2047, 2048, 5000, 40_000])
def test_chain_follows_the_formula_whether_or_not_runs_are_remembered(length):
    ids = [(7 * n * n + n) % 50_000 for n in range(length)]
    hasher = ChainHasher()
    for _ in range(3):
        chain = hasher.chain(99, tokens(ids), 16)
        assert list(chain.hashes) == by_hand(99, ids, 16)
        assert chain.tokens == length


@pytest.mark.parametrize(("known", "length"), [(0, 100), (10, 40), (64, 64), (64, 79), (64, 80), (1000, 1100)])
def test_longer_prompt_is_hashed_from_where_the_known_one_ends(known, length):
    ids = list(range(length))
    hasher = ChainHasher()
    longer = hasher.extended(5, hasher.chain(5, tokens(ids[:known]), 16), tokens(ids[known // 16 * 16 :]), length)
    assert list(longer.hashes) == by_hand(5, ids, 16)
    assert longer.tokens == length


def test_chains_of_two_block_sizes_are_each_right():
    ids = list(range(5000))
    hasher = ChainHasher()
    for size in (16, 32, 8, 16):
        assert list(hasher.chain(1, tokens(ids), size).hashes) == by_hand(1, ids, size)


def test_prompts_that_part_anywhere_are_hashed_right_with_what_is_remembered():
    ids = list(range(9000))
    hasher = ChainHasher()
    for same in (0, 511, 512, 2047, 2048, 2500, 4096, 9000):
        other = ids[:same] + [7] * (9000 - same)
        for prompt in (other, other[:4100], other):
            assert list(hasher.chain(3, tokens(prompt), 16).hashes) == by_hand(3, prompt, 16)


def test_chain_is_right_after_more_runs_than_are_remembered():
    hasher = ChainHasher()
    for root in range(6000):
        hasher.chain(root, tokens(range(512)), 16)
    assert list(hasher.chain(3, tokens(range(600)), 16).hashes) == by_hand(3, list(range(600)), 16)


@given(
    common=st.lists(st.integers(0, 2**32 - 1), max_size=80),
    one=st.lists(st.integers(0, 9), max_size=40),
    other=st.lists(st.integers(0, 9), max_size=40),
    size=st.integers(1, 20),
)
def test_chains_agree_exactly_as_far_as_the_tokens_do(common, one, other, size):
    hasher = ChainHasher()
    a, b = common + one, common + other
    agreeing = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    first, second = hasher.chain(1, tokens(a), size).hashes, hasher.chain(1, tokens(b), size).hashes
    equal = [x == y for x, y in zip(first, second, strict=False)]
    assert equal == [(n + 1) * size <= agreeing for n in range(len(equal))]


def test_spaces_differ_in_every_part_and_parts_do_not_run_together():
    spaces = [
        CacheSpace("a", "b", "c", "d"),
        CacheSpace("x", "b", "c", "d"),
        CacheSpace("a", "x", "c", "d"),
        CacheSpace("a", "b", "x", "d"),
        CacheSpace("a", "b", "c", "x"),
        CacheSpace("a", "b", "c"),
        CacheSpace("a", "b", "", "c"),
        CacheSpace("a", "", "b"),
        CacheSpace("a", "b"),
        CacheSpace("ab", "", "c"),
        CacheSpace("", "ab", "c"),
        CacheSpace("", "", "abc"),
        CacheSpace("", "", "", "abc"),
        CacheSpace("abc"),
    ]
    assert len({space_root(space) for space in spaces}) == len(spaces)
    assert space_root(spaces[0]) == space_root(CacheSpace("a", "b", "c", "d"))


def test_root_of_a_space_is_the_same_however_many_others_were_asked_for():
    hasher = ChainHasher()
    assert hasher.root("model", "adapter", "") == space_root(CacheSpace("model", "adapter"))
    for number in range(5000):
        hasher.root("model", "adapter", f"salt-{number}")
    for number in (0, 1, 4999):
        assert hasher.root("model", "adapter", f"salt-{number}") == space_root(
            CacheSpace("model", "adapter", f"salt-{number}")
        )
    assert hasher.root("model", "", "", "text") == space_root(CacheSpace("model", variant="text"))


@given(
    ids=st.lists(st.integers(0, 2**32 - 1), max_size=100),
    size=st.integers(1, 20),
    cuts=st.lists(st.integers(0, 100), max_size=3),
)
def test_blocks_published_in_pieces_hash_as_the_whole_prompt_does(ids, size, cuts):
    hasher = ChainHasher()
    blocks = len(ids) // size
    ends = sorted({min(cut, blocks) for cut in cuts} | {0, blocks})
    found, parent = [], 7
    for start, end in itertools.pairwise(ends):
        found += hasher.extend(parent, tokens(ids[start * size : end * size]), size, None)
        parent = found[-1] if found else parent
    assert found == list(hasher.chain(7, tokens(ids), size).hashes)


def media_strategy():
    return st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40), st.sampled_from(["cat", "dog"])), max_size=3).map(
        lambda items: tuple(MediaItem(offset, length, name) for offset, length, name in sorted(items))
    )


def blocks_of(media, size, block):
    """What an engine counts into a block: every item with a placeholder inside, and where it began."""
    return [
        (m.identifier, m.offset - block * size)
        for m in media
        if set(range(m.offset, m.offset + m.length)) & set(range(block * size, (block + 1) * size))
    ]


@given(
    length=st.integers(100, 120),
    one=media_strategy(),
    other=media_strategy(),
    size=st.integers(1, 20),
)
def test_chains_with_media_agree_exactly_as_far_as_the_items_do(length, one, other, size):
    hasher, ids = ChainHasher(), list(range(length))
    first, second = (hasher.chain(1, tokens(ids), size, media).hashes for media in (one, other))
    same = [blocks_of(one, size, n) == blocks_of(other, size, n) for n in range(len(ids) // size)]
    agreeing = same.index(False) if False in same else len(same)
    assert [x == y for x, y in zip(first, second, strict=True)] == [n < agreeing for n in range(len(same))]


def test_prompt_with_media_hashes_as_the_engines_blocks_do():
    media = (MediaItem(5, 20, "cat"), MediaItem(40, 3, "dog"), MediaItem(64, 16, "owl"))
    ids = list(range(100))
    extras = [
        *(media_extra([item]) for item in (("cat", 5), ("cat", -11), ("dog", 8))),
        None,
        media_extra([("owl", 0)]),
        None,
    ]
    hasher = ChainHasher()
    assert list(hasher.chain(1, tokens(ids), 16, media).hashes) == hasher.extend(1, tokens(ids), 16, extras)


@pytest.mark.parametrize(("length", "reusable"), [(0, 0), (1, 0), (16, 0), (17, 1), (64, 3), (65, 4)])
def test_the_last_token_is_never_reusable(length, reusable):
    assert ChainHasher().chain(1, tokens(range(length)), 16).reusable_blocks == reusable


@pytest.mark.parametrize("size", [256, 600, 1024])
def test_blocks_larger_than_what_is_hashed_in_one_go_are_hashed_alike(size):
    ids = [(7 * n * n + n) % 50_000 for n in range(5000)]
    hasher = ChainHasher()
    for _ in range(2):
        assert list(hasher.chain(99, tokens(ids), size).hashes) == by_hand(99, ids, size)


def test_what_is_remembered_is_bounded_in_bytes_for_any_size_of_blocks():
    hasher = ChainHasher()
    for root in range(300):
        hasher.chain(root, tokens(range(32 * 1024)), 1024)
    assert len(pickle.dumps(hasher)) < 20_000_000
