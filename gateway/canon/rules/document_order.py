"""``document-order``: sorts documents that come in varying order, such as retrieved passages, as the operator declares.

Documents trade places; what stands between them stays. Numbers travel with their documents, or are given anew
(``document_numbers``).
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from gateway.canon.document_places import DocumentPlace, PlacedDocument
from gateway.canon.rule import NOTHING, Detected, Edit, Fields, RuleContext, applied
from gateway.canon.rules.document_numbers import NumberedRun, renumbered
from gateway.canon.rules.text_replacements import TextReplacement, text_edits
from gateway.canon.texts import LONGEST_TEXT, Text, messages, texts
from gateway.config.document_order_settings import DocumentOrderSettings
from gateway.config.operator_patterns import TooSlow
from gateway.core.canonical import RuleName
from gateway.core.json_edit import Path

_KEY_BYTES = 16
_RENUMBERED = "renumbered"

_SUMMARIES = {
    "sorted": "Documents are put in an order that does not depend on the order in which they were sent.",
    "renumbered": "Documents are put in an order that does not depend on the order in which they were sent, and are "
    "numbered in it.",
    "citation": "Citations follow the documents' new numbers.",
}


class _Run(NamedTuple):
    """A run of documents in a text of the prompt."""

    place: DocumentPlace
    text: Text
    documents: Sequence[PlacedDocument]

    @property
    def span(self) -> tuple[int, int]:
        return self.documents[0].start, self.documents[-1].end

    @property
    def renumbers(self) -> bool:
        return self.place.settings.numbers == "renumber"


class DocumentOrder:
    """Sorts documents by id, or by a hash of their text. Does nothing without a declaration.

    Codes of its edits: ``sorted``, ``renumbered`` (documents with new numbers), ``citation``.

    Args:
        settings: How documents are found.
    """

    name: ClassVar[RuleName] = RuleName.DOCUMENT_ORDER

    def __init__(self, settings: DocumentOrderSettings) -> None:
        self._places = [DocumentPlace(each) for each in settings.documents]

    def detect(self, fields: Fields, given: RuleContext) -> Detected:
        """See ``Rule``. Numbers that were given anew once stay so in the later turns of a conversation."""
        if not self._places:
            return NOTHING
        runs = self._runs(fields)
        if not runs:
            return NOTHING
        edits, remember = self._edits(fields, runs, given)
        if not edits or not self._is_settled(applied(fields, edits), given):
            return NOTHING
        return Detected(edits, remember)

    def _is_settled(self, fields: Fields, given: RuleContext) -> bool:
        """Whether a changed prompt needs no more changes: a declaration may find other documents in the new order."""
        return not self._edits(fields, self._runs(fields), given)[0]

    def _runs(self, fields: Fields) -> Sequence[_Run]:
        """The runs of all declarations, of two that overlap that of the earlier declaration."""
        found: dict[Path, list[_Run]] = {}
        for place in self._places:
            for text in texts(fields, place.roles):
                if len(text.text) > LONGEST_TEXT:
                    continue
                try:
                    runs = place.runs(text.text)
                except TooSlow:
                    continue
                there = found.setdefault(text.path, [])
                there += _beside(there, (_Run(place, text, run) for run in runs))
        return [run for there in found.values() for run in there]

    def _edits(
        self, fields: Fields, runs: Sequence[_Run], given: RuleContext
    ) -> tuple[list[Edit], Mapping[bytes, str]]:
        """The edits, and what later turns have to know."""
        pieces: dict[Path, list[TextReplacement]] = {}
        numbered: list[NumberedRun] = []
        for run in runs:
            order = _order(run)
            if not run.renumbers:
                if order:
                    pieces.setdefault(run.text.path, []).append(_sorted(run, order))
                order = ()
            if run.place.settings.number:
                numbered.append(NumberedRun(run.place, run.text, run.documents, order))
        remember: dict[bytes, str] = {}
        last_answer = _last_answer(fields)
        for changed, replacements in renumbered(fields, numbered):
            key = _key(changed, given.owner)
            if changed.text.message < last_answer and given.recall(key) is None:
                # It was not numbered anew when it was answered, so the answer cites the numbers as they were sent.
                continue
            remember[key] = _RENUMBERED
            for path, replacement in replacements:
                pieces.setdefault(path, []).append(replacement)
        by_path = {text.path: text for text in texts(fields)} if pieces else {}
        edits = [
            edit
            for path, found in pieces.items()
            for edit in text_edits(self.name, by_path[path], sorted(found), _summary)
        ]
        return edits, remember


def _beside(there: Sequence[_Run], runs: Iterable[_Run]) -> list[_Run]:
    """The runs that do not overlap earlier ones."""
    taken = sorted(run.span for run in there)
    kept: list[_Run] = []
    at = 0
    for run in runs:
        start, end = run.span
        while at < len(taken) and taken[at][1] <= start:
            at += 1
        if at == len(taken) or taken[at][0] >= end:
            kept.append(run)
    return kept


def _order(run: _Run) -> Sequence[int]:
    """The indexes of the documents in their new order; empty if they stay as they are, as where an id is missing."""
    if any(document.id is None for document in run.documents):
        return ()
    keys = [_sort_key(run, document) for document in run.documents]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return () if order == list(range(len(order))) else order


def _sort_key(run: _Run, document: PlacedDocument) -> tuple[str, bytes, int, str]:
    """What a document is sorted by: its id, the hash of its text without the number, and the number."""
    text, number = run.text.text[document.start : document.end], ""
    if document.number is not None:
        start, end = (offset - document.start for offset in document.number)
        text, number = f"{text[:start]}\0{text[end:]}", text[start:end]
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES).digest()
    return document.id or "", digest, len(number), number


def _sorted(run: _Run, order: Sequence[int]) -> TextReplacement:
    """The run with its documents in another order, and all that stands between them in its place."""
    text, (start, end) = run.text.text, run.span
    pieces: list[str] = []
    done = start
    for place, index in zip(run.documents, order, strict=True):
        document = run.documents[index]
        pieces += (text[done : place.start], text[document.start : document.end])
        done = place.end
    return TextReplacement(start, end, "".join(pieces), "sorted")


def _last_answer(fields: Fields) -> int:
    """Index of the last answer; -1 for none."""
    chat = messages(fields)
    return next((n for n in range(len(chat) - 1, -1, -1) if chat[n].get("role") == "assistant"), -1)


def _key(run: NumberedRun, owner: str) -> bytes:
    """Key under which it is stored that a run was numbered anew; differs in length from keys of conversations."""
    start, end = run.documents[0].start, run.documents[-1].end
    named = f"{owner}\0{run.place.settings.name}\0{run.text.text[start:end]}".encode("utf-8", "surrogatepass")
    return b"documents:" + hashlib.blake2b(named, digest_size=_KEY_BYTES).digest()


def _summary(what: str) -> str:
    return _SUMMARIES.get(what, _SUMMARIES["renumbered"])
