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

from gateway.canon.pii.kinds.text_view import END, START, Span, TextView, digits_of

_CALLING_CODE = re.compile(
    "1|7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]"
    "|21[1-8]|22[0-9]|23[0-9]|24[0-9]|25[0-8]|26[0-9]|29[0-17-9]|35[0-9]|37[0-8]|38[0-35-79]|42[0139]|50[0-9]|59[0-9]"
    "|67[02-9]|68[0-9]|69[0-2]|80[08]|85[02356]|88[068]|96[0-8]|97[0-7]|99[2-68]"
)
_NORTH_AMERICAN = re.compile("1[2-9][0-9]{2}[2-9][0-9]{6}")
_FORMATTED = re.compile(
    r"(?<![0-9A-Za-z_+])\+ ?(?P<international>[1-9](?:[ .\-/()]{0,3}+[0-9]){7,14})(?![0-9]|[.:\-][0-9])"
    rf"|{START}(?:"
    r"00(?=[1-9][0-9]{0,2}[ .\-/(])(?P<double_zero>[1-9](?:[ .\-/()]{0,3}+[0-9]){7,14})(?![0-9]|[.:\-][0-9])"
    r"|(?P<american>(?:1[ .\-])?"
    r"(?:\([2-9][0-9]{2}\)[ .\-]?[2-9][0-9]{2}[ .\-]|[2-9][0-9]{2}([.\-])[2-9][0-9]{2}\4)[0-9]{4})"
    r"|(?P<brazilian>\([1-9][0-9]\) ?9?[0-9]{4}-[0-9]{4})"
    r"|(?<![0-9]{2} )(?:"  # not the middle of a longer number in groups
    r"(?P<pairs>0[1-9]([ .\-])[0-9]{2}(?:\7[0-9]{2}){3})(?!\7[0-9])"
    r"|(?P<short_area>(?:\(0[1-9]\)|0[1-9])([ \-])[0-9]{3,4}\9[0-9]{4})(?!\9[0-9])"
    r"|(?P<area>(?:\(0[1-9][0-9]{1,3}\)|0[1-9][0-9]{1,3})(?: ?[/\-] ?| )[0-9]{3,8}(?:[ \-][0-9]{2,4}){0,2})"
    rf")){END}"
)
_BARE_HEAD = re.compile(rf"{START}\(?[0-9]")
_BARE_REST = re.compile(r"(?:[ .\-/()]{0,2}+[0-9]){6,14}(?![0-9])")

_GAP_CHARACTERS = " .:#=*_(-\"'：。"
_GAP = f"[{re.escape(_GAP_CHARACTERS)}]{{0,4}}"
_LINK = (
    r"(?:[ .:#=*_\-\"']{0,4}+"
    r"(?:numbers?|nummer|numero|número|numéro|no|nr|num|n°|us|me|at|on|is|unter|au|al|ist|est|es|号码|号|是))"
)
_CALLED = re.compile(
    r"(?<![a-z\u00c0-\u052f])(?:tele|cell|mobile?|smart)?"
    r"(?:phones?|telephone|telefon[oe]?|teléfono|téléphone|telefoon|tel|tél|ph|mobile?|móvil|celular|cell|handy|portable|fax"
    r"|telefax|whatsapp|sms|hotline|rufnummer|call|dial|телефон|тел|моб|电话|手机|電話|携帯|전화)"
    rf"{_LINK}{{0,3}}{_GAP}$"
)
_COUNTED = re.compile(
    r"(?:(?<![a-z])(?:order|invoice|ticket|case|ref|reference|serial|part|sku|isbn|article|item|model|batch|lot|tracking"
    r"|id|bestellung|rechnung|auftrag|commande|facture|pedido|factura|bestellnummer|rechnungsnummer|auftragsnummer)"
    rf"(?:[ .:#=]{{0,2}}(?:numbers?|nummer|no|nr|num|id|code|n°)){{0,2}}{_GAP}|# ?)$"
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
