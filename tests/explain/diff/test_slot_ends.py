"""A slot ends where both texts agree again, however far that is from its beginning."""

import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.explain.diff import slot as slots
from gateway.explain.diff.slot import Slot, common_length, slot_at

FRONT, BEHIND = "The user is ", ". Be kind, be brief, and be sure to quote the source."
WORDS = st.lists(st.sampled_from(["a", "be", "7", ", ", " ", " ", "\r\n", "é", "月", "long" * 9])).map("".join)


def value(length: int, letter: str) -> str:
    """A value without anything that comes again in another one."""
    return " ".join(letter * 5 + number for number in string.ascii_letters)[:length].rstrip()


@pytest.mark.parametrize("length", [1, 20, 90, 130, 280])
@pytest.mark.parametrize("other_length", [3, 110, 250])
def test_a_value_ends_in_front_of_what_follows_it_in_both_texts(length, other_length):
    one, other = value(length, "x"), value(other_length, "y")

    found = slot_at(FRONT + one + BEHIND, FRONT + other + BEHIND, len(FRONT))

    assert found == Slot(len(FRONT), len(FRONT) + len(one), len(FRONT) + len(other))


def test_texts_that_never_agree_again_differ_up_to_the_end_of_what_is_read():
    assert slot_at("x" * 700, "y" * 700, 0) == Slot(0, 600, 600)


def test_what_agrees_first_counts_even_if_it_is_farther_from_the_beginning_of_one_text():
    signs = [chr(0x4E00 + number) for number in range(400)]  # each is a word of its own
    late, early = "".join(signs[:4]), "".join(signs[4:8])
    before = "".join(signs[10:60]) + late + "".join(signs[60:136]) + early + "".join(signs[140:200])
    after = early + "".join(signs[200:296]) + late + "".join(signs[300:380])

    assert slot_at(before, after, 0) == Slot(0, before.index(early), 0)


@given(WORDS, WORDS, WORDS, WORDS)
def test_looking_near_the_beginning_first_finds_the_same_end(front, one, other, behind):
    before, after = front + one + behind, front + other + behind
    assume(before != after)
    at = common_length(before, after)

    found = slot_at(before, after, at)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(slots, "_SLOT_NEAR", slots._SLOT_AHEAD)
        assert found == slot_at(before, after, at)
