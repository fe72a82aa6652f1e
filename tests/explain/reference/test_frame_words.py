"""What is read from texts without regular expressions equals what the expressions find."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.explain.reference import frame

_PIECES = [
    "may",
    "-feira",
    "segunda-feira",
    "Mai",
    "9",
    "_",
    " ",
    "\n",
    "@",
    ".",
    "ß",
    "é",
    "星期",
    "\u2028",
    "\x1c",
    "٣",
]

texts = st.lists(st.sampled_from(_PIECES) | st.characters(), max_size=30).map("".join)


@given(texts)
def test_letters_words_and_digits_are_those_of_the_expressions(text):
    low = text.lower()
    assert frame._letter_runs(low)[0] == frame._LETTERS.findall(low)
    assert frame._words(low) == frame._WORD.findall(low)
    assert frame._has_digit(low) == bool(frame._DIGIT.search(low))


@given(st.text(alphabet=[chr(number) for number in range(128)]))
def test_all_of_ascii_is_read_alike(text):
    low = text.lower()
    assert frame._letter_runs(low)[0] == frame._LETTERS.findall(low)
    assert frame._words(low) == frame._WORD.findall(low)
    assert frame._has_digit(low) == bool(frame._DIGIT.search(low))


@pytest.mark.parametrize("text", ["segunda-feira", "may-feira", "may-x", "a1b2", "A_b"])
def test_words_of_dates_are_masked_alike(text):
    words = re.findall(r"[^\W\d_]++(?:-feira)?", text.lower())
    assert ("0" in frame.masked(text)) == (
        any(word in frame._CALENDAR for word in words) or any(map(str.isdigit, text))
    )
