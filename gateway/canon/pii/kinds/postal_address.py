"""Postal addresses behind a label: ``Address: 12 High Street, London``, ``"delivery_address": "…"``, ``Адрес: …``.

Found: what stands behind the label up to the end of the sentence, the line or the quotation, at most 160 characters,
with a digit and a letter in it.

Not found: addresses without a label; e-mail addresses, URLs, and other addresses (``IP address``).
"""

import re
from collections.abc import Iterator

from gateway.canon.lexicon import by_part
from gateway.canon.pii.kinds.labelled_text import Place, ValueLabels
from gateway.canon.pii.kinds.text_view import Span, TextView

_LABELS = ValueLabels(
    dict.fromkeys(label for labels in by_part("personal_data", "address_labels").values() for label in labels)
)
_MAX_CHARS = 160
_VALUE = re.compile(rf"[^\n\r;|<>\t{{}}]{{1,{_MAX_CHARS}}}")
_SENTENCE_END = re.compile(r"(?<=[\w)]{4})[.!?](?=[ ][^\W\d_a-z])|(?<=\d)[.!?](?=[ ][^\W\d_])|[。！？]|[.!?]$")
_OTHER = re.compile(r"https?:|www\.|[^\s@]{1,64}@|0x|[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}|[0-9]{1,3}(?:\.[0-9]{1,3}){3}")
_DIGIT = re.compile(r"\d")
_LETTERS = re.compile(r"[^\W\d_]{2}")


def find(view: TextView) -> Iterator[Span]:
    """Spans of addresses."""
    return _LABELS.spans(view, _end)


def _end(text: str, place: Place) -> int:
    """Where the address ends that begins at a place; 0 if none does."""
    match = _VALUE.match(text, place.start)
    # The digit first: in a text that consists of labels all that follows would be done for each of them.
    if not match or not _DIGIT.search(match[0]) or _OTHER.match(match[0]):
        return 0
    value = match[0]
    if place.quote:
        value = value.partition(place.quote)[0]
    if sentence := _SENTENCE_END.search(value):
        value = value[: sentence.start()]
    value = value.rstrip(" ,.\"'*")
    if not _DIGIT.search(value) or not _LETTERS.search(value):
        return 0
    return place.start + len(value)
