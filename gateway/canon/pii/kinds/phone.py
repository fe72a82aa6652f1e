r"""Phone numbers.

Found:

* international: ``+`` and an assigned calling code, 9 to 15 digits in total, with or without spaces, dots, dashes,
  slashes and brackets; ``00`` and a calling code, if there are separators; ``+1`` with ten digits of the
  North American plan;
* North American: ``(415) 555-2671``, ``415-555-2671``, ``415.555.2671``, each also behind ``1``;
* national with a leading 0, as in most of Europe, Japan, Korea, Australia: ``030 1234567``, ``(0161) 496 0000``,
  ``0171/1234567``, ``06 12 34 56 78``, ``03-1234-5678``;
* Brazilian: ``(11) 98765-4321``;
* any 7 to 15 digits directly behind a word such as phone, tel, mobile, call, fax, WhatsApp, also in some other
  languages.

Not found: other numbers, and those without ``+`` directly behind a word such as order, invoice, ticket, ref or ``#``.
"""

import re
from collections.abc import Iterator

from gateway.canon.lexicon import alternatives, entries, value_of
from gateway.canon.pii.kinds.text_view import END, START, Span, TextView, digits_of


def _formats(section: str) -> str:
    """National formats as alternatives, each in a group of its name."""
    formats = value_of("personal_data", section)
    return "|".join(
        f"(?P<{name}>{pattern.replace('?P<gap>', f'?P<{name}_gap>').replace('?P=gap', f'?P={name}_gap')})"
        for name, pattern in formats.items()
    )


_CALLING_CODE = re.compile(alternatives(entries("personal_data", "calling_codes")))
_NORTH_AMERICAN = re.compile("1[2-9][0-9]{2}[2-9][0-9]{6}")
_FORMATTED = re.compile(
    r"(?<![0-9A-Za-z_+])\+ ?(?P<international>[1-9](?:[ .\-/()]{0,3}+[0-9]){7,14})(?![0-9]|[.:\-][0-9])"
    rf"|{START}(?:"
    r"00(?=[1-9][0-9]{0,2}[ .\-/(])(?P<double_zero>[1-9](?:[ .\-/()]{0,3}+[0-9]){7,14})(?![0-9]|[.:\-][0-9])"
    rf"|{_formats('phone_formats')}"
    # Not the middle of a longer number in groups.
    rf"|(?<![0-9]{{2}} )(?:{_formats('phone_formats_with_0')})"
    rf"){END}"
)
_BARE_HEAD = re.compile(rf"{START}\(?[0-9]")
_BARE_REST = re.compile(r"(?:[ .\-/()]{0,2}+[0-9]){6,14}(?![0-9])")

_GAP_CHARACTERS = " .:#=*_(-\"'：。"
_GAP = f"[{re.escape(_GAP_CHARACTERS)}]{{0,4}}"
_LINK = rf"(?:[ .:#=*_\-\"']{{0,4}}+(?:{alternatives(entries('personal_data', 'phone_links'))}))"
_CALLED = re.compile(
    rf"(?<![a-z\u00c0-\u052f])(?:{alternatives(entries('personal_data', 'phone_prefixes'))})?"
    rf"(?:{alternatives(entries('personal_data', 'phone_words'))}){_LINK}{{0,3}}{_GAP}$"
)
_COUNTED = re.compile(
    rf"(?:(?<![a-z])(?:{alternatives(entries('personal_data', 'counted_words'))})"
    rf"(?:[ .:#=]{{0,2}}(?:{alternatives(entries('personal_data', 'counted_links'))})){{0,2}}{_GAP}|# ?)$"
)
_WINDOW = 40


def find(view: TextView) -> Iterator[Span]:
    """Spans of phone numbers."""

    def formatted(match: re.Match[str]) -> int:
        digits = digits_of(match[0])
        match match.lastgroup:
            case "international":
                valid = _dialable(digits)
            case "double_zero":
                valid = _dialable(digits[2:])
            case "area" | "short_area":
                valid = 9 <= len(digits) <= 12
            case _:
                valid = True
        plus = match[0].startswith("+")
        return len(match[0]) if valid and (plus or not _COUNTED.search(view.before(match.start(), _WINDOW))) else 0

    def bare(head: re.Match[str]) -> int:
        before = view.before(head.start(), _WINDOW)
        word = before.rstrip(_GAP_CHARACTERS)
        if not word or not (word[-1].isalpha() or word[-1] == "°") or not _CALLED.search(before):
            return 0
        rest = _BARE_REST.match(view.text, head.end())
        return len(head[0]) + len(rest[0]) if rest else 0

    yield from view.matches(_FORMATTED, formatted)
    yield from view.matches(_BARE_HEAD, bare)


def _dialable(digits: str) -> bool:
    """Whether it has an assigned calling code and a valid length."""
    if digits.startswith("1"):
        return _NORTH_AMERICAN.fullmatch(digits) is not None
    code = _CALLING_CODE.match(digits)
    return code is not None and 9 <= len(digits) <= 15 and digits[code.end() :].strip("0") != ""
