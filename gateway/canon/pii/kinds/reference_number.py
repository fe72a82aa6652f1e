"""Numbers of contracts and orders directly behind their label: ``contract no. AB-2024/117``, ``заказ № 12345``.

Found: 3 to 40 letters, digits, dashes, dots and slashes with at least three digits. Behind a bare word such as
``order`` a ``#``, ``№``, colon or equals sign has to stand in front of the number.

Not found: dates, years, prices, and numbers without a label.
"""

import re
from collections.abc import Callable, Iterator

from gateway.canon.lexicon import by_part
from gateway.canon.pii.kinds.labels import GAP, Labels
from gateway.canon.pii.kinds.text_view import Span, TextView, digit_count

_HEAD = re.compile(r"(?<![0-9])[0-9]")
_LETTERS = "A-Za-z\u0400-\u04ff"
_FRONT_CHARS = 20
_FRONT_BACKWARDS = re.compile(rf"[{_LETTERS}/.\-]{{0,{_FRONT_CHARS}}}+")
_REST = re.compile(rf"[{_LETTERS}0-9/.\-]{{1,40}}+(?![\w@])")
_NO_NUMBER = re.compile(
    r"(?:19|20)[0-9]{2}|[0-9]{4}-[0-9]{2}-[0-9]{2}.*|[0-9]{1,2}[./][0-9]{1,2}[./][0-9]{2,4}|[0-9]+\.[0-9]{1,2}"
)
_FEWEST_DIGITS = 3
_MARKS = re.compile("[#№:=：°]")
_MARK_CHARS = 6
_CONTRACT = Labels(by_part("personal_data", "contract_labels"), joined=True)
_ORDER = Labels(by_part("personal_data", "order_labels"), joined=True)


def find_contract(view: TextView) -> Iterator[Span]:
    """Spans of numbers of contracts."""
    return _spans(view, _CONTRACT)


def find_order(view: TextView) -> Iterator[Span]:
    """Spans of numbers of orders."""
    return _spans(view, _ORDER)


def _spans(view: TextView, labels: Labels) -> Iterator[Span]:
    text, done = view.text, 0
    for head in _HEAD.finditer(text):
        if head.start() < done:
            continue
        rest = _REST.match(text, head.start())
        if rest is None:
            continue
        done = rest.end()
        front = _FRONT_BACKWARDS.match(text[max(head.start() - _FRONT_CHARS, 0) : head.start()][::-1])
        start = head.start() - (len(front[0].rstrip("/.-")) if front else 0)
        number = text[start : rest.end()].rstrip("/.-")
        if digit_count(number) < _FEWEST_DIGITS or _NO_NUMBER.fullmatch(number):
            continue
        if _is_labelled(view, start, labels.before) or (
            start < head.start() and _is_labelled(view, start := head.start(), labels.before)
        ):
            yield start, rest.start() + len(rest[0].rstrip("/.-"))


def _is_labelled(view: TextView, start: int, before: Callable[[TextView, int], str | None]) -> bool:
    name = before(view, start)
    if name == "bare":
        return _MARKS.search(view.text[_gap_start(view.text, start) : start]) is not None
    return name is not None


def _gap_start(text: str, start: int) -> int:
    """Where the characters begin that separate a number from its label."""
    front = text[max(start - _MARK_CHARS, 0) : start]
    return start - len(front) + len(front.rstrip(GAP))
