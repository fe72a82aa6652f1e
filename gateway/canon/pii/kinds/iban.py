"""IBANs: checks the country, its length, and the check digits (ISO 7064, mod 97).

Accepts single spaces or dashes between the characters, and both cases.
"""

import re
from collections.abc import Iterator

from gateway.canon.pii.kinds.text_view import Span, TextView

# SWIFT, IBAN Registry, release 99: total number of characters.
_LENGTHS = {
    country: length
    for length, countries in {
        15: "NO",
        16: "BE",
        18: "DK FK FI FO GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ LT LU XK MN",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
        29: "BR EG PS QA UA",
        30: "JO KW MU YE",
        31: "MT SC",
        32: "LC",
        33: "RU",
    }.items()
    for country in countries.split()
}
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
    moved = rest.replace(" ", "").replace("-", "") + head
    return int("".join(str(int(character, 36)) for character in moved)) % 97 == 1
