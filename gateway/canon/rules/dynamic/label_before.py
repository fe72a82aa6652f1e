"""Labels of the current date or time, and of ids, in many languages; finds the label in front of a value."""

import re
from dataclasses import dataclass

from gateway.canon.lexicon import alternatives, entries
from gateway.canon.rules.dynamic.movable_pieces import lowered


def _set(section: str) -> frozenset[str]:
    return frozenset(entries("labels", section))


_NOW_UNSPACED = _set("now_unspaced")
ADVERBS = _set("adverbs")
"""Labels of current values that need a verb or a colon."""

ADVERBS_WITHOUT_VERB = _set("adverbs_without_verb")
"""Those of them that need none in front of a time of day."""

BEGINNINGS = _set("beginnings")
"""Labels of current values that include their verb."""

NOW_LABELS = _set("now") | _NOW_UNSPACED | ADVERBS | BEGINNINGS
"""Labels of current values, in lower case, with ASCII apostrophes."""

SURE_LABELS = (_set("now") | _NOW_UNSPACED) - ADVERBS - _set("now_of_a_place")
"""Labels that say that their value is the current one, for any date."""

SURE_FIELDS = SURE_LABELS | _set("now_fields")
"""Names of fields, as in JSON and XML, that say so; the words are separated by blanks."""

BARE_LABELS = _set("bare")
"""Labels of any date or time."""

WITHOUT_BLANKS = _NOW_UNSPACED | {each for each in BARE_LABELS if each[0] >= "\u0e00"}
"""Labels that may begin within a word, in scripts without spaces between words."""

VERBS_WITHOUT_BLANKS = _set("verbs_unspaced")
VERBS = _set("verbs") | VERBS_WITHOUT_BLANKS
"""Verbs between a label and its value."""

WEEKDAYS = _set("weekdays")
CONNECTORS = _set("connectors") | VERBS | WEEKDAYS
"""Words that may be between a label and its value."""

WITHOUT_BLANKS_BETWEEN = VERBS_WITHOUT_BLANKS | {each for each in WEEKDAYS if each[0] >= "\u0e00"}

JOINING = _set("joining")
"""Words that join two sentences."""

REQUEST_WORDS, CONVERSATION_WORDS = _set("request_words"), _set("conversation_words")
"""Words in front of ``id``."""

OTHER_REQUEST_IDS = _set("request_ids")
OTHER_CONVERSATION_IDS = _set("conversation_ids")

WORDS = re.compile(r"[^\W\d_]+")

LAST_WORDS = frozenset(
    words[-1] for each in (NOW_LABELS | BARE_LABELS) - WITHOUT_BLANKS if (words := WORDS.findall(each))
)
"""Last words of all labels with spaces: a line without one of them has no such label."""


_LABELS = NOW_LABELS | BARE_LABELS
_FIRM_LABELS = NOW_LABELS - ADVERBS - BEGINNINGS
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
        is_sure: Whether it says so for any date.
        is_loose: Whether it may occur in any sentence, such as "today".
        has_colon: Whether a colon or an equals sign is between it and the value.
        has_verb: Whether a verb is between them or part of it.
        is_next: Whether nothing is between them.
        needs_verb: Whether it needs a verb or a colon in front of a time of day.
    """

    start: int
    value: int
    is_now: bool
    is_sure: bool
    is_loose: bool
    has_colon: bool
    has_verb: bool
    is_next: bool
    needs_verb: bool


_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_GAPS = re.compile(r"[\s_\-./]+")


def field_name(name: str) -> str:
    """The name of a field in words: ``currentTime`` and ``current_time`` are "current time"."""
    return _GAPS.sub(" ", lowered(_CAMEL.sub(" ", name))).strip()


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
        if label in ADVERBS and not colon and (longer := _with_verb(tail[: -len(label)])):
            # "The current time is now": the label is in front of verb and adverb.
            tail, label, verb = *longer, True
        if label:
            start = begin + len(tail) - len(label)
            article = _ARTICLE.search(low, max(0, start - 6), start)
            start = article.start() if article else start
            verb = verb or label in BEGINNINGS
            loose = label in ADVERBS or label in BEGINNINGS
            is_now, is_sure = label in NOW_LABELS, label in SURE_LABELS
            needs_verb = loose and label not in ADVERBS_WITHOUT_VERB
            return Label(start, value, is_now, is_sure, loose, colon, verb, not between.strip(), needs_verb)
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


def _with_verb(tail: str) -> tuple[str, str] | None:
    """The text up to a label that is not loose and has a verb behind it at the end of a text, and the label; None if it
    does not end so."""
    tail = tail.rstrip(_BETWEEN)
    verb = _ending(tail, VERBS, _LONGEST_CONNECTOR, WITHOUT_BLANKS_BETWEEN)
    tail = tail[: len(tail) - len(verb)].rstrip(_BETWEEN)
    label = _ending(tail, _FIRM_LABELS, _LONGEST_LABEL, WITHOUT_BLANKS) if verb else ""
    return (tail, label) if label else None


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
