"""Finds the same blocks of text in another order, such as retrieved documents that come shuffled.

No separator has to be declared. A text is cut wherever any usual separator may stand: at line ends (so also at blank
lines, headings and ``---``), tags, markers such as ``[3]``, between the objects of a JSON list, and at marks such as
``||`` that come again in a line. A document is then one piece or several. Pieces that only come in another order are
found by counting. Numbers of documents may stay where they are or move along; scores may be others.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

_CUTS = {
    "<": r"(?=</?[A-Za-z][\w.:-]{0,40}(?:\s[^<>\n]{0,400})?>)",
    ">": r"(?<=>)(?=[^<\n])",
    "}": r"(?<=\})\s*,\s*(?=\{)",
    "[": r"(?<=\s)(?=\[\d{1,3}\]\s)",
}
"""Where a piece may begin or end, besides line ends and names, by a character that has to be there."""

_NAMES = "Doc", "Source", "Passage", "Chunk", "Snippet", "Article", "Excerpt", "Result"
_NAMED_CUT = rf"(?<=\s)(?=(?:Document|{'|'.join(_NAMES)})\s#?\d{{1,3}}\s?[:.)\-])"

_NUMBERED = re.compile(
    r"^(?P<front>[\s#*_>-]{0,8}"
    r"(?:<[A-Za-z][\w.:-]{0,40}\s(?:index|number|no|nr|n|position|rank|id)=[\"']?"
    r"|(?:[^\W\d_]{2,24}\s)?[\[(#]{0,2}))"
    r"(?P<number>\d{1,3})"
    r"(?=[\])\"'>]|[.:](?:\s|$)|\s?[-–—]\s|\s*$)"
)
"""A document's number in front of it: ``Document 3:``, ``[3]``, ``3.``, ``<doc index="3">``."""

_SCORED = r"(?:score|relevance|similarity|distance)\s?[:=]?\s?"
_VALUE = r"\d{0,3}[.,]?\d{1,20}%?"
_SCORE_IN_FRONT = re.compile(
    rf"[\])\s.:-]{{0,4}}(?:[\[(]?{_SCORED}{_VALUE}(?![\w.])[\])]?|[\[(]\d?[.,]\d{{1,20}}[\])])", re.IGNORECASE
)
_SCORE_BEHIND = re.compile(rf"[\[(]{_SCORED}{_VALUE}[\])]", re.IGNORECASE)
"""What a search says of a document, in front of it or behind it: ``(score 0.97)``, ``[0.97]``. It is another one with
every question, and no part of the document."""

_BETWEEN = re.compile(r"\s(?!--\s|\.\.\.\s)([^\w\s]{2,8}|[|¦‖•·¶§])(?=\s)")
_ASCII = [chr(number) for number in range(128)]
_ASCII_KINDS = bytes(
    ord(" " if each.isspace() else "|" if each == "|" else "a" if each.isalnum() or each == "_" else ".")
    for each in _ASCII
).ljust(256)
_LEAST_SEPARATORS = 2
_MOST_SEPARATORS = 4

_AROUND = " \t\r[],;*_-=#:.)>\"'"
"""Characters at the ends of pieces that separate documents."""

LEAST_BYTES = 20
"""A block of fewer bytes is a value, such as a name, and no text."""

_LEAST_MOVED = 2

QUESTIONS = ("question:", "user:", "human:", "query:", "q:", "input:", "frage:", "task:", "answer:")
"""Labels of a user's question, in lower case. What follows one is no document."""

_SHORT_QUESTION = 120
"""Characters up to which a last line without a question mark counts as a user's request."""

_MOST_PIECES = 100_000


class Reordered(NamedTuple):
    """Blocks that come in another order.

    Attributes:
        pieces: Number of different blocks that have another place.
    """

    pieces: int


class TextPiece(NamedTuple):
    """A piece of a text.

    Attributes:
        key: Its text without its number and what separates it.
        number: Its number; empty for none.
        start: Offset at which it begins, with its number.
    """

    key: str
    number: str
    start: int


def reordered(before: str, after: str, at: int, *, may_ask: bool) -> Reordered | None:
    """The blocks that come in another order from the first difference on; None if the difference is another one.

    From the line of the first difference on, both texts have to consist of the same pieces, up to the question. Linear
    in the length of the texts.

    Args:
        before: The first text.
        after: The second, not equal to the first.
        at: Their first differing character.
        may_ask: Whether a user's question may stand behind the blocks, without a label in front of it.
    """
    starts = line_start(before, at), line_start(after, at)
    # One piece alone, such as the rest of a long line, has no other order.
    is_one = after.find("\n", starts[1]) < 0 and not _cuts(after)
    found = None if is_one else _reordered(before, after, at, starts, may_ask=may_ask)
    separators = _separators(before, after, at) if found is None else ()
    if not separators:
        return found
    between = rf"\s(?:{'|'.join(map(re.escape, separators))})\s|"
    # Such a list may follow a label in its line.
    label = before.rfind(": ", starts[0], at)
    labels = (label + 2, starts[1] + label + 2 - starts[0]) if label >= 0 else starts
    return _reordered(before, after, at, labels, may_ask=may_ask, between=between)


def _separators(before: str, after: str, at: int) -> tuple[str, ...]:
    """What stands between blanks, again and again, in the line of the first difference, such as ``||`` or ``###``."""
    found = []
    for text in (before, after):
        end = text.find("\n", at)
        # From the line feed in front on: it is a blank, too.
        start = max(line_start(text, at) - 1, 0)
        line = text[start : end if end >= 0 else len(text)]
        found.append(_BETWEEN.findall(line) if _may_separate(line) else [])
        if not found[-1]:
            return ()
    counts = [Counter(each) for each in found]
    both = ((each, count) for each, count in (counts[0] & counts[1]).most_common() if count >= _LEAST_SEPARATORS)
    return tuple(each for each, _ in islice(both, _MOST_SEPARATORS))


def _may_separate(line: str) -> bool:
    """Whether ``_BETWEEN`` may find something, in a quarter of the time that it takes."""
    if not line.isascii():
        return True
    kinds = line.encode().translate(_ASCII_KINDS)
    return b" |" in kinds or b" .." in kinds or b" .|" in kinds


def _reordered(
    before: str, after: str, at: int, starts: tuple[int, int], *, may_ask: bool, between: str = ""
) -> Reordered | None:
    """The same as ``reordered``, from a position of each text on."""
    one, other = text_pieces(before, starts[0], between), text_pieces(after, starts[1], between)
    left, right = next(one, None), next(other, None)
    if left is None or right is None or not (_occurs(left, after, at) and _occurs(right, before, at)):
        # Most differences end here, after two searches.
        return None
    lefts, rights = [left, *_limited(one)], [right, *_limited(other)]
    if may_ask and _is_question(lefts[-1], rights) and _is_question(rights[-1], lefts):
        del lefts[-1], rights[-1]
    if not _are_same(lefts, rights) and not (may_ask and _drop_requests(lefts, rights) and _are_same(lefts, rights)):
        return None
    moved = {
        key for one, other in zip(lefts, rights, strict=True) if one.key != other.key for key in (one.key, other.key)
    }
    blocks = sum(len(key.encode("utf-8", "replace")) >= LEAST_BYTES for key in moved)
    return Reordered(blocks) if blocks >= _LEAST_MOVED else None


def _limited(pieces: "Iterator[TextPiece]") -> "Iterator[TextPiece]":
    """The pieces in front of the question, if it has a label."""
    for piece in islice(pieces, _MOST_PIECES):
        if piece.key.lower().startswith(QUESTIONS):
            return
        yield piece


def _are_same(lefts: "list[TextPiece]", rights: "list[TextPiece]") -> bool:
    """Whether two texts consist of the same pieces and numbers, in any order."""
    return (
        len(lefts) == len(rights)
        and Counter(piece.key for piece in lefts) == Counter(piece.key for piece in rights)
        and Counter(piece.number for piece in lefts) == Counter(piece.number for piece in rights)
    )


def _drop_requests(lefts: "list[TextPiece]", rights: "list[TextPiece]") -> bool:
    """Leaves out what follows the last closing tag, if both texts have the same one: a request of any length."""
    ends = [_behind_tags(pieces) for pieces in (lefts, rights)]
    if not all(ends) or lefts[ends[0] - 1].key != rights[ends[1] - 1].key:
        return False
    del lefts[ends[0] :], rights[ends[1] :]
    return True


def _behind_tags(pieces: "list[TextPiece]") -> int:
    """Index of the first piece behind the last closing tag; 0 without one."""
    return next((at for at in range(len(pieces), 0, -1) if pieces[at - 1].key.startswith("</")), 0)


def _is_question(piece: "TextPiece", others: "list[TextPiece]") -> bool:
    """Whether the last piece may be a question: the other text has it nowhere."""
    if piece.number or piece.key.startswith("<") or any(piece.key == other.key for other in others):
        return False
    return len(piece.key) <= _SHORT_QUESTION or piece.key.endswith(("?", "？"))


def _occurs(piece: "TextPiece", text: str, at: int) -> bool:
    """Whether a piece also stands in the other text, from the line of the first difference on."""
    return piece.key in text[line_start(text, at) :]


def line_start(text: str, at: int) -> int:
    """Beginning of the line of a character."""
    return text.rfind("\n", 0, at) + 1


def text_pieces(text: str, start: int, between: str = "") -> Iterator[TextPiece]:
    """The pieces from a position on that are more than a separator.

    Args:
        text: The text.
        start: The position.
        between: Where they begin and end besides the usual places: an alternative of a regular expression, with ``|``.
    """
    begin = start
    for found in _cut(text, between).finditer(text, start):
        if found.start() >= begin and (piece := _piece(text, begin, found.start())) is not None:
            yield piece
        begin = found.end()
    if (piece := _piece(text, begin, len(text))) is not None:
        yield piece


def _cut(text: str, between: str) -> re.Pattern[str]:
    """Finds where the pieces of a text begin and end."""
    return _compiled("|".join((rf"{between}\n", *_cuts(text))))


def _cuts(text: str) -> list[str]:
    # Each alternative is tried at every character, so those that cannot match are left out.
    cuts = [cut for mark, cut in _CUTS.items() if mark in text]
    if any(map(text.__contains__, _NAMES)):
        cuts.append(_NAMED_CUT)
    return cuts


_compiled = lru_cache(64)(re.compile)


def _piece(whole: str, start: int, end: int) -> TextPiece | None:
    text = whole[start:end]
    found = _NUMBERED.match(text)
    number = ""
    if found is not None:
        number = found["number"]
        text = text[found.end("number") :]
    key = _without_scores(text.strip()).strip(_AROUND)
    return TextPiece(key, number, start) if key or number else None


def _without_scores(text: str) -> str:
    if found := _SCORE_IN_FRONT.match(text):
        text = text[found.end() :]
    if text.endswith(("]", ")")):
        opening = max(text.rfind("["), text.rfind("("))
        if opening >= 0 and _SCORE_BEHIND.fullmatch(text, opening):
            text = text[:opening]
    return text
