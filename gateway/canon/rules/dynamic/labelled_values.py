"""Tests whether a text may hold a time with a label. Most do not, and a search for times takes many times longer."""

import re
from typing import NamedTuple

from gateway.canon.recognizer.calendar_words import WEEKDAY, marked
from gateway.canon.rules.dynamic.label_before import BARE_LABELS, LAST_WORDS, NOW_LABELS, WITHOUT_BLANKS, WORDS

_COLON = re.compile("[:=：]")
_DIGIT = re.compile(r"\d")
_REACH, _NEXT = 80, 30


class _Labels(NamedTuple):
    """Labels with the same end.

    Attributes:
        end: Their last word, with the signs behind it.
        now: Those of current values.
        bare: The others, which need a colon.
    """

    end: str
    now: tuple[str, ...]
    bare: tuple[str, ...]


def _labels_by_last_word() -> dict[str, list[_Labels]]:
    ends: dict[tuple[str, str], list[str]] = {}
    for label in sorted((NOW_LABELS | BARE_LABELS) - WITHOUT_BLANKS):
        if words := WORDS.findall(label):
            ends.setdefault((words[-1], label[label.rindex(words[-1]) :]), []).append(label)
    found: dict[str, list[_Labels]] = {}
    for (word, end), labels in ends.items():
        now = tuple(each for each in labels if each in NOW_LABELS)
        bare = tuple(each for each in labels if each not in NOW_LABELS)
        found.setdefault(word, []).append(_Labels(end, now, bare))
    return found


_LABELS = _labels_by_last_word()
_LABELS_WITHOUT_BLANKS = [
    _Labels(each, (each,), ()) if each in NOW_LABELS else _Labels(each, (), (each,)) for each in sorted(WITHOUT_BLANKS)
]


def may_have_label(low: str, words: frozenset[str]) -> bool:
    """Whether a text may have a label of a time.

    Args:
        low: The text in lower case.
        words: Its words.
    """
    if not words.isdisjoint(LAST_WORDS):
        return True
    return not low.isascii() and max(low, default="") >= "\u0e00" and any(each in low for each in WITHOUT_BLANKS)


def may_have_value(low: str, words: frozenset[str]) -> bool:
    """Whether a possible value follows a label; most sentences about time have none.

    Args:
        low: The text in lower case.
        words: Its words.
    """
    low = low.replace("_", " ")
    if any(_have_value(low, labels) for word in words & _LABELS.keys() for labels in _LABELS[word]):
        return True
    return not low.isascii() and any(_have_value(low, labels) for labels in _LABELS_WITHOUT_BLANKS)


def _have_value(low: str, labels: _Labels) -> bool:
    # Many labels have the same end: each place where one may stand is looked at once.
    at = low.find(labels.end)
    while at >= 0:
        end = at + len(labels.end)
        at = low.find(labels.end, end)
        if (
            low.endswith(labels.now, 0, end)
            or (low.endswith(labels.bare, 0, end) and _COLON.search(low, end, end + _NEXT) is not None)
        ) and (_DIGIT.search(low, end, end + _REACH) is not None or WEEKDAY in marked(low[end : end + _NEXT])):
            return True
    return False
