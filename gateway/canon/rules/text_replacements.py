"""Pieces of a text exchanged: what the rules for texts have in common."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from gateway.canon.edits import Edit
from gateway.canon.rule import Fields
from gateway.canon.texts import LEADING_ROLES, LONGEST_TEXT, Text, texts
from gateway.core.canonical import RuleName

MAX_EDITS = 200
"""Of one text. Of more, neighbours are joined: each of them is kept, shown, and has its tokens counted."""


class TextReplacement(NamedTuple):
    """A piece of a text, and what takes its place.

    Attributes:
        start: Its first character.
        end: Behind its last one.
        after: What takes its place.
        what: What is done, as a code.
    """

    start: int
    end: int
    after: str
    what: str


_WRITERS = LEADING_ROLES | {"user"}


def written_texts(fields: Fields) -> Iterator[Text]:
    """The texts that applications and users write, but for very long ones: not what a model said or a tool found, which
    is to stay as it is."""
    return (
        text
        for text in texts(fields)
        if (text.role in _WRITERS or text.path[0] == "prompt") and len(text.text) <= LONGEST_TEXT
    )


def text_edits(
    rule: RuleName, text: Text, pieces: Sequence[TextReplacement], said: Callable[[str], str]
) -> Iterator[Edit]:
    """The edits that exchange pieces of a text.

    Args:
        rule: Whose.
        text: The text.
        pieces: In order, none reaching into another one.
        said: The sentence for people, by code.
    """
    joined = -(-len(pieces) // MAX_EDITS) or 1
    for first in range(0, len(pieces), joined):
        some = pieces[first : first + joined]
        start, end = some[0].start, some[-1].end
        what = some[0].what if len({piece.what for piece in some}) == 1 else rule.value
        before, after = text.text[start:end], exchanged(text.text, some, start, end)
        yield Edit(rule, what, text.path, before, after, start, said(what))


def exchanged(text: str, pieces: Iterable[TextReplacement], start: int = 0, end: int | None = None) -> str:
    """A text, or what stands in it from ``start`` to before ``end``, with pieces of it exchanged."""
    out: list[str] = []
    for piece in pieces:
        out += (text[start : piece.start], piece.after)
        start = piece.end
    out.append(text[start:end])
    return "".join(out)


def then(text: str, first: Sequence[TextReplacement], second: Sequence[TextReplacement]) -> list[TextReplacement]:
    """Two exchanges as one: ``first`` of pieces of the text, ``second`` of pieces of what came out of it."""
    between = exchanged(text, first)
    # All pieces, as they stand in between: begin, end, by how much the first exchange moves what is behind.
    pieces: list[tuple[int, int, int, TextReplacement, bool]] = [
        (piece.start, piece.end, 0, piece, True) for piece in second
    ]
    moved = 0
    for piece in first:
        begin, longer = piece.start + moved, len(piece.after) - (piece.end - piece.start)
        moved += longer
        pieces.append((begin, begin + len(piece.after), longer, piece, False))
    pieces.sort(key=lambda each: each[:2])
    out: list[TextReplacement] = []
    moved = number = 0
    while number < len(pieces):
        start, end, before, what = *pieces[number][:2], moved, pieces[number][3].what
        late: list[TextReplacement] = []
        while number < len(pieces) and pieces[number][0] <= end:
            _, last, longer, piece, is_late = pieces[number]
            end, moved, number = max(end, last), moved + longer, number + 1
            late += [piece] if is_late else []
        out.append(TextReplacement(start - before, end - moved, exchanged(between, late, start, end), what))
    return out
