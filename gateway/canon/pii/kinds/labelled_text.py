"""Values behind a label and a separator, such as ``Full name: …``: where such a value begins.

The separators are looked for, and what stands in front of one is compared with the labels. A label may be a key of JSON
or an element of XML, with underscores or dashes instead of spaces, or without any (``customerName``).
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gateway.canon.pii.kinds.text_view import Span, TextView

_SEPARATOR = re.compile(r"[:=：>]")
_WINDOW = 48
_CLOSING = " \t\"'*`_”»"
"""Characters between a label and its separator."""
_OPENING = re.compile(r"""[ \t*`_]{0,4}+(["'“«„]?)""")
_BY_QUOTE = {"“": "”", "«": "»", "„": "“"}
_SPACED = str.maketrans("_-\t", "   ")
_LINE_ITEM = " *#>-–—•·.)|\"'`{[(<,;:/&?"
"""Characters in front of a label that is a whole line item, key or cell of its own."""


class Place(NamedTuple):
    """Where a labelled value begins.

    Attributes:
        start: Offset of its first character.
        label: The label, in lower case.
        quote: The character that ends the value; empty if it is not quoted.
    """

    start: int
    label: str
    quote: str


class ValueLabels:
    """Labels in front of a separator.

    Args:
        labels: The labels in lower case.
    """

    def __init__(self, labels: Iterable[str]) -> None:
        self._label_of: dict[str, str] = {}
        for label in labels:
            spaced = label.translate(_SPACED)
            self._label_of.setdefault(spaced, label)
            self._label_of.setdefault(spaced.replace(" ", ""), label)
        # By last character and length, because texts that consist of labels would be compared with a hundred of them at
        # every separator.
        lengths: dict[str, set[int]] = {}
        for label in self._label_of:
            lengths.setdefault(label[-1], set()).add(len(label))
        self._lengths = {last: sorted(each, reverse=True) for last, each in lengths.items()}

    def places(self, view: TextView) -> Iterator[Place]:
        """Where values begin, in the order of the text."""
        text = view.text
        for separator in _SEPARATOR.finditer(text):
            at = separator.start()
            before = view.before(at, _WINDOW).rstrip(_CLOSING).translate(_SPACED)
            label = self._ending(before)
            if not label or not _stands_alone(before[: -len(label)], at < _WINDOW):
                continue
            opening = _OPENING.match(text, separator.end())
            assert opening is not None
            quote = opening[1]
            yield Place(opening.end(), self._label_of[label], _BY_QUOTE.get(quote, quote))

    def spans(self, view: TextView, end_of: Callable[[str, Place], int]) -> Iterator[Span]:
        """Disjoint spans of values; ``end_of`` returns where the value at a place ends, 0 for none."""
        done = 0
        for place in self.places(view):
            if place.start >= done and (end := end_of(view.text, place)):
                done = end
                yield place.start, end

    def _ending(self, before: str) -> str:
        """The longest label at the end of a text; empty if none is."""
        for length in self._lengths.get(before[-1:], ()):
            if (end := before[-length:]) in self._label_of:
                return end
        return ""


def _stands_alone(before: str, whole: bool) -> bool:
    """Whether a label behind this text is not the end of a longer one, such as "file name", or of a closing tag.

    Args:
        before: The text in front of the label.
        whole: Whether it is all the text there is.
    """
    line = before.rpartition("\n")
    if line[2].endswith("</"):
        return False
    rest = line[2].rstrip(" ")
    if not rest:
        return bool(line[1]) or whole
    return rest[-1] in _LINE_ITEM
