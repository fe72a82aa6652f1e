"""Labels of the current date or time, and of ids, in many languages."""

import re

from gateway.canon.lexicon import entries


def _set(section: str) -> frozenset[str]:
    return frozenset(entries("labels", section))


_NOW_UNSPACED = _set("now_unspaced")
ADVERBS = _set("adverbs")
"""Labels of current values that need a verb or a colon."""

BEGINNINGS = _set("beginnings")
"""Labels of current values that include their verb."""

NOW_LABELS = _set("now") | _NOW_UNSPACED | ADVERBS | BEGINNINGS
"""Labels of current values, in lower case, with ASCII apostrophes."""

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
