"""Recognizes a question in front of documents that stood in the earlier prompt, too.

Nothing behind the first differing token of a prompt is reused. So a question that is another one with every request
makes all documents behind it unusable, however often they are sent.
"""

from collections.abc import Iterator, Sequence

from gateway.canon.document_places import DocumentPlace
from gateway.config.operator_patterns import TooSlow
from gateway.explain.diff.declared_documents import keyed_documents
from gateway.explain.diff.slot import are_alike
from gateway.explain.diff.text_blocks import LEAST_BYTES, QUESTIONS, TextPiece, line_start, text_pieces

_LEAST_SHARED_BYTES = 200
"""Documents of fewer bytes are not worth a hint: they fill a few blocks."""

_LEAST_SHARE = 0.5
"""Share of what follows the question that has to consist of blocks from the earlier prompt."""

_LONGEST_QUESTION = 1000
"""Characters of a question; a longer text is a document itself."""

_LEAST_WORDS = 3
_QUESTION_MARKS = ("?", "？", "؟")


def asks_first(
    before: str,
    after: str,
    at: int,
    places: Sequence[DocumentPlace] = (),
    *,
    is_marked: bool = False,
    is_named: bool = False,
) -> bool:
    """Whether two texts differ in a question, and most of what follows it is documents that both contain.

    Their order does not matter. Linear in the length of the texts.

    Args:
        before: The first text.
        after: The second, not equal to the first.
        at: Their first differing character.
        places: How the operator declares documents.
        is_marked: Whether only what ends with a question mark is a question.
        is_named: Whether only what ends with one, or begins with a label such as ``Question:``, is a question.
    """
    lines = line_start(before, at), line_start(after, at)
    found = _first_shared(list(_blocks(before, lines[0])), list(_blocks(after, lines[1])))
    for place in places if found is None else ():
        try:
            found = found or _first_shared(_declared(before, at, place), _declared(after, at, place))
        except TooSlow:
            continue
    if found is None:
        return False
    ends = _question_end(before, lines[0], found[0]), _question_end(after, lines[1], found[1])
    one, other = before[lines[0] : ends[0]].strip(), after[lines[1] : ends[1]].strip()
    return _are_questions(one, other, is_marked=is_marked, is_named=is_named)


def _question_end(text: str, start: int, end: int) -> int:
    """Where the tags, numbers and headings begin that stand between a question and the first document."""
    for piece in reversed(list(text_pieces(text[:end], start))):
        if not _opens_a_document(text[piece.start : end].strip(), piece):
            break
        end = piece.start
    return end


def _opens_a_document(text: str, piece: TextPiece) -> bool:
    """Whether a piece only introduces what follows it, such as ``<document id="1">``, ``[1]`` or ``# Context``."""
    if text.endswith(_QUESTION_MARKS):
        return False
    return not piece.key or text.startswith(("<", "#")) or (bool(piece.number) and _bytes(piece.key) < LEAST_BYTES)


_Block = tuple[int, str]
"""A block of text: offset and text."""


def _blocks(text: str, start: int) -> Iterator[_Block]:
    return ((piece.start, piece.key) for piece in text_pieces(text, start))


def _declared(text: str, at: int, place: DocumentPlace) -> list[_Block]:
    """The declared documents behind an offset.

    Raises:
        TooSlow: a search takes too long.
    """
    return [(document.start, document.key) for document in keyed_documents(text, place) if document.start >= at]


def _first_shared(before: Sequence[_Block], after: Sequence[_Block]) -> tuple[int, int] | None:
    """Where the first block that both texts contain begins in each; None unless such blocks make up most of the rest of
    the second text."""
    shared = {key for _, key in before if _bytes(key) >= LEAST_BYTES} & {key for _, key in after}
    starts = [next((start for start, key in blocks if key in shared), None) for blocks in (before, after)]
    if starts[0] is None or starts[1] is None:
        return None
    behind = [key for start, key in after if start >= starts[1]]
    same = sum(_bytes(key) for key in behind if key in shared)
    if same < max(_LEAST_SHARED_BYTES, _LEAST_SHARE * sum(map(_bytes, behind))):
        return None
    return starts[0], starts[1]


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _are_questions(before: str, after: str, *, is_marked: bool, is_named: bool) -> bool:
    """Whether both pieces of text may be questions of users rather than two versions of one text."""
    if not before or not after or max(len(before), len(after)) > _LONGEST_QUESTION:
        return False
    if all(
        text.endswith(_QUESTION_MARKS) or (not is_marked and text.lower().startswith(QUESTIONS))
        for text in (before, after)
    ):
        return True
    if is_marked or is_named or min(len(before.split()), len(after.split())) < _LEAST_WORDS:
        return False
    return not are_alike(before, after)
