"""Characters that look alike are made alike: composed letters, and nothing that nobody sees."""

import re
import unicodedata
from collections.abc import Iterator
from typing import ClassVar

from gateway.canon.code_spans import Ranges, fenced, touched
from gateway.canon.edits import Edit
from gateway.canon.rule import NOTHING, Detected, Fields, RuleContext
from gateway.canon.rules.text_replacements import MAX_EDITS, TextReplacement, exchanged, text_edits, written_texts
from gateway.canon.texts import Text
from gateway.core.canonical import RuleName

# Zero width space, word joiner, byte order mark. Not the joiners U+200C and U+200D: they carry meaning.
_UNSEEN = "\u200b\u2060\ufeff"
_TAKEN_OUT = dict.fromkeys(map(ord, _UNSEEN))
# A character of this set is its own composed form and never goes together with what stands in front of it, so a text
# can be composed piece by piece between them. Not all such characters, but those that most texts are made of.
_STEADY = (
    "\\x00-\\u02ff\u0388-\u03ff\u0400-\u0482\u048a-\u052f\u05d0-\u05ea\u0620-\u064a"
    "\u1e00-\u1eff\u2010-\u2027\u2030-\u205e\u3003-\u3029\u3041-\u3096\u309b-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
    "\uff01-\uff9d\U0001f300-\U0001faff"
)
_PIECE = re.compile(rf"[{_STEADY}]?[^{_STEADY}]+")
_MOST_MARKS = 60
"""On one letter. No language has as many, and bringing them into order takes time that grows with their square."""

_SAID = {
    "composed": "Letters and their marks become one character each, as most texts have them.",
    "unseen": "Characters without width are taken out.",
    RuleName.UNICODE.value: "Characters are composed, and those without width are taken out.",
}


class Unicode:
    """NFC, and no characters without width, in what the application and the user write; code stays as it is."""

    name: ClassVar[RuleName] = RuleName.UNICODE

    def detect(self, fields: Fields, given: RuleContext) -> Detected:  # noqa: ARG002 - the same whenever it is
        """What is to be composed or taken out."""
        edits = [edit for text in written_texts(fields) for edit in _edits(text)]
        return Detected(edits) if edits else NOTHING


def _edits(text: Text) -> Iterator[Edit]:
    if text.text.isascii() or not _is_dirty(text.text):
        return
    pieces = list(_pieces(text.text))
    # Code is where it will be once all is composed: what only then looks like a fence must not become one unnoticed.
    canonical = exchanged(text.text, pieces)
    if not canonical:
        return
    code = fenced(canonical)
    if code:
        pieces = list(_outside(pieces, code))
    if len(pieces) <= MAX_EDITS:
        pieces = [_short(text.text, piece) for piece in pieces]
    yield from text_edits(RuleName.UNICODE, text, pieces, _SAID.__getitem__)


def _is_dirty(text: str) -> bool:
    return any(char in text for char in _UNSEEN) or not unicodedata.is_normalized("NFC", text)


def _pieces(text: str) -> Iterator[TextReplacement]:
    for match in _PIECE.finditer(text):
        before = match[0]
        seen = before if before.isprintable() else before.translate(_TAKEN_OUT)
        if len(seen) > _MOST_MARKS and _marks(seen) > _MOST_MARKS:
            continue
        after = unicodedata.normalize("NFC", seen)
        if after != before:
            what = "composed" if seen == before else "unseen" if after == seen else RuleName.UNICODE.value
            yield TextReplacement(match.start(), match.end(), after, what)


def _marks(text: str) -> int:
    """How many marks stand on one letter, at most."""
    most = marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.combining(char) else 0
        most = max(most, marks)
    return most


def _outside(pieces: list[TextReplacement], code: Ranges) -> Iterator[TextReplacement]:
    moved = 0
    for piece in pieces:
        start = piece.start + moved
        moved += len(piece.after) - (piece.end - piece.start)
        if not touched(code, start, piece.end + moved):
            yield piece


def _short(text: str, piece: TextReplacement) -> TextReplacement:
    """The piece without what stays at its ends."""
    before, after = text[piece.start : piece.end], piece.after
    most = min(len(before), len(after))
    front = next((n for n in range(most) if before[n] != after[n]), most)
    most -= front
    back = next((n for n in range(most) if before[-1 - n] != after[-1 - n]), most)
    return TextReplacement(piece.start + front, piece.end - back, after[front : len(after) - back], piece.what)
