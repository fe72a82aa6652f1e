"""Finds the pieces to move in a text: built-in kinds of values, and the operator's own slots.

Findings are cached, because leading messages recur with every request. A date with an ambiguous label counts only if
the lines around it do not look like data.
"""

import dataclasses
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from gateway.canon.code_spans import touched
from gateway.canon.lexicon import alternatives, entries
from gateway.canon.rules.dynamic.context_objects import context_objects, masked, values_of
from gateway.canon.rules.dynamic.finding import LONGEST_KNOWN, findings, findings_of
from gateway.canon.rules.dynamic.id_finder import BILLING
from gateway.canon.rules.dynamic.movable_pieces import MovablePiece, Need, VaryingValue, lowered, pieces
from gateway.canon.rules.dynamic.narratives import Narratives
from gateway.canon.rules.dynamic.not_taken import NotTaken
from gateway.canon.rules.dynamic.opening_time import opening_time
from gateway.canon.rules.dynamic.quoted_data import CONTEXT_LABELS, CONTEXT_WITHOUT_BLANKS, QuotedData
from gateway.canon.texts import LONGEST_TEXT
from gateway.config.operator_patterns import Found, OwnRegex, TooSlow
from gateway.core.text_memo import text_memo

if TYPE_CHECKING:
    from gateway.config.canon_settings import DynamicSuffixSettings, SlotSettings

_LABELLED = re.compile(r"\s*(?:[-*•]\s+)?[*_]*([^:：=\n]{1,40}?)[*_]*\s*[:：=](?!//)")
_WORDS = re.compile(r"[^\W\d_]+")
_DATE_ALONE = re.compile(r"[\s*_\-•]*[\d:./\-TZ ,]{8,40}$")
_LETTER = re.compile(
    rf"\s*(?:(?:{alternatives(entries('documents', 'greetings'))})(?!\w)[^\n.:]{{0,40}}[,!،，]\s*$"
    rf"|(?:{alternatives(entries('documents', 'closings'))})(?!\w)[^\n.:]{{0,20}}[,!]?\s*$"
    rf"|(?:{alternatives(entries('documents', 'letter_headers'))})\s?:"
    rf"|{alternatives(entries('documents', 'letter_words'))})",
    re.IGNORECASE,
)
_LONGEST_GREETING = 80
_RUN = 12
_AROUND = 8


def stands_in_data(lines: Sequence[str], number: int, pointer: re.Pattern[str]) -> bool:
    """Whether a line's neighbours suggest that it belongs to a letter, a record or a list.

    Args:
        lines: All lines.
        number: Index of the line.
        pointer: Matches a pointer; lines with pointers are ignored.
    """
    return stands_in_letter(lines, number) or any(
        _is_data(line) for line in _run(lines, number, -1, pointer) + _run(lines, number, 1, pointer)
    )


def stands_in_letter(lines: Sequence[str], number: int) -> bool:
    """Whether a line nearby is a greeting or another typical line of a letter."""
    around = lines[max(0, number - _AROUND) : number + _AROUND + 1]
    return any(len(line) <= _LONGEST_GREETING and _LETTER.match(line) for line in around)


def _run(lines: Sequence[str], number: int, step: int, pointer: re.Pattern[str]) -> list[str]:
    """The neighbouring lines in one direction, up to the first without a label."""
    run: list[str] = []
    at = number + step
    while 0 <= at < len(lines) and len(run) < _RUN:
        line = lines[at]
        if not pointer.search(line):
            if not line.strip() or not (_LABELLED.match(line) or _DATE_ALONE.match(line)):
                break
            run.append(line)
        at += step
    return run


def _is_data(line: str) -> bool:
    label = _LABELLED.match(line)
    if label is None or _DATE_ALONE.match(line):
        return True
    low = lowered(label[1])
    return not any(each in CONTEXT_LABELS for each in _WORDS.findall(low)) and not any(
        each in low for each in CONTEXT_WITHOUT_BLANKS
    )


class OperatorSlots:
    """Finds the values of the operator's slots.

    Args:
        settings: The slots.
    """

    def __init__(self, settings: "Sequence[SlotSettings]") -> None:
        self._slots = [(each, OwnRegex(each.regex)) for each in settings]

    def find(self, text: str, model: str, pointer: re.Pattern[str]) -> Iterator[VaryingValue]:
        """The slots' values in a text.

        Args:
            text: The text.
            model: The request's model.
            pointer: Matches a pointer; a value that contains one was moved before.
        """
        pointers: list[tuple[int, int]] | None = None
        for slot, regex in self._slots:
            if slot.models and model not in slot.models:
                continue
            for found in _all_or_none(regex, text):
                start, end = found.value
                if start < 0 or not text[start:end].strip():
                    continue
                if pointers is None:
                    pointers = [match.span() for match in pointer.finditer(text)]
                if touched(pointers, start, end):
                    continue
                about, until = (found.start, found.end) if _is_line(text, found.start, found.end) else (start, end)
                yield VaryingValue(start, end, about, until, slot.name, slot.varies == "conversation")


def _is_line(text: str, start: int, end: int) -> bool:
    """Whether the range is a whole line."""
    if text[end : end + 1] not in ("", "\n", "\r") or "\n" in text[start:end]:
        return False
    while start and text[start - 1] != "\n":
        if not text[start - 1].isspace():
            return False
        start -= 1
    return True


def _all_or_none(regex: OwnRegex, text: str) -> Sequence[Found]:
    """The matches of a regular expression; none if the search takes too long."""
    try:
        return list(regex.find(text))
    except TooSlow:
        return ()


_KNOWN_CHARS = 65_536
_KNOWN_TEXTS = 256
_LONG_SENTENCE = 16_384
"""Longer sentences are data, such as JSON in one line or Base64."""
_SENTENCE_ENDS = {
    **{mark: re.compile(re.escape(mark) + r"(?=\s)") for mark in ".!?"},
    **{mark: re.compile(mark) for mark in "。！？"},
}
"""By the mark. Expressions that begin with one character skip all others many times faster than one for all marks."""
_FEW = 3
_MOST_VALUES = 50
_TAG_NAME = re.compile(r"[\s>]")
_ROUNDS = 8
_BARE = (Need.NEAR, Need.COMPANION)


@dataclass(frozen=True, slots=True)
class PlacedFinding:
    """A finding, and the index of its line."""

    finding: VaryingValue
    line: int


class Search:
    """Finds the pieces to move in a text. Thread-safe.

    Args:
        settings: Kinds and slots to search for.
        pointer: Matches a pointer.
    """

    def __init__(self, settings: "DynamicSuffixSettings", pointer: re.Pattern[str]) -> None:
        self._slots = OperatorSlots(settings.slots) if settings.slots else None
        self._pointer = pointer
        # A line of a context block, or one whose first sentence was moved.
        begins = re.compile(rf"\s*(?:{pointer.pattern})")
        # Not a bound method: a reference cycle would keep the cache alive until the next garbage collection.
        self._found = partial(_found, frozenset(settings.built_in), pointer, begins)
        # The cache is the only mutable state, and has its own lock.
        self._known = text_memo(_KNOWN_TEXTS)(self._found)

    def pieces(
        self, text: str, now: float, model: str, mark: Callable[[int], str], *, tenant: str = ""
    ) -> list[MovablePiece]:
        """The pieces to move in a text, sorted.

        Repeats the search on the result, until it finds nothing more: whether a value is found may depend on neighbours
        that were moved.

        Args:
            text: The text.
            now: Unix seconds.
            model: The request's model.
            mark: Returns the pointer of the n-th piece, counted from 0.
            tenant: Tenant of the text. The cache is per tenant: response times must not reveal that another tenant sent
                the same text.
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
        """Findings in the text without the pieces found so far, with offsets in the original text."""
        kept: list[str] = []
        fronts: list[int] = [0]
        shifts: list[int] = [0]
        at = length = 0
        for number, piece in enumerate(out):
            pointer = piece.marked(mark(number))
            kept += (text[at : piece.start], pointer)
            length += piece.start - at + len(pointer)
            at = piece.end
            fronts.append(length)
            shifts.append(at - length)
        kept.append(text[at:])
        more: list[MovablePiece] = []
        for piece in self._once("".join(kept), now, model, tenant):
            number = bisect_right(fronts, piece.start) - 1
            # A piece across a pointer is skipped: it would move the pointer.
            if number == bisect_right(fronts, piece.end) - 1:
                by = shifts[number]
                more.append(dataclasses.replace(piece, start=piece.start + by, end=piece.end + by))
        return more

    def _once(self, text: str, now: float, model: str, tenant: str) -> list[MovablePiece]:
        found: list[VaryingValue] = []
        if len(text) <= LONGEST_TEXT:
            search = self._known if len(text) <= _KNOWN_CHARS else self._found
            found = current(search(text, tenant), now)
        if self._slots is not None:
            found += self._slots.find(text, model, self._pointer)
        return pieces(text, found) if found else []


def _found(
    built_in: Set[str], pointer: re.Pattern[str], begins: re.Pattern[str], text: str, tenant: str
) -> tuple[PlacedFinding, ...]:
    """All findings of the built-in kinds, regardless of the time."""
    objects = context_objects(text)
    values = [each for each in values_of(objects) if not pointer.search(text, each.start, each.end)]
    text = masked(text, objects)
    lines = text.split("\n")
    placed: list[PlacedFinding] = []
    by_line: Iterable[Sequence[VaryingValue]]
    if max(map(len, lines)) <= LONGEST_KNOWN:
        by_line = findings_of(lines, True, True, tenant)
    else:
        by_line = (_in_line(line, tenant) for line in lines)
    starts = list(accumulate(map(len, lines), initial=0))  # without line feeds
    for number, found in enumerate(by_line):
        if found and not begins.match(lines[number]):
            at = starts[number] + number
            placed += (PlacedFinding(each.moved(at), number) for each in found if kind_name(each) in built_in)
    for each in values:
        if kind_name(each) in built_in:
            placed.append(PlacedFinding(each, text.count("\n", 0, each.start)))
    taken: list[PlacedFinding] = []
    if placed:
        taken += (each for each, reason in placement(text, lines, placed, pointer, tenant) if reason is None)
    first = opening_time(lines) if "time" in built_in else None
    if first is not None and not stands_in_letter(lines, 0):
        taken.append(PlacedFinding(first, 0))
    return tuple(taken)


def placement(
    text: str, lines: Sequence[str], placed: Sequence[PlacedFinding], pointer: re.Pattern[str], tenant: str
) -> Iterator[tuple[PlacedFinding, NotTaken | None]]:
    """Findings, each with why it is not taken where it stands; None if it is.

    Args:
        text: The text.
        lines: Its lines.
        placed: The findings.
        pointer: Matches a pointer.
        tenant: Its tenant.
    """
    repeated = _repeated_elements(text, placed)
    zones = QuotedData(text, tenant)
    marks = [found.span() for found in pointer.finditer(text)]
    left: list[PlacedFinding] = []
    for each in placed:
        reason = NotTaken.RECORD if id(each) in repeated else _zone(zones, each.finding)
        if reason is None and marks and touched(marks, each.finding.about, each.finding.until):
            reason = NotTaken.AT_POINTER
        if reason is None:
            left.append(each)
        else:
            yield each, reason
    # Lines behind the last finding have no effect, but for the one that shows whether a paragraph ends.
    upto = max((each.line for each in left), default=-1) + 2
    narratives = Narratives(text, lines[:upto], tenant)
    # What belongs to a narrative in one sentence of a line belongs to it in the other sentences.
    narrative_lines = {
        each.line for each in left if kind_name(each.finding) == "time" and narratives.include(each.finding)
    }
    few = sum(each.finding.need is Need.FEW for each in left) <= _FEW
    # So many are data, and the neighbours of each cost time.
    bare = sum(each.finding.need in _BARE for each in left)
    labelled = sum(each.finding.need not in (*_BARE, Need.FEW) for each in left)
    for each in left:
        need = each.finding.need
        if (not few and need is Need.FEW) or (
            need is not Need.FEW and (bare if need in _BARE else labelled) > _MOST_VALUES
        ):
            yield each, NotTaken.MANY
        elif need in _BARE and stands_in_data(lines, each.line, pointer):
            yield each, NotTaken.RECORD
        elif need is Need.ALOUD and stands_in_letter(lines, each.line):
            yield each, NotTaken.LETTER
        elif (
            each.line in narrative_lines and kind_name(each.finding) == "time" and not narratives.is_field(each.finding)
        ):
            yield each, NotTaken.NARRATIVE
        elif each.finding.is_sure and (narratives.hold(each.finding) or _is_doubtful(zones, lines, each, pointer)):
            yield PlacedFinding(each.finding.doubted(), each.line), None
        else:
            yield each, None


def _repeated_elements(text: str, placed: Sequence[PlacedFinding]) -> Set[int]:
    """The findings in XML elements, by ``id``, if two of the elements have the same name: they are records."""
    elements = [each for each in placed if text[max(0, each.finding.about - 1) : each.finding.about] == "<"]
    names = [_TAG_NAME.split(text[each.finding.about : each.finding.start].lower(), 1)[0] for each in elements]
    return set() if len(set(names)) == len(names) else {id(each) for each in elements}


def _is_doubtful(zones: QuotedData, lines: Sequence[str], placed: PlacedFinding, pointer: re.Pattern[str]) -> bool:
    """Whether a sure label stands where a document may have one: then a date far from now is the document's."""
    finding = placed.finding
    return zones.is_strange(finding.about, finding.until) or stands_in_data(lines, placed.line, pointer)


def kind_name(finding: VaryingValue) -> str:
    """The kind of a finding, as in ``dynamic_suffix.built_in``."""
    return "time" if finding.name == "time" else "id"


def _zone(zones: QuotedData, finding: VaryingValue) -> NotTaken | None:
    """Why a finding is not taken because of the zone of its text; None if it is."""
    if finding.name == BILLING:
        return None
    if finding.need in (Need.NEAR, Need.COMPANION, Need.ALOUD) and zones.is_strange(finding.about, finding.until):
        return NotTaken.UNKNOWN_HEADING
    return NotTaken.IN_DATA if zones.hold(finding.about, finding.until) else None


def _in_line(line: str, tenant: str) -> Sequence[VaryingValue]:
    """Findings in a line; a long one is searched sentence by sentence."""
    if len(line) <= LONGEST_KNOWN:
        return findings(line, True, True, tenant)
    ends = [0, *_sentence_ends(line), len(line)]
    first, *others = (line[start:end] if end - start <= _LONG_SENTENCE else "" for start, end in pairwise(ends))
    found = (findings(first, True, False, tenant), *findings_of(others, False, False, tenant))
    return [each.moved(start) for start, some in zip(ends, found, strict=False) for each in some]


def _sentence_ends(line: str) -> list[int]:
    there = [ending for mark, ending in _SENTENCE_ENDS.items() if mark in line]
    return sorted([each.end() for ending in there for each in ending.finditer(line)])


def current(placed: Sequence[PlacedFinding], now: float) -> list[VaryingValue]:
    """The findings that are about the current time: those whose label says so, and those near now. Of what is no
    readable date, some kinds need one beside them."""
    if not placed:
        return []
    near = [each for each in placed if _counts(each.finding, now)]
    dated = {each.line for each in near if each.finding.read is not None}
    return [
        each.finding
        for each in near
        if each.finding.need is not Need.COMPANION or not dated.isdisjoint((each.line - 1, each.line, each.line + 1))
    ]


def _counts(finding: VaryingValue, now: float) -> bool:
    return finding.read is None or finding.is_sure or finding.read.is_near(now)
