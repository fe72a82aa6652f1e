"""Finds a time in brackets at the very beginning of a text: ``[2026-11-21 10:02] You are ...``.

Logs, transcripts and lists of changes begin in the same way. They are left alone: another line begins with a bracket
and a digit, the bracket holds no time of day, or the line goes on with anything but words to the assistant.
"""

import re
from collections.abc import Sequence

from gateway.canon.recognizer.calendar_words import marked
from gateway.canon.recognizer.kinds import MOMENT
from gateway.canon.recognizer.moments import moment
from gateway.canon.rules.dynamic.finding import is_addressed, whole_value
from gateway.canon.rules.dynamic.movable_pieces import VaryingValue, lowered

_OPENING = re.compile(r"[\[【(（]([^\[\]【】()（）\n]{10,60})[\]】)）]")
_ANOTHER = re.compile(r"\n[ \t]*(?:[\[【(]\s*)?\d")
_STARTS = 40


def opening_time(lines: Sequence[str]) -> VaryingValue | None:
    """The time at the beginning, with its brackets; None if there is none.

    Args:
        lines: The lines of the text.
    """
    opening = _OPENING.match(lines[0])
    if opening is None:
        return None
    inside = opening[1].strip()
    marks = marked(inside)
    match = MOMENT.match(marks)
    if match is None or whole_value(inside, marks, match.end())[1] < len(inside):
        return None
    read = moment(inside)
    if read is None or not read.days or read.second is None:
        return None
    end = opening.end()
    behind = lines[0][end:].strip()
    if behind and not is_addressed(lowered(lines[0]), end):
        return None
    if any(_ANOTHER.match("\n" + line[:_STARTS]) for line in lines[1:]):
        return None
    return VaryingValue(0, end, 0, end, "time", False, read)
