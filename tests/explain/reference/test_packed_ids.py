"""Packed ids are the ids, of any size and number, with any common prefix."""

import random
import struct

import pytest

from gateway.explain.reference import common_tokens
from gateway.explain.reference.packed_ids import PIECE_TOKENS, packed


def ids_of(numbers):
    return struct.pack(f"<{len(numbers)}I", *numbers)


def variants(chance, numbers, top):
    """A prompt's ids, and those of prompts that begin like it: cut, with one id changed, with another end."""
    yield numbers
    yield numbers[: chance.randrange(len(numbers) + 1)]
    yield numbers[: chance.randrange(len(numbers) + 1)] + [chance.randrange(top) for _ in range(chance.randrange(700))]
    if numbers:
        changed = list(numbers)
        changed[chance.randrange(len(numbers))] ^= 1 << chance.randrange(32)
        yield changed


LENGTHS = 0, 1, 7, 8, 9, 300, PIECE_TOKENS - 1, PIECE_TOKENS, PIECE_TOKENS + 1, 2 * PIECE_TOKENS, 1500


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("top", [2, 3_000, 1 << 16, 1 << 17, 200_000, 1 << 18, 1 << 24, 1 << 32])
def test_packed_ids_are_the_ids(top, length):
    chance = random.Random(top + length)
    numbers = [chance.randrange(top) for _ in range(length)]
    prompt = ids_of(numbers)
    for other in map(ids_of, variants(chance, numbers, top)):
        equal = common_tokens(prompt, other)
        one, two = packed(prompt), packed(other)
        assert one.common_tokens(two) == two.common_tokens(one) == equal
        assert two.unpacked() == two.unpacked(prompt[: equal * 4]) == other
        assert all(one.may_begin_like(two, tokens) for tokens in {0, equal // 2, equal})
        assert not one.may_begin_like(two, min(len(prompt), len(other)) // 4 + 1)


def test_the_same_bytes_are_other_ids_in_a_shorter_piece():
    short, long = ids_of([5 + (3 << 16)]), ids_of([5, 0x8080])
    assert packed(short).pieces == packed(long).pieces
    assert packed(short).common_tokens(packed(long)) == common_tokens(short, long) == 0


def test_ids_of_a_large_vocabulary_take_little_more_than_two_bytes_each():
    chance = random.Random(1)
    prompt = ids_of([chance.randrange(1 << 18) for _ in range(10_000)])
    assert sum(map(len, packed(prompt).pieces)) <= 22_500 + 8
    assert sum(map(len, packed(ids_of([7] * 10_000)).pieces)) == 20_000
