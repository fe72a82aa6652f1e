"""A kind of value: a pattern, and a check of two values that are in the same slot of two texts.

The word lists contain words in front of a value that indicate its type: id, time, person, locale.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from gateway.canon.lexicon import entries
from gateway.canon.recognizer.calendar_words import marked
from gateway.core.reasons import Reason

ID_WORDS = frozenset(entries("neighbours", "ids"))

TIME_WORDS = frozenset(entries("neighbours", "times"))

PERSON_WORDS = frozenset(entries("neighbours", "people"))

LOCALE_WORDS = frozenset(entries("neighbours", "locales"))

LANGUAGE_NAMES = frozenset(entries("neighbours", "language_names"))


_LABEL = re.compile(r"([^\W\d_][\w\- .]{0,40}+)[\"'`*]{0,3}\s?[:=#：]{1,2}\s?[\"'`*<(\[]{0,3}$")
_WORDS = re.compile(r"[^\W\d_]+|#")
_LABEL_CHARS = 48


@dataclass(frozen=True)
class TextWindow:
    """Some text around the first difference.

    Attributes:
        text: The text.
        at: Offset of the first difference.
    """

    text: str
    at: int

    @cached_property
    def marked(self) -> str:
        """The text with calendar words marked, of the same length."""
        return marked(self.text)

    @cached_property
    def near(self) -> frozenset[str]:
        """The characters of the text, marked or not, up to the next blanks on both sides of the first difference."""
        near = _up_to_blanks(self.text, self.at)
        return frozenset(near if self.marked is self.text else near + _up_to_blanks(self.marked, self.at))

    def label(self, start: int) -> str:
        """The key of a value that begins at ``start`` (``key: value``, ``key=value``); empty for none."""
        match = _LABEL.search(self.text[max(start - _LABEL_CHARS, 0) : start].rpartition("\n")[2])
        return match[1].strip().lower() if match else ""

    def words_before(self, start: int, count: int = 3) -> tuple[str, ...]:
        """The last words in front of ``start`` on its line, in lower case; a ``#`` counts as one."""
        line = self.text[max(start - _LABEL_CHARS, 0) : start].rpartition("\n")[2]
        return tuple(_WORDS.findall(line.lower())[-count:])


def _up_to_blanks(text: str, at: int) -> str:
    front, behind = text[:at], text[at:]
    near = "" if not front or front[-1].isspace() else front.rsplit(None, 1)[-1]
    return near if not behind or behind[0].isspace() else near + behind.split(None, 1)[0]


@dataclass(frozen=True, slots=True)
class FoundValue:
    """A value at the first difference.

    Attributes:
        value: The value.
        start: Offset in its window.
        window: The window.
        match: Match of the pattern.
    """

    value: str
    start: int
    window: TextWindow
    match: re.Match[str]

    @property
    def end(self) -> int:
        """End offset in its window."""
        return self.start + len(self.value)


@dataclass(frozen=True, slots=True)
class ValueKind:
    """A kind of value.

    Attributes:
        reason: Class of a slot with two values of this kind.
        detail: Code of the kind.
        kind: Name of the kind for people, used in masked text.
        pattern: Matches a value.
        is_marked: Whether the pattern applies to the marked text.
        is_moment: Whether a value may be the current date or time.
        fits: Additional check of two values that match the pattern.
        signs: Characters of which at least one of two values has one, for a kind whose values have no blanks; empty if
            there are none. Most kinds are ruled out by them, in a fraction of the time that the pattern takes.
    """

    reason: Reason
    detail: str
    kind: str
    pattern: re.Pattern[str]
    is_marked: bool = False
    is_moment: bool = False
    fits: Callable[[FoundValue, FoundValue], bool] | None = None
    signs: frozenset[str] = frozenset()

    def both(self, before: TextWindow, after: TextWindow) -> tuple[FoundValue, FoundValue] | None:
        """The two values of the slot at the first difference, if both are of this kind and differ."""
        if self.signs and self.signs.isdisjoint(before.near) and self.signs.isdisjoint(after.near):
            return None
        one = self._at(before)
        other = self._at(after) if one else None
        if one is None or other is None or one.start != other.start or one.value == other.value:
            return None
        return (one, other) if self.fits is None or self.fits(one, other) else None

    def _at(self, window: TextWindow) -> FoundValue | None:
        for match in self.pattern.finditer(window.marked if self.is_marked else window.text):
            if match.start() > window.at:
                return None
            if match.end() >= window.at and match.end() > match.start():
                return FoundValue(window.text[match.start() : match.end()], match.start(), window, match)
        return None
