"""Finds documents in another order by the operator's own declarations (``canon.document_order``).

Other than in ``text_blocks``, nothing has to be guessed: separators may stand in the middle of a line, documents may be
short, and any text may follow them.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from gateway.canon.document_places import DocumentPlace
from gateway.config.operator_patterns import TooSlow


class KeyedDocument(NamedTuple):
    """A document.

    Attributes:
        start: Offset of its first character.
        end: Offset behind its last character.
        key: Its text without the number.
        number: Its number; empty for none.
    """

    start: int
    end: int
    key: str
    number: str


def declared_reordered(before: str, after: str, at: int, places: Sequence[DocumentPlace]) -> bool:
    """Whether the first difference of two texts is the order of declared documents.

    The same documents have to follow in both texts, none of them more or less or edited. Their numbers may stay where
    they are or move along.

    Args:
        before: The first text.
        after: The second, not equal to the first.
        at: Their first differing character.
        places: The declarations.
    """
    return any(_is_other_order(before, after, at, place) for place in places)


def _is_other_order(before: str, after: str, at: int, place: DocumentPlace) -> bool:
    try:
        one, other = keyed_documents(before, place), keyed_documents(after, place)
    except TooSlow:
        return False
    if len(one) != len(other):
        return False
    first = next((n for n, pair in enumerate(zip(one, other, strict=True)) if pair[0].key != pair[1].key), None)
    if first is None or not max(one[first].start, other[first].start) <= at < max(one[first].end, other[first].end):
        return False
    one, other = one[first:], other[first:]
    return _counted(one) == _counted(other)


def _counted(documents: Sequence[KeyedDocument]) -> tuple[Counter[str], Counter[str]]:
    return Counter(document.key for document in documents), Counter(document.number for document in documents)


def keyed_documents(text: str, place: DocumentPlace) -> list[KeyedDocument]:
    """All documents of a text.

    Raises:
        TooSlow: a search takes too long.
    """
    found: list[KeyedDocument] = []
    for run in place.runs(text):
        for document in run:
            start, end = document.number or (document.end, document.end)
            key = f"{text[document.start : start]}\0{text[end : document.end]}"
            found.append(KeyedDocument(document.start, document.end, key, text[start:end]))
    return found
