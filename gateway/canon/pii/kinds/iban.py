"""IBANs: checks the country, its length, and the check digits (ISO 7064, mod 97).

Accepts single spaces or dashes between the characters, and both cases.
"""

import re
from collections.abc import Iterator

from stdnum.iso7064 import mod_97_10

from gateway.canon.lexicon import by_part
from gateway.canon.pii.kinds.text_view import Span, TextView

_LENGTHS = {
    country: int(length)
    for length, countries in by_part("personal_data", "iban_lengths", as_written=True).items()
    for country in countries
}
"""Total number of characters by country."""
_HEAD = re.compile(r"(?<![0-9A-Za-z_])[A-Za-z]{2}[0-9]{2}")
_REST = {
    length: re.compile(rf"(?:[ \-]?[0-9A-Za-z]){{{length - 4}}}(?![0-9A-Za-z_])") for length in set(_LENGTHS.values())
}


def find(view: TextView) -> Iterator[Span]:
    """Spans of IBANs."""

    def length(head: re.Match[str]) -> int:
        characters = _LENGTHS.get(head[0][:2].upper())
        if characters is None:
            return 0
        rest = _REST[characters].match(view.text, head.end())
        return len(head[0]) + len(rest[0]) if rest and _checks(head[0], rest[0]) else 0

    return view.matches(_HEAD, length)


def _checks(head: str, rest: str) -> bool:
    # Not stdnum.iban: it also checks the national format, and takes ten times as long.
    return mod_97_10.is_valid(rest.replace(" ", "").replace("-", "").upper() + head.upper())
