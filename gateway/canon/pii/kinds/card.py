"""Payment cards: 13 to 19 digits with the prefix of a known issuer and a valid Luhn check digit.

Found: without separators, or in the groups printed on cards (4-4-4-4, 4-4-4-4-3, 4-6-5, 4-6-4) with spaces or
dashes.
"""

import re
from collections.abc import Iterator

from stdnum import luhn

from gateway.canon.lexicon import value_of
from gateway.canon.pii.kinds.text_view import END, START, Span, TextView, digits_of

_CARD = re.compile(
    rf"{START}(?:[2-6][0-9]{{12,18}}"
    r"|(?P<groups>[2-6][0-9]{3}([ \-])[0-9]{4}\2[0-9]{4}\2[0-9]{1,7})(?:\2[0-9]{3})?"
    r"|3[47][0-9]{2}([ \-])[0-9]{6}\3[0-9]{5}"
    r"|3[0689][0-9]{2}([ \-])[0-9]{6}\4[0-9]{4}"
    rf"){END}"
)
_FIRST_DIGITS = tuple(
    (len(low), int(low), int(high or low), frozenset(issuer["digits"]))
    for issuer in value_of("personal_data", "card_issuers").values()
    for low, _, high in (str(first).partition("-") for first in issuer["first"])
)
"""How many first digits, their lowest and highest value, and the possible numbers of digits of the card."""


def find(view: TextView) -> Iterator[Span]:
    """Spans of card numbers."""
    return view.matches(_CARD, _length)


def _length(match: re.Match[str]) -> int:
    if _is_card(match[0]):
        return len(match[0])
    # The three digits behind the last group may be the card's security code.
    groups = match["groups"]
    return len(groups) if groups and _is_card(groups) else 0


def _is_card(text: str) -> bool:
    digits = digits_of(text)
    has_issuer = any(
        len(digits) in lengths and low <= int(digits[:count]) <= high for count, low, high, lengths in _FIRST_DIGITS
    )
    return has_issuer and luhn.is_valid(digits)
