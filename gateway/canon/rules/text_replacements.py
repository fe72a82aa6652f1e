"""Replacements of pieces of a text; shared by the rules that change texts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gateway.canon.rule import Edit, Fields
from gateway.canon.texts import LEADING_ROLES, LONGEST_TEXT, Text, messages, texts
from gateway.core.canonical import RuleName

MAX_EDITS = 200
"""Maximum number of edits per text; beyond it neighbours are joined, because each edit is stored and tokenized."""


class TextReplacement(NamedTuple):
    """A piece of a text, and its replacement.

    Attributes:
        start: Offset of its first character.
        end: Offset behind its last character.
        after: The replacement.
        what: Code of the change.
    """

    start: int
    end: int
    after: str
    what: str


_WRITERS = LEADING_ROLES | {"user"}


def written_strings(fields: Fields) -> list[str]:
    """The strings of ``written_texts``, for rules that find nothing in most prompts: they need no places."""
    found: list[Any] = [message.get("content") for message in messages(fields) if message.get("role") in _WRITERS]
    if set(map(type, found)) == {str} and max(map(len, found)) <= LONGEST_TEXT:
        return found
    return [text.text for text in written_texts(fields)]


def written_texts(fields: Fields) -> list[Text]:
    """The texts written by applications and users, except very long ones. Answers and tool results never change."""
    return [text for text in texts(fields, _WRITERS) if len(text.text) <= LONGEST_TEXT]


def text_edits(
    rule: RuleName, text: Text, pieces: Sequence[TextReplacement], summary: Callable[[str], str]
) -> Iterator[Edit]:
    """The edits that make some replacements.

    Args:
        rule: The rule that makes them.
        text: The text.
        pieces: The replacements, sorted and disjoint.
        summary: Returns the sentence for people for a code.
    """
    joined = -(-len(pieces) // MAX_EDITS) or 1
    for first in range(0, len(pieces), joined):
        some = pieces[first : first + joined]
        start, end = some[0].start, some[-1].end
        what = some[0].what if len({piece.what for piece in some}) == 1 else rule.value
        before, after = text.text[start:end], exchanged(text.text, some, start, end)
        yield Edit(rule, what, text.path, before, after, start, summary(what))


def exchanged(text: str, pieces: Iterable[TextReplacement], start: int = 0, end: int | None = None) -> str:
    """The text, or ``[start, end)`` of it, with the replacements made."""
    out: list[str] = []
    for piece in pieces:
        out += (text[start : piece.start], piece.after)
        start = piece.end
    out.append(text[start:end])
    return "".join(out)


def then(text: str, first: Sequence[TextReplacement], second: Sequence[TextReplacement]) -> list[TextReplacement]:
    """Combine replacements: ``first`` of pieces of the text, ``second`` of pieces of the result."""
    between = exchanged(text, first)
    # All pieces with their offsets in the intermediate text: start, end, growth by the first replacement.
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
