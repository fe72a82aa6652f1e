"""The table of all kinds of values, for moving current values and for explaining differences."""

import re

from gateway.canon.recognizer import id_kinds, person_kinds, time_kinds
from gateway.canon.recognizer.value_kind import FoundValue, TextWindow, ValueKind

KINDS: tuple[ValueKind, ...] = (
    person_kinds.EMAIL,
    *id_kinds.SURE_KINDS,
    *time_kinds.KINDS,
    *person_kinds.KINDS,
    *id_kinds.KINDS,
    *person_kinds.NUMBERS,
)
"""The first match decides: a date is no version, a phone number no counter."""

MOMENT = re.compile("|".join(f"(?:{kind.pattern.pattern})" for kind in KINDS if kind.is_moment))
"""Matches a value that may be the current date or time, in a text with marked calendar words."""


def kind_of_both(
    before: TextWindow, after: TextWindow, kinds: tuple[ValueKind, ...] = KINDS
) -> tuple[ValueKind, FoundValue, FoundValue] | None:
    """The first kind that both values at the first difference of two texts have, and the values; None for none."""
    for kind in kinds:
        if found := kind.both(before, after):
            return (kind, *found)
    return None
