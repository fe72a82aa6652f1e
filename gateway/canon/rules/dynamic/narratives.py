"""Finds texts in which a time is their own: diaries, stories, exercises, and texts to translate or correct.

The time in such a text is the text's own, also where its sentence says "now". Such a text begins behind a heading that
names its kind, or behind a task in front of a blank line; it ends at a heading that announces instructions or context.
Without either, a time in front of words in the first person belongs to what the writer reports.
"""

import re
from collections.abc import Iterator, Sequence

from gateway.canon.code_spans import touched
from gateway.canon.lexicon import alternatives, entries
from gateway.canon.rules.dynamic.movable_pieces import VaryingValue, lowered
from gateway.canon.rules.dynamic.quoted_data import Line, kind_of, speaks_of_data


def _words(section: str) -> str:
    return alternatives(entries("narratives", section))


_FRONT = rf"[\s#*_=\-–—\"“«]*(?:(?:(?:{_words('in_front')})\s?(?<=[\s'])|[^\W\d_]+['’]s\s))?"
_NUMERAL = r"(?:\d{1,4}|[ivxlc]{1,7}|[一二三四五六七八九十百]{1,4})"
_AROUND = "|".join(
    rf"{re.escape(front)}\s?{_NUMERAL}\s?{re.escape(behind)}"
    for front, behind in (each.split(" ") for each in entries("narratives", "numbered_around"))
)
_HEADING = re.compile(
    rf"{_FRONT}(?:"
    # "Diary of Anne", but not "Diary entries are short".
    rf"(?:{_words('kinds')})(?!\w)(?=\s*(?:$|[\d,.:;–—\-(|/*_#=\"”»]|(?:{_words('behind')})(?:(?<=')|(?!\w))|(?-i:[A-ZÀ-ÞА-ЯЁІЇӘҒҚҢӨҰҮ])))"
    rf"|(?:{_words('kinds_unspaced')})(?=$|[\s\d、，,。.:：（(「『《―—\-])"
    rf"|(?:{_words('numbered')})\s(?:№\s?)?{_NUMERAL}(?=$|[.:)–—,\-*]|\s*(?:$|[(–—\-]|(?-i:[A-ZÀ-ÞА-ЯЁІЇӘҒҚҢӨҰҮ])))"
    rf"|(?:{_words('numbered_unspaced')})\s?{_NUMERAL}(?!\w)|{_AROUND}"
    # The heading is short: it ends with its line or with a full stop or colon.
    r")(?:[^.!?:。！？：\n]|\.(?=\d)|:(?=\d)){0,60}(?:[.!?:](?=\s|$)|[。！？：]|$)",
    re.IGNORECASE,
)
_TASK = re.compile(rf"(?:^|(?<=[.!?]\s))[\s#*_>\-]*(?:{_words('tasks')})(?!\w)", re.IGNORECASE)
_TASK_WITHIN = re.compile(_words("tasks_within"))
_NEXT_TEXT = re.compile(rf"(?<!\w)(?:{_words('next_text')})(?!\w)", re.IGNORECASE)
_LONGEST_TASK = 300
_FRAMED = ("<", "```", "~~~", "#", ">")
"""What begins like this has an end of its own."""

_I = re.compile(
    r"[\s.!?。！？…,;、，)\]*_–—]*"
    rf"(?:(?:{alternatives(entries('labels', 'joining'))})\s+)?"
    rf"(?:(?:{_words('first_person')})(?:(?<=')|(?![\w'’]))|{_words('first_person_unspaced')})"
)
_SETS = ":=：>"
_NEXT_SENTENCE = re.compile(r"\s*(?:[.!?…]\s+|[。！？]\s*)\S")
_BULLETS = " \t>#*•–_-"
_BEHIND = 120


class Narratives:
    """The narratives in a text.

    Args:
        text: The text.
        lines: Its lines.
        tenant: Its tenant; caches are per tenant.
    """

    def __init__(self, text: str, lines: Sequence[str], tenant: str = "") -> None:
        self._text = text
        self._ranges = list(_ranges(lines, tenant))

    def include(self, finding: VaryingValue) -> bool:
        """Whether a time belongs to a narrative. A label with a colon in a line of its own does not."""
        return not self.is_field(finding) and (
            self.hold(finding)
            or _I.match(lowered(self._text[finding.until : finding.until + _BEHIND].split("\n\n", 1)[0])) is not None
        )

    def hold(self, finding: VaryingValue) -> bool:
        """Whether a finding stands behind such a heading or task."""
        return touched(self._ranges, finding.about, finding.until)

    def is_field(self, finding: VaryingValue) -> bool:
        """Whether it is the value of an element, or all that stands in its line behind a label and a colon."""
        text = self._text
        begin = max(text.rfind("\n", 0, finding.about) + 1, finding.about - _BEHIND)
        behind = text[finding.until : finding.until + _BEHIND].split("\n", 1)[0]
        label = text[finding.about : finding.start]
        if label.rstrip().endswith(">"):
            return True
        is_set = any(each in label for each in _SETS)
        return is_set and not text[begin : finding.about].strip(_BULLETS) and not _NEXT_SENTENCE.match(behind)


def _ranges(lines: Sequence[str], tenant: str) -> Iterator[tuple[int, int]]:
    """The narratives, as offsets."""
    at = 0
    begin = -1
    task = False
    for number, line in enumerate(lines):
        bare = line.strip()
        if task and bare:
            begin = at if begin < 0 and not bare.startswith(_FRAMED) else begin
            task = False
        if begin >= 0:
            kind = kind_of(line, tenant)
            if kind.line is Line.OTHER_HEADING and kind.is_of_now:
                yield begin, at
                begin = -1
        if begin < 0 and bare and _HEADING.match(line):
            begin = at
        if begin < 0 and bare and number + 1 < len(lines) and not lines[number + 1].strip():
            alone = number == 0 or not lines[number - 1].strip()
            task = _is_task(line, alone=alone)
        at += len(line) + 1
    if begin >= 0:
        yield begin, at


def _is_task(line: str, *, alone: bool) -> bool:
    """Whether a line in front of a blank one asks for work on the text behind it.

    Args:
        line: The line.
        alone: Whether it is a paragraph of its own; else it has to speak of the text.
    """
    if len(line) > _LONGEST_TASK:
        return False
    if alone and (_TASK.match(line) or _TASK_WITHIN.search(line)):
        return True
    task = _TASK.search(line) or _TASK_WITHIN.search(line)
    return task is not None and (_NEXT_TEXT.search(line) is not None or speaks_of_data(line[task.start() :]))
