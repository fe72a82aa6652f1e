"""Finds documents in a text as the operator declares them. Pure.

A *run* is a sequence of documents with nothing but blanks, punctuation or the declared separator between them. Used by
the rule ``document-order`` and by the miss reason ``documents_reordered``.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gateway.config.operator_patterns import OwnRegex

if TYPE_CHECKING:  # pydantic takes a moment to load, and the explain worker needs it only where rules are configured
    from gateway.config.document_order_settings import DocumentPlaceSettings

_BETWEEN = re.compile(r"[\s,;|*_=~#+.-]*")
"""What may stand between two documents of a run."""

_MOST_DOCUMENTS = 1000
"""Longer runs are left alone: they are no retrieved documents, and every document is searched on its own."""

_LEAST_DOCUMENTS = 2

_Span = tuple[int, int]


class PlacedDocument(NamedTuple):
    """A document in a text.

    Attributes:
        start: Offset of its first character, which is not blank.
        end: Offset behind its last character, which is not blank.
        id: Its id; empty if none is declared, None if it has none.
        number: Offsets of its number; None if it has none.
    """

    start: int
    end: int
    id: str | None
    number: _Span | None


class DocumentPlace:
    """One declared kind of documents.

    Args:
        settings: The declaration.

    Attributes:
        settings: The declaration.
        roles: Roles of the messages that may hold such documents; an empty one for prompts of completions.
        citation: Finds citations; None where documents keep their numbers.
    """

    def __init__(self, settings: "DocumentPlaceSettings") -> None:
        self.settings = settings
        self.roles = frozenset(settings.roles) | {""}
        self._regex = OwnRegex(settings.regex) if settings.regex else None
        self._id = OwnRegex(settings.id) if settings.id else None
        self._number = OwnRegex(settings.number) if settings.number else None
        self.citation = OwnRegex(settings.citation) if settings.numbers == "renumber" else None
        word = r"(?!\w)" if settings.opening[-1:].isalnum() else ""
        self._opening = re.compile(re.escape(settings.opening) + word)

    def runs(self, text: str) -> list[list[PlacedDocument]]:
        """The runs of two documents or more, from left to right. Linear in the length of the text.

        Raises:
            TooSlow: a search takes too long.
        """
        settings = self.settings
        found: Iterable[list[_Span]]
        if self._regex is not None:
            found = _joined(text, (_trimmed(text, each.start, each.end) for each in self._regex.find(text)))
        elif settings.separator:
            found = self._separated(text)
        else:
            found = _joined(text, self._delimited(text))
        return [
            [self._document(text, start, end) for start, end in run]
            for run in found
            if _LEAST_DOCUMENTS <= len(run) <= _MOST_DOCUMENTS
        ]

    def _delimited(self, text: str) -> Sequence[_Span]:
        """The documents between opening and closing text; none if two are nested."""
        spans: list[_Span] = []
        opening = self._opening.search(text)
        while opening is not None:
            closing = text.find(self.settings.closing, opening.end())
            if closing < 0:
                break
            following = self._opening.search(text, opening.end())
            if following is not None and following.start() < closing:
                return ()
            spans.append((opening.start(), closing + len(self.settings.closing)))
            opening = None if following is None else self._opening.search(text, spans[-1][1])
        return spans

    def _separated(self, text: str) -> Iterator[list[_Span]]:
        """The documents of each section that has separators; each section is a run."""
        settings = self.settings
        at = text.find(settings.after)
        while at >= 0:
            start = at + len(settings.after)
            end = text.find(settings.before, start) if settings.before else len(text)
            if end < 0:
                return
            run: list[_Span] = []
            for piece in text[start:end].split(settings.separator):
                span = _trimmed(text, start, start + len(piece))
                if span[0] < span[1]:
                    run.append(span)
                start += len(piece) + len(settings.separator)
            yield run
            at = text.find(settings.after, end)

    def _document(self, text: str, start: int, end: int) -> PlacedDocument:
        inside = text[start:end]
        name: str | None = ""
        if self._id is not None:
            span = _first_value(self._id, inside)
            name = None if span is None else inside[slice(*span)]
        span = None if self._number is None else _first_value(self._number, inside)
        return PlacedDocument(start, end, name, span and (start + span[0], start + span[1]))


def _first_value(regex: OwnRegex, text: str) -> _Span | None:
    """Where the first group of the first match stands in a text; None if that is nowhere or nothing."""
    found = next(regex.find(text), None)
    return found.value if found is not None and found.value[0] < found.value[1] else None


def _joined(text: str, spans: Iterable[_Span]) -> list[list[_Span]]:
    """Spans as runs."""
    runs: list[list[_Span]] = []
    for start, end in spans:
        if start >= end:
            continue
        if runs and _BETWEEN.fullmatch(text, runs[-1][-1][1], start):
            runs[-1].append((start, end))
        else:
            runs.append([(start, end)])
    return runs


def _trimmed(text: str, start: int, end: int) -> _Span:
    """A span without blanks at its ends; empty if it is blank."""
    inside = text[start:end]
    begin = start + len(inside) - len(inside.lstrip())
    return begin, max(begin, start + len(inside.rstrip()))
