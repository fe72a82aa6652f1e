"""Values found in a text, and the pieces to move: lines or sentences of varying values only, else the values."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from gateway.canon.lexicon import entries
from gateway.canon.recognizer.moments import Moment


class Need(Enum):
    """Condition for moving a value, besides that a readable date is near now, or its label is sure."""

    NOTHING = auto()
    NEAR = auto()
    """The neighbours are not data, because the label may occur in any document."""
    ALOUD = auto()
    """Not in a letter, and not under an unknown heading, because the phrase may occur in any text."""
    COMPANION = auto()
    """A moved date is next to it: a time of day whose label may occur in any document."""
    FEW = auto()
    """Few others of its kind: an id without a label."""


@dataclass(frozen=True, slots=True)
class VaryingValue:
    """A value.

    Attributes:
        start: Start offset.
        end: End offset.
        about: Start of the text that belongs to it only: its label.
        until: End of the text that belongs to it only.
        name: Its name in reports and in the key of a conversation.
        lasts: Whether it is constant within a conversation.
        read: The parsed date, if it is one.
        need: Condition for moving it.
        is_sure: Whether its label says that it is the current one, so that a date far from now counts, too:
            clocks may be wrong, and requests are replayed.
        is_plain: Whether it is JSON without quotation marks, such as a number.
    """

    start: int
    end: int
    about: int
    until: int
    name: str
    lasts: bool
    read: Moment | None = None
    need: Need = Need.NOTHING
    is_sure: bool = False
    is_plain: bool = False

    def needing(self, need: Need) -> "VaryingValue":
        """A copy with another condition."""
        return dataclasses.replace(self, need=need)

    def doubted(self) -> "VaryingValue":
        """A copy that counts only with a date near now."""
        return dataclasses.replace(self, is_sure=False)

    def moved(self, by: int) -> "VaryingValue":
        """A copy with shifted offsets."""
        return dataclasses.replace(
            self, start=self.start + by, end=self.end + by, about=self.about + by, until=self.until + by
        )


def lowered(text: str) -> str:
    """The text in lower case, of the same length, with ASCII apostrophes and spaces."""
    low = text.lower()
    if len(low) != len(text):
        low = "".join(small if len(small := each.lower()) == 1 else each for each in text)
    return low if low.isascii() else low.translate(_PLAIN)


_PLAIN = {ord("’"): "'", 0xA0: " ", 0x202F: " ", 0x3000: " "}


_FRONT = re.compile(r"[ \t]*(?:(?:[-*+•–—]|\d{1,3}[.)]|#{1,6})[ \t]+)*")
_WORD = re.compile(r"\w+")
_JOINING = frozenset(entries("labels", "joining_values"))
_SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)|[。！？]+")
_LONGEST = 600


@dataclass(frozen=True, slots=True)
class MovablePiece:
    """A piece of a text that is moved.

    Attributes:
        start: Start offset.
        end: End offset.
        names: Names of the values in it.
        lasting: Names of the values that are constant within a conversation, each with the constant part of the piece.
        is_plain: As in ``VaryingValue``; so that the JSON stays valid, quotation marks are put around its pointer.
    """

    start: int
    end: int
    names: tuple[str, ...]
    lasting: tuple[tuple[str, str], ...]
    is_plain: bool = False

    def marked(self, pointer: str) -> str:
        """What takes its place."""
        return f'"{pointer}"' if self.is_plain else pointer


def pieces(text: str, found: Sequence[VaryingValue]) -> list[MovablePiece]:
    """The pieces to move for some values, sorted and disjoint."""
    out: list[MovablePiece] = []
    for start, end, values in _by_line(text, _merged(found)):
        out += _of_line(text, start, end, values)
    return out


@dataclass(frozen=True, slots=True)
class _Value:
    """Overlapping findings, merged."""

    finding: VaryingValue
    parts: tuple[VaryingValue, ...]


def _merged(found: Sequence[VaryingValue]) -> list[_Value]:
    out: list[_Value] = []
    for each in sorted(found, key=lambda one: (one.start, one.end)):
        if out and each.start < out[-1].finding.end:
            last = out.pop()
            one = last.finding
            union = dataclasses.replace(
                one,
                end=max(one.end, each.end),
                about=min(one.about, each.about),
                until=max(one.until, each.until),
            )
            out.append(_Value(union, (*last.parts, each)))
        else:
            out.append(_Value(each, (each,)))
    return out


def _by_line(text: str, values: Sequence[_Value]) -> Iterator[tuple[int, int, list[_Value]]]:
    """Values of one line, with the bounds of the line; in a very long line, of the surroundings of each value."""
    group: list[_Value] = []
    bounds = (0, -1)
    for value in values:
        start, end = value.finding.start, value.finding.end
        if start < bounds[1] and end <= bounds[1]:
            group.append(value)
            continue
        if group:
            yield (*bounds, group)
        left = text.rfind("\n", max(0, start - _LONGEST), start)
        right = text.find("\n", end, end + _LONGEST)
        cut = left < 0 and start > _LONGEST
        bounds = (start - _LONGEST if cut else left + 1, right if right >= 0 else min(len(text), end + _LONGEST))
        group = [value]
    if group:
        yield (*bounds, group)


def _of_line(text: str, start: int, end: int, values: Sequence[_Value]) -> Iterator[MovablePiece]:
    front = _FRONT.match(text, start, end)
    begin = min(front.end() if front else start, values[0].finding.start)
    line_end = max(begin + len(text[begin:end].rstrip()), values[-1].finding.end)
    is_line = (start == 0 or text[start - 1] == "\n") and (end == len(text) or text[end] == "\n")
    if is_line and _has_values_only(text, begin, line_end, values):
        yield _piece(text, begin, line_end, values)
        return
    for left, right, inside in _sentences(text, begin, line_end, values):
        if _has_values_only(text, left, right, inside):
            yield _piece(text, left, right, inside)
        else:
            yield from (_piece(text, each.finding.start, each.finding.end, (each,)) for each in inside)


def _has_values_only(text: str, start: int, end: int, values: Sequence[_Value]) -> bool:
    """Whether the range contains only values, their labels and joining words."""
    rest: list[str] = []
    at = start
    for value in values:
        if value.finding.about < at and value.finding.about < start:
            return False
        rest.append(text[at : max(at, value.finding.about)])
        at = max(at, value.finding.until)
    if at > end:
        return False
    rest.append(text[at:end])
    return all(word in _JOINING for piece in rest for word in _WORD.findall(piece)) and not any(
        each in '<>{}="' for piece in rest for each in piece
    )


def _sentences(text: str, start: int, end: int, values: Sequence[_Value]) -> Iterator[tuple[int, int, list[_Value]]]:
    """The sentences with values, each with its bounds."""
    ends = [
        found.end()
        for found in _SENTENCE_END.finditer(text, start, end)
        if not any(each.finding.about <= found.start() < each.finding.until for each in values)
    ]
    left = start
    remaining = list(values)
    for right in (*ends, end):
        inside = [each for each in remaining if each.finding.start < right]
        if inside:
            begin = left + len(text[left:right]) - len(text[left:right].lstrip())
            yield begin, max(right, inside[-1].finding.end), inside
            remaining = remaining[len(inside) :]
        left = right


def _piece(text: str, start: int, end: int, values: Sequence[_Value]) -> MovablePiece:
    parts = [part for value in values for part in value.parts]
    # The text that moves along with a lasting value belongs to the key of the conversation, without values that vary.
    rest = _without(text, start, end, [part for part in parts if not part.lasts])
    return MovablePiece(
        start,
        end,
        tuple(dict.fromkeys(part.name for part in parts)),
        tuple((part.name, rest) for part in parts if part.lasts),
        any(part.is_plain for part in parts),
    )


def _without(text: str, start: int, end: int, parts: Sequence[VaryingValue]) -> str:
    """The text of a range without some values."""
    kept: list[str] = []
    for part in parts:
        kept.append(text[start : max(start, part.start)])
        start = max(start, part.end)
    return "".join(kept) + text[start:end]
