"""``unicode``: composes characters (NFC), and removes characters without width."""

import re
import unicodedata
from collections.abc import Iterator
from typing import ClassVar

from gateway.canon.code_spans import Ranges, fenced, touched
from gateway.canon.rule import NOTHING, Detected, Edit, Fields, RuleContext
from gateway.canon.rules.text_replacements import (
    MAX_EDITS,
    TextReplacement,
    exchanged,
    text_edits,
    written_strings,
    written_texts,
)
from gateway.canon.texts import Text
from gateway.core.canonical import RuleName

# Zero width space, word joiner, byte order mark. Not the joiners U+200C and U+200D: they carry meaning.
_ZERO_WIDTH = "\u200b\u2060\ufeff"
_REMOVED = dict.fromkeys(map(ord, _ZERO_WIDTH))
# Characters that are their own composed form and never combine with the preceding character, so that a text can be
# composed piecewise between them. Not complete, but enough for most texts.
_NEVER_COMBINING = (
    "\\x00-\\u02ff\u0388-\u03ff\u0400-\u0482\u048a-\u052f\u05d0-\u05ea\u0620-\u064a"
    "\u1e00-\u1eff\u2010-\u2027\u2030-\u205e\u3003-\u3029\u3041-\u3096\u309b-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
    "\uff01-\uff9d\U0001f300-\U0001faff"
)
_PIECE = re.compile(rf"[{_NEVER_COMBINING}]?[^{_NEVER_COMBINING}]+")
_MAX_MARKS = 60
"""Maximum number of combining marks on a letter; more are left alone. Sorting them takes quadratic time."""

_SAID = {
    "composed": "Letters and their marks become one character each, as most texts have them.",
    "unseen": "Characters without width are taken out.",
    RuleName.UNICODE.value: "Characters are composed, and those without width are taken out.",
}


class Unicode:
    """NFC, and no characters without width, in what the application and the user write; code stays as it is."""

    name: ClassVar[RuleName] = RuleName.UNICODE

    def detect(self, fields: Fields, given: RuleContext) -> Detected:  # noqa: ARG002 - independent of the context
        """See ``Rule``."""
        if not any(map(_is_dirty, written_strings(fields))):
            return NOTHING
        edits = [edit for text in written_texts(fields) if _is_dirty(text.text) for edit in _edits(text)]
        return Detected(edits) if edits else NOTHING


def _edits(text: Text) -> Iterator[Edit]:
    pieces = list(_pieces(text.text))
    # Code is located in the composed text, where fences may appear that the original does not have.
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
    return not text.isascii() and (
        any(char in text for char in _ZERO_WIDTH) or not unicodedata.is_normalized("NFC", text)
    )


def _pieces(text: str) -> Iterator[TextReplacement]:
    for match in _PIECE.finditer(text):
        before = match[0]
        seen = before if before.isprintable() else before.translate(_REMOVED)
        if len(seen) > _MAX_MARKS and _marks(seen) > _MAX_MARKS:
            continue
        after = unicodedata.normalize("NFC", seen)
        if after != before:
            what = "composed" if seen == before else "unseen" if after == seen else RuleName.UNICODE.value
            yield TextReplacement(match.start(), match.end(), after, what)


def _marks(text: str) -> int:
    """Maximum number of combining marks on one letter."""
    largest = marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.combining(char) else 0
        largest = max(largest, marks)
    return largest


def _outside(pieces: list[TextReplacement], code: Ranges) -> Iterator[TextReplacement]:
    moved = 0
    for piece in pieces:
        start = piece.start + moved
        moved += len(piece.after) - (piece.end - piece.start)
        if not touched(code, start, piece.end + moved):
            yield piece


def _short(text: str, piece: TextReplacement) -> TextReplacement:
    """The piece without unchanged characters at its ends."""
    before, after = text[piece.start : piece.end], piece.after
    most = min(len(before), len(after))
    front = next((n for n in range(most) if before[n] != after[n]), most)
    most -= front
    back = next((n for n in range(most) if before[-1 - n] != after[-1 - n]), most)
    return TextReplacement(piece.start + front, piece.end - back, after[front : len(after) - back], piece.what)
