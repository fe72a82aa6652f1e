"""Searches texts for what varies, and remembers what it found in them: leading messages come again and again."""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache, partial

from gateway.canon.code_spans import touched
from gateway.canon.rules.dynamic.finding import findings
from gateway.canon.rules.dynamic.id_finder import BILLING
from gateway.canon.rules.dynamic.movable_pieces import MovablePiece, pieces
from gateway.canon.rules.dynamic.neighbours import stands_in_data, stands_in_letter
from gateway.canon.rules.dynamic.operator_slots import OperatorSlots
from gateway.canon.rules.dynamic.quoted_data import QuotedData
from gateway.canon.rules.dynamic.values import Need, VaryingValue
from gateway.canon.texts import LONGEST_TEXT
from gateway.config.canon_settings import DynamicSuffixSettings

_KNOWN_CHARS = 65_536
_KNOWN_TEXTS = 256
_LONG_LINE = 600
_LONG_SENTENCE = 16_384
"""Longer ones are data, such as JSON in one line or Base64."""
_SENTENCE = re.compile(r"(?<=[.!?])\s|(?<=[。！？])")
_FEW = 3
_ROUNDS = 8
_BARE = (Need.NEAR, Need.COMPANION)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A finding, and the number of its line."""

    finding: VaryingValue
    line: int


class Search:
    """Finds what is to be moved out of a text. Safe to use from several threads.

    Args:
        settings: What is looked for.
        pointer: What a pointer looks like.
    """

    def __init__(self, settings: DynamicSuffixSettings, pointer: re.Pattern[str]) -> None:
        self._slots = OperatorSlots(settings.slots) if settings.slots else None
        self._pointer = pointer
        # A line of a block, or one that a moved sentence began.
        begins = re.compile(rf"\s*(?:{pointer.pattern})")
        # A method of this would keep it, with all that is remembered, until the garbage collector comes by.
        self._found = partial(_found, frozenset(settings.built_in), pointer, begins)
        # The cache is the one thing here that is not read only, and has its own lock.
        self._known = lru_cache(maxsize=_KNOWN_TEXTS)(self._found)

    def pieces(
        self, text: str, now: float, model: str, mark: Callable[[int], str], *, tenant: str = ""
    ) -> list[MovablePiece]:
        """What is moved out of a text, in its order.

        Searched again where it was taken out, there is nothing more: what a line says may depend on its neighbours, and
        what an operator's pattern finds on anything.

        Args:
            text: The text.
            now: Unix seconds.
            model: The model it is for.
            mark: The pointer of the first of them, of the second and so on, counted from 0.
            tenant: Whose the text is. What was found is not remembered for others, who could tell by the time it takes
                that somebody else sent it.
        """
        out = self._once(text, now, model, tenant)
        found: Sequence[MovablePiece] = out
        for _ in range(_ROUNDS):
            if not found:
                return out
            found = self._more(text, out, now, model, tenant, mark=mark)
            out = sorted([*out, *found], key=lambda each: each.start)
        return []

    def _more(
        self, text: str, out: Sequence[MovablePiece], now: float, model: str, tenant: str, *, mark: Callable[[int], str]
    ) -> list[MovablePiece]:
        """What is found in the text without what was found, at its place in the whole text."""
        kept: list[str] = []
        fronts: list[int] = [0]
        shifts: list[int] = [0]
        at = length = 0
        for number, piece in enumerate(out):
            pointer = mark(number)
            kept += (text[at : piece.start], pointer)
            length += piece.start - at + len(pointer)
            at = piece.end
            fronts.append(length)
            shifts.append(at - length)
        kept.append(text[at:])
        more: list[MovablePiece] = []
        for piece in self._once("".join(kept), now, model, tenant):
            number = bisect_right(fronts, piece.start) - 1
            # One that reaches over a pointer is none: it would be moved with what was moved.
            if number == bisect_right(fronts, piece.end) - 1:
                by = shifts[number]
                more.append(MovablePiece(piece.start + by, piece.end + by, piece.names, piece.lasting))
        return more

    def _once(self, text: str, now: float, model: str, tenant: str) -> list[MovablePiece]:
        found: list[VaryingValue] = []
        if len(text) <= LONGEST_TEXT:
            search = self._known if len(text) <= _KNOWN_CHARS else self._found
            found = _current(search(text, tenant), now)
        if self._slots is not None:
            found += self._slots.find(text, model, self._pointer)
        return pieces(text, found) if found else []


def _found(
    built_in: Set[str], pointer: re.Pattern[str], begins: re.Pattern[str], text: str, tenant: str
) -> tuple[_Placed, ...]:
    """All that the built-in kinds find, whatever the time is."""
    lines = text.split("\n")
    placed: list[_Placed] = []
    at = 0
    for number, line in enumerate(lines):
        found = findings(line, True, True, tenant) if len(line) <= _LONG_LINE else _in_long_line(line, tenant)
        if found and not begins.match(line):
            placed += (_Placed(each.moved(at), number) for each in found if _kind(each) in built_in)
        at += len(line) + 1
    if not placed:
        return ()
    zones = QuotedData(text, tenant)
    placed = [each for each in placed if _may_go(zones, each.finding)]
    marks = [found.span() for found in pointer.finditer(text)]
    if marks:
        placed = [each for each in placed if not touched(marks, each.finding.about, each.finding.until)]
    few = sum(each.finding.need is Need.FEW for each in placed) <= _FEW
    return tuple(
        each
        for each in placed
        if (few or each.finding.need is not Need.FEW)
        and not (each.finding.need in _BARE and stands_in_data(lines, each.line, pointer))
        and not (each.finding.need is Need.ALOUD and stands_in_letter(lines, each.line))
    )


def _kind(finding: VaryingValue) -> str:
    return "time" if finding.name == "time" else "id"


def _may_go(zones: QuotedData, finding: VaryingValue) -> bool:
    if finding.name == BILLING:
        return True
    if finding.need in (Need.NEAR, Need.COMPANION, Need.ALOUD) and zones.is_strange(finding.about, finding.until):
        return False
    return not zones.hold(finding.about, finding.until)


def _in_long_line(line: str, tenant: str) -> list[VaryingValue]:
    """What is found in the sentences of a line that is more than a few."""
    out: list[VaryingValue] = []
    start = 0
    for end in (*(each.start() for each in _SENTENCE.finditer(line)), len(line)):
        if 0 < end - start <= _LONG_SENTENCE:
            out += (each.moved(start) for each in findings(line[start:end], start == 0, False, tenant))
        start = end
    return out


def _current(placed: Sequence[_Placed], now: float) -> list[VaryingValue]:
    """Those that are about now."""
    if not placed:
        return []
    near = [each for each in placed if each.finding.read is None or each.finding.read.is_near(now)]
    dated = {each.line for each in near if each.finding.read is not None}
    return [
        each.finding
        for each in near
        if each.finding.need is not Need.COMPANION or not dated.isdisjoint((each.line - 1, each.line, each.line + 1))
    ]
