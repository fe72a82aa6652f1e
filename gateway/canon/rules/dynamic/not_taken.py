"""Why a value that looks like a current time or an id is not moved."""

from enum import StrEnum
from typing import NamedTuple


class NotTaken(StrEnum):
    """The reason."""

    NO_LABEL = "no_label"
    """No label marks it as current, or as an id of the request or conversation."""
    WEAK_LABEL = "weak_label"
    """Its label may stand in any document, and not at the beginning of a line with a colon."""
    HYPOTHETICAL = "hypothetical"
    """The sentence is a condition or an example."""
    QUOTED_TEXT = "quoted_text"
    """What introduces it announces a quoted text."""
    ATTRIBUTE = "attribute"
    """It belongs to something else, as in "today's 10:00 train"."""
    IN_SENTENCE = "in_sentence"
    """Its label stands in the middle of a sentence, where it may mean anything."""
    NOT_READABLE = "not_readable"
    """It is no value that changes: without digits, a date or a word."""
    CONSTANT = "constant"
    """An id with a label that is not known; such ids are mostly constant."""
    LINE_BEGIN = "line_begin"
    """An id at the beginning of a line, as in lists and records."""
    OFF = "off"
    """Its kind is not in ``dynamic_suffix.built_in``."""
    IN_DATA = "in_data"
    """It stands in a quotation, code, JSON, a table, an example or a document."""
    UNKNOWN_HEADING = "unknown_heading"
    """It stands under a heading that may announce data."""
    AT_POINTER = "at_pointer"
    """It stands at a pointer of a value that was moved."""
    MANY = "many"
    """There are many ids without a label, or very many values, as in data."""
    RECORD = "record"
    """The lines around it look like a record or a list, or several elements have its name."""
    LETTER = "letter"
    """The lines around it look like a letter."""
    NARRATIVE = "narrative"
    """It stands in a diary, a story, an exercise, or a text to work on."""
    FAR = "far"
    """It is a time too far from now."""
    ALONE = "alone"
    """A time of day under an ambiguous label, without a current date beside it."""


class Refused(NamedTuple):
    """A value that is not taken.

    Attributes:
        start: Start offset.
        end: End offset.
        is_time: Whether it looks like a time; else like an id.
        reason: Why it is not taken.
    """

    start: int
    end: int
    is_time: bool
    reason: NotTaken
