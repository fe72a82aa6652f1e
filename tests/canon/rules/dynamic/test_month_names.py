"""Months by their names: those of the explanation's shapes all have a number."""

from gateway.canon.rules.dynamic.moments import _NAMES, MONTH_NUMBERS
from gateway.canon.shapes import calendar_words


def test_every_language_has_twelve_and_no_name_stands_for_two():
    rows = [row.split() for row in _NAMES.strip().splitlines()]
    assert {len(row) for row in rows} == {12}
    seen = {}
    for row in rows:
        for number, names in enumerate(row, 1):
            for name in names.split("/"):
                assert seen.setdefault(name, number) == number


def test_every_month_a_shape_knows_has_a_number():
    known = {word for word, mark in calendar_words._CLASSES.items() if mark == calendar_words.MONTH}
    assert known - MONTH_NUMBERS.keys() == set()
