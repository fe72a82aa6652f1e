"""Finds the label in front of a value."""

import re
from dataclasses import dataclass

from gateway.canon.lexicon import alternatives, entries
from gateway.canon.rules.dynamic.labels import (
    ADVERBS,
    BARE_LABELS,
    BEGINNINGS,
    CONNECTORS,
    JOINING,
    NOW_LABELS,
    VERBS,
    WEEKDAYS,
    WITHOUT_BLANKS,
    WITHOUT_BLANKS_BETWEEN,
)

_LABELS = NOW_LABELS | BARE_LABELS
_LONGEST_LABEL = max(map(len, _LABELS))
_LONGEST_CONNECTOR = max(map(len, CONNECTORS))
_BACK = 90
_BETWEEN = " \t*_–—-|>,،、（(「\"'`[~"
_COLONS = ":=："
_ARTICLE = re.compile(rf"(?:(?<=\s)|^)(?:{alternatives(entries('labels', 'articles'))})\s?$")
_OPENING = ".!?。！？:;,،，：、(（|—–[>#*•\n-"
_PLACE = re.compile(r"(?<=[^\W\d_])\sin\s(?:[^\W\d_]+\s)?[^\W\d_]{3,}$")
_LAST_WORD = re.compile(r"[^\W\d_]+$")


@dataclass(frozen=True, slots=True)
class Label:
    """A label.

    Attributes:
        start: Start offset, including its article.
        value: Start offset of its value, including a weekday in front of the date.
        is_now: Whether it marks its value as current.
        is_loose: Whether it may occur in any sentence, such as "today".
        has_colon: Whether a colon or an equals sign is between it and the value.
        has_verb: Whether a verb is between them or part of it.
        is_next: Whether nothing is between them.
    """

    start: int
    value: int
    is_now: bool
    is_loose: bool
    has_colon: bool
    has_verb: bool
    is_next: bool


def label_before(low: str, at: int) -> Label | None:
    """The label whose value begins at an offset; None if there is none.

    Args:
        low: The text in lower case.
        at: The offset.
    """
    tail = low[max(0, at - _BACK) : at].replace("_", " ")
    begin = at - len(tail)
    value = at
    colon = verb = bracket = False
    between = tail[len(tail.rstrip()) :]
    for _ in range(6):
        shorter = tail.rstrip(_BETWEEN + _COLONS)
        between += tail[len(shorter) :]
        colon = colon or any(each in tail[len(shorter) :] for each in _COLONS)
        tail = shorter
        label = _ending(tail, _LABELS, _LONGEST_LABEL, WITHOUT_BLANKS)
        if label:
            start = begin + len(tail) - len(label)
            article = _ARTICLE.search(low, max(0, start - 6), start)
            start = article.start() if article else start
            verb = verb or label in BEGINNINGS
            loose = label in ADVERBS or label in BEGINNINGS
            return Label(start, value, label in NOW_LABELS, loose, colon, verb, not between.strip())
        if tail.endswith((")", "]", "）")) and not bracket:
            opened = max(tail.rfind(each, max(0, len(tail) - 40)) for each in "([（")
            if opened < 0:
                return None
            bracket, tail = True, tail[:opened]
            continue
        if place := _PLACE.search(tail):
            tail = tail[: place.start()]
            continue
        connector = _ending(tail, CONNECTORS, _LONGEST_CONNECTOR, WITHOUT_BLANKS_BETWEEN)
        if not connector:
            return None
        verb = verb or connector in VERBS
        tail = tail[: -len(connector)]
        if connector in WEEKDAYS:
            value = begin + len(tail)
            between = ""
        else:
            between += connector
    return None


def opens_sentence(low: str, start: int, *, clause: bool = False) -> bool:
    """Whether a sentence or a line begins at an offset.

    Args:
        low: The text in lower case.
        start: The offset.
        clause: Whether the beginning of a clause is enough.
    """
    front = low[max(0, start - 12) : start].rstrip(" \t*_")
    if not front or front[-1] in _OPENING:
        return clause or not front or front[-1] not in ",،，、"
    word = _LAST_WORD.search(front)
    return clause and word is not None and word[0] in JOINING


def _ending(tail: str, phrases: frozenset[str], longest: int, without_blanks: frozenset[str]) -> str:
    """The longest phrase at the end of a text; empty for none."""
    for length in range(min(longest, len(tail)), 0, -1):
        phrase = tail[-length:]
        if phrase in phrases:
            front = tail[-length - 1 : -length]
            if not (front.isalnum() or front == "'") or phrase in without_blanks:
                return phrase
    return ""
