"""Near misses of ``dynamic-suffix``: values that look like a current time or an id and are not moved, with the reason.

For people who try the rule. It repeats the search without its short cuts, so it takes longer than the rule itself.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.canon.code_spans import touched
from gateway.canon.recognizer import id_kinds
from gateway.canon.recognizer.moments import moment
from gateway.canon.rules.dynamic.context_objects import context_objects, masked, values_of
from gateway.canon.rules.dynamic.dynamic_suffix import BlockForm
from gateway.canon.rules.dynamic.finding import elements_in, times_in
from gateway.canon.rules.dynamic.id_finder import ids_in
from gateway.canon.rules.dynamic.label_before import WORDS
from gateway.canon.rules.dynamic.movable_pieces import VaryingValue, lowered
from gateway.canon.rules.dynamic.not_taken import NotTaken, Refused
from gateway.canon.rules.dynamic.quoted_data import QuotedData
from gateway.canon.rules.dynamic.search import PlacedFinding, current, kind_name, placement
from gateway.canon.texts import LONGEST_TEXT

if TYPE_CHECKING:
    from gateway.config.canon_settings import DynamicSuffixSettings

_DIGIT, _LETTER = re.compile(r"[0-9]"), re.compile(r"[A-Za-z]")
_LONGEST_LINE = 4096
_SHOWN_CHARS = 60
_LEAST_ID = 12
_UNLABELLED = [
    kind.pattern
    for kind in (*id_kinds.SURE_KINDS, *id_kinds.KINDS)
    if kind.detail in {"jwt", "traceparent", "object_id", "hex", "ulid", "snowflake"}
]

_HOUR, _DAY = 3600.0, 86_400.0

_SAID = {
    NotTaken.WEAK_LABEL: "its label may stand in any document; it is taken at the beginning of a line, with a colon",
    NotTaken.HYPOTHETICAL: "its sentence is a condition or an example",
    NotTaken.QUOTED_TEXT: "what introduces it announces a quoted text",
    NotTaken.ATTRIBUTE: "it belongs to the words behind it",
    NotTaken.IN_SENTENCE: "its label stands within a sentence; give it a line or a sentence of its own",
    NotTaken.NOT_READABLE: "it does not look like an id: those have five digits, or letters and digits",
    NotTaken.CONSTANT: "its label is not that of a request or a conversation, so it may be the same every time;"
    " if it is not, declare it in canon.dynamic_suffix.slots",
    NotTaken.LINE_BEGIN: "it begins a line, as ids in lists and records do",
    NotTaken.IN_DATA: "it stands in a quotation, code, JSON, a table, an example or a document",
    NotTaken.UNKNOWN_HEADING: "it stands under a heading that may announce data",
    NotTaken.AT_POINTER: "it stands at the mark of a value that was moved before",
    NotTaken.MANY: "there are more than three ids without a label, or more than 50 values of its kind, as in data",
    NotTaken.RECORD: "the lines around it look like a record or a list, or several elements have the same name",
    NotTaken.LETTER: "the lines around it look like a letter",
    NotTaken.NARRATIVE: "it stands in a diary, a story, an exercise or a text to work on; give it a line of its own,"
    " with a label and a colon",
    NotTaken.ALONE: "it is a time of day, and no current date stands beside it",
}
_IN_PROSE = frozenset({NotTaken.IN_SENTENCE, NotTaken.WEAK_LABEL})
_ORDER = {reason: number for number, reason in enumerate((NotTaken.FAR, *_SAID, NotTaken.OFF, NotTaken.NO_LABEL))}
"""What is closest to being taken comes first."""


@dataclass(frozen=True, slots=True)
class NearMiss:
    """One value.

    Attributes:
        start: Start offset in the text.
        end: End offset.
        value: The value, cut to what can be shown.
        is_time: Whether it looks like a time; else like an id.
        reason: Why it is not taken.
        said: The same in words, with a time's distance from now.
    """

    start: int
    end: int
    value: str
    is_time: bool
    reason: NotTaken
    said: str


def near_misses(
    text: str, now: float, settings: "DynamicSuffixSettings", moved: Sequence[tuple[int, int]] = ()
) -> list[NearMiss]:
    """The near misses in a text: those that are closest to being taken first.

    Args:
        text: The text.
        now: Unix seconds.
        settings: The rule's settings.
        moved: Ranges of the text that the rule moves, sorted.
    """
    if len(text) > LONGEST_TEXT:
        return []
    pointer = BlockForm(settings).pattern
    marks = sorted([*moved, *(found.span() for found in pointer.finditer(text))])
    whole, objects = text, context_objects(text)
    text = masked(text, objects)
    lines, zones = text.split("\n"), QuotedData(text)
    placed = [PlacedFinding(each, text.count("\n", 0, each.start)) for each in values_of(objects)]
    refused: list[Refused] = []
    at = 0
    for number, line in enumerate(lines):
        if len(line) <= _LONGEST_LINE and (_DIGIT.search(line) or not line.isascii()):
            found, not_taken = _in_line(line)
            placed += (PlacedFinding(each.moved(at), number) for each in found)
            for each in not_taken:
                start, end = each.start + at, each.end + at
                is_data = each.reason in _IN_PROSE and zones.hold(start, end)
                refused.append(Refused(start, end, each.is_time, NotTaken.IN_DATA if is_data else each.reason))
        at += len(line) + 1
    refused += _off_or_placed(text, lines, placed, pointer, settings, now=now)
    distances = {(each.finding.start, each.finding.end): _distance(each.finding, now) for each in placed}
    out: dict[int, NearMiss] = {}
    for each in sorted(refused, key=lambda one: (one.start, _ORDER[one.reason])):
        if each.start in out or touched(marks, each.start, each.end):
            continue
        said = _said(each, distances.get((each.start, each.end)))
        value = whole[each.start : each.end]
        shown = value if len(value) <= _SHOWN_CHARS else value[: _SHOWN_CHARS - 1] + "…"
        out[each.start] = NearMiss(each.start, each.end, shown, each.is_time, each.reason, said)
    return sorted(out.values(), key=lambda each: (_ORDER[each.reason], each.start))


def _in_line(line: str) -> tuple[list[VaryingValue], list[Refused]]:
    """Findings in a line, regardless of its neighbours, and what only looks like one."""
    low = lowered(line)
    refused: list[Refused] = []
    found = ids_in(line, low, frozenset(WORDS.findall(low)), is_line=True, refused=refused)
    found += times_in(line, low, is_first=True, refused=refused)
    found += elements_in(line, low, found)
    taken = sorted((each.start, each.end) for each in found)
    refused = [each for each in refused if not touched(taken, each.start, each.end) and _counts(line, each)]
    known = sorted([*taken, *((each.start, each.end) for each in refused)])
    for pattern in _UNLABELLED:
        for match in pattern.finditer(line):
            if not touched(known, *match.span()) and _is_mixed(match[0]):
                refused.append(Refused(*match.span(), False, NotTaken.NO_LABEL))
                known = sorted([*known, match.span()])
    return found, refused


def _counts(line: str, refused: Refused) -> bool:
    """Whether a refused value looks enough like one: most times of day and weekdays in a text are no current ones."""
    value = line[refused.start : refused.end]
    if refused.reason is NotTaken.NO_LABEL:
        return moment(value) is not None
    return bool(_DIGIT.search(value))


def _is_mixed(value: str) -> bool:
    return len(value) >= _LEAST_ID and (value.isdecimal() or bool(_DIGIT.search(value) and _LETTER.search(value)))


def _off_or_placed(
    text: str,
    lines: Sequence[str],
    placed: Sequence[PlacedFinding],
    pointer: re.Pattern[str],
    settings: "DynamicSuffixSettings",
    *,
    now: float,
) -> Iterator[Refused]:
    """Findings that are not taken because of the settings, of where they stand, or of the time."""
    on = [each for each in placed if kind_name(each.finding) in settings.built_in]
    yield from (_refused(each, NotTaken.OFF) for each in placed if each not in on)
    left: list[PlacedFinding] = []
    for each, reason in placement(text, lines, on, pointer, ""):
        if reason is None:
            left.append(each)
        else:
            yield _refused(each, reason)
    taken = {id(each) for each in current(left, now)}
    for each in left:
        if id(each.finding) not in taken:
            yield _refused(each, NotTaken.ALONE if each.finding.read is None else NotTaken.FAR)


def _refused(placed: PlacedFinding, reason: NotTaken) -> Refused:
    finding = placed.finding
    return Refused(finding.start, finding.end, kind_name(finding) == "time", reason)


def _distance(finding: VaryingValue, now: float) -> float | None:
    return None if finding.read is None else finding.read.seconds_from(now)


def _said(refused: Refused, distance: float | None) -> str:
    what = "a time" if refused.is_time else "an id"
    match refused.reason:
        case NotTaken.FAR if distance is not None:
            when = f"{_span(abs(distance))} {'before' if distance < 0 else 'from'} now"
            return f"a time {when} is not taken as the current time"
        case NotTaken.FAR:
            return "a date that does not exist is not taken as the current time"
        case NotTaken.OFF:
            return f"canon.dynamic_suffix.built_in leaves {'time' if refused.is_time else 'id'} out"
        case NotTaken.NO_LABEL:
            example = "`Current time:`" if refused.is_time else "`Request id:`"
            return f"{what} without a label such as {example} is not taken; declare it in canon.dynamic_suffix.slots"
        case reason:
            return _SAID[reason]


def _span(seconds: float) -> str:
    days, hours = round(seconds / _DAY), round(seconds / _HOUR)
    return f"{days:,} days" if days > 2 else f"{hours} hours"
