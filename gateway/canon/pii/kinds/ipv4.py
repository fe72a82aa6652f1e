"""IPv4 addresses.

Found: all unicast addresses, including private ones (within a company they identify a person) and those reserved for
documentation. Not found: 0.x, loopback, multicast and above; networks (``10.0.0.0/8``); likely versions and sections:
four single digits (``3.1.2.4``), more than four numbers, leading zeros, right behind a word such as version, build or
section, or behind a product name with slash or dash (``Chrome/120.0.0.0``).
"""

import re
from collections.abc import Iterator

from gateway.canon.lexicon import alternatives, entries
from gateway.canon.pii.kinds.text_view import Span, TextView

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_ADDRESS = re.compile(
    rf"(?<![0-9A-Za-z_.])(?<![A-Za-z_][\-/])(?:{_OCTET}\.){{3}}{_OCTET}"
    r"(?![0-9A-Za-z_]|\.[0-9]|-[A-Za-z]|/(?:[12]?[0-9]|3[01])(?![0-9]|\.[0-9]))"
)
_NOT_UNICAST = frozenset({0, 127, *range(224, 256)})
_SINGLE_DIGITS = len("1.2.3.4")
_VERSION = re.compile(rf"(?:(?<![a-z])(?:{alternatives(entries('personal_data', 'version_words'))})|§)[ .:#=]{{0,3}}$")
_WINDOW = 16


def find(view: TextView) -> Iterator[Span]:
    """Spans of IPv4 addresses."""

    def length(match: re.Match[str]) -> int:
        address = match[0]
        if len(address) == _SINGLE_DIGITS or int(address[: address.index(".")]) in _NOT_UNICAST:
            return 0
        return 0 if _VERSION.search(view.before(match.start(), _WINDOW)) else len(address)

    return view.matches(_ADDRESS, length)
