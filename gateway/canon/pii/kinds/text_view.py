"""A text prepared for the search of the built-in kinds.

Almost all text has no personal data, so a cheap filter comes first: kinds that consist of digits search only *zones*,
the surroundings of at least five digits with at most three characters between them. Repetitions in the patterns are
bounded or possessive, so that the search takes linear time for any text.
"""

import re
import string
from collections.abc import Callable, Iterator
from functools import cached_property

from gateway.canon.recognizer.id_kinds import UUID

Span = tuple[int, int]
"""Half-open range of offsets: ``(start, end)``."""

START = r"(?<![0-9A-Za-z_])(?<![0-9][.\-])"
"""Where a number may begin: not inside a word, a hash or a decimal."""
END = r"(?![0-9A-Za-z_]|[.\-][0-9])"
"""Where a number may end."""

# The search for a literal is many times faster than one for a class: zones are searched in a copy of the text in which
# each character stands for its class.
_DIGIT, _BETWEEN, _OTHER = b"0 \n"
_CLASSES = bytearray([_OTHER]) * 256
for _character in b" .()/-" + string.ascii_letters.encode():
    _CLASSES[_character] = _BETWEEN
for _character in string.digits.encode():
    _CLASSES[_character] = _DIGIT

_CLUSTER_DIGITS = 5
_CLUSTER = re.compile(rb"0(?: {0,3}+0){%d,4096}+" % (_CLUSTER_DIGITS - 1))
# Most clusters are dates and times.
_DATE = re.compile(r"(?:19|20)[0-9]{2}-[0-9]{2}-[0-9]{2}(?:[ T][0-9]{2})?")
_BEFORE = 10
_BEHIND = 6
_STRIDE = 8192
"""Characters of a zone per search call, which holds the interpreter lock for up to 2 ms."""
_LONGEST = 256
"""Maximum length of a match of any kind, including lookahead."""

# Variants of the characters that the kinds search for, one character each, so that offsets do not change.
_SPELLINGS = {
    **dict.fromkeys(map(ord, "\u00a0\u2002\u2007\u2009\u202f\u3000"), " "),
    **dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\uff0d"), "-"),
    **{first + digit: str(digit) for first in (0xFF10, 0x0660, 0x06F0, 0x0966) for digit in range(10)},
    ord("\uff20"): "@",
    ord("\uff0b"): "+",
    ord("\uff0e"): ".",
}
_SPELLED = re.compile("[" + "".join(map(re.escape, map(chr, _SPELLINGS))) + "]")

# A UUID is a key, even if it consists of digits.
_UUID = re.compile(rf"(?<![0-9A-Fa-f-]){UUID}(?![0-9A-Fa-f-])")
_UUID_CHARS = 37


class TextView:
    """A text to search.

    Attributes:
        text: The text with digits, spaces and dashes of other scripts spelled as ASCII ones; as long as the original.
    """

    def __init__(self, text: str) -> None:
        if not text.isascii() and _SPELLED.search(text):
            text = text.translate(_SPELLINGS)
        self.text = text

    @cached_property
    def zones(self) -> list[Span]:
        """Ranges with numbers, sorted and disjoint."""
        zones: list[Span] = []
        classes = _classes(self.text)
        if classes.count(_DIGIT) < _CLUSTER_DIGITS:
            return zones
        for cluster in _CLUSTER.finditer(classes):
            if _DATE.fullmatch(self.text, cluster.start(), cluster.end()):
                continue
            start, end = max(cluster.start() - _BEFORE, 0), cluster.end() + _BEHIND
            if zones and start <= zones[-1][1]:
                start = zones.pop()[0]
            zones.append((start, end))
        return zones

    def matches(self, pattern: re.Pattern[str], accept: Callable[[re.Match[str]], int]) -> Iterator[Span]:
        """Accepted matches in the zones.

        Args:
            pattern: Begins with ``START``, so that few offsets are tried twice.
            accept: Returns how many characters of a match are the finding; 0 rejects it.
        """
        for start, end in self.zones:
            position = start
            while position < end:
                limit = min(position + _STRIDE, end)
                match = pattern.search(self.text, position, min(limit + _LONGEST, end))
                if match is None or match.start() >= limit:
                    position = limit
                    continue
                length = accept(match)
                if length and not self._in_uuid(match.start(), match.start() + length):
                    yield match.start(), match.start() + length
                    position = match.start() + length
                else:
                    position = match.start() + 1

    def before(self, position: int, characters: int) -> str:
        """The characters in front of an offset, in lower case."""
        return self.text[max(position - characters, 0) : position].lower()

    def _in_uuid(self, start: int, end: int) -> bool:
        window = self.text[max(start - _UUID_CHARS, 0) : end + _UUID_CHARS]
        offset = start - max(start - _UUID_CHARS, 0)
        return any(uuid.start() <= offset < uuid.end() for uuid in _UUID.finditer(window))


def _classes(text: str) -> bytes:
    """The class of each character of a text; one beyond ASCII is a question mark before."""
    return text.encode("ascii", "replace").translate(_CLASSES)


_NO_DIGITS = bytes(set(range(256)) - set(b"0123456789"))


def digit_count(text: str) -> int:
    """Number of ASCII digits of a text, many times faster than a search for them."""
    return len(text.encode("utf-8", "surrogatepass").translate(None, _NO_DIGITS))


def digits_of(text: str) -> str:
    """The digits of an ASCII text."""
    return "".join(filter(str.isdigit, text))
