"""Types of command-line arguments: numbers within bounds, with an error that says what is expected."""

import math
from argparse import ArgumentTypeError
from collections.abc import Callable

_MOST = 10**18
_SHOWN_CHARS = 60


def whole_number(least: int = 1, most: int = _MOST) -> Callable[[str], int]:
    """The type of a whole number from ``least`` to ``most``."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST)) and least <= int(text) <= most):
            expected = f"above {least - 1}" if most == _MOST else f"from {least:,} to {most:,}"
            raise ArgumentTypeError(f"expected a whole number {expected}, not {text[:_SHOWN_CHARS]!r}")
        return int(text)

    return parse


def above_zero(text: str) -> float:
    """The type of a finite number above 0."""
    number = not_negative(text)
    if not number:
        raise ArgumentTypeError(f"expected a number above 0, not {text[:_SHOWN_CHARS]!r}")
    return number


def not_negative(text: str) -> float:
    """The type of a finite number from 0 on."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ArgumentTypeError(f"expected a number that is not negative, not {text[:_SHOWN_CHARS]!r}")
    return number
