r"""Regular expressions from the configuration, searched by RE2 in time linear in the text for any pattern.

The syntax is RE2's (https://github.com/google/re2/wiki/Syntax), which is most of Python's without look-around and
back-references; ``^`` and ``$`` match at every line. As in Python, and other than in RE2, ``\d``, ``\w`` and ``\s``
know all scripts, ``\Z`` is the end of the text, ``\u00e4`` a character and ``{,3}`` up to three. ``\b`` knows ASCII
letters, digits and underscores only.

One search of RE2 is linear, all searches for all matches are not: after a match, the next one begins behind it, but may
have to look at all of the text again (``a.*b|a`` in a text of many ``a``). So a search looks at a window, which grows
while nothing is found in it. And RE2 falls back to a slower way where a pattern needs too many states, so what a text
may cost is bounded by CPU time.
"""

import re
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import re2

_MAX_MEMORY_BYTES = 8 * 1024 * 1024
"""Memory limit of each pattern; a larger one is refused."""

_REACH_BYTES = 64 * 1024
"""Characters this far behind a match do not affect its length."""

_WINDOW_BYTES = 2 * _REACH_BYTES
_SECONDS = 0.1
_SECONDS_PER_MIB = 1.0
_MAX_SECONDS = 5.0
"""CPU time for a text. RE2 takes 3 ms a MiB, and a second or more where it has to fall back."""

_DIGIT, _WORD = r"\p{Nd}", r"\p{L}\p{N}_"
_SPACE = r"\t-\r\x1c- \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_NO_SPACE = (
    r"\x00-\x08\x0e-\x1b!-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}"
    r"\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff}"
)
_OUTSIDE = {
    "d": _DIGIT,
    "D": r"\P{Nd}",
    "w": f"[{_WORD}]",
    "W": f"[^{_WORD}]",
    "s": f"[{_SPACE}]",
    "S": f"[^{_SPACE}]",
    "Z": r"\z",
}
_INSIDE = {"d": _DIGIT, "D": r"\P{Nd}", "w": _WORD, "s": _SPACE, "S": _NO_SPACE}
_PIECE = re.compile(
    r"(?P<short>\\u[0-9A-Fa-f]{4})|(?P<long>\\U[0-9A-Fa-f]{8})|\\(?P<escaped>.)"
    r"|(?P<posix>\[:\^?[a-z]+:\])|(?P<opens>\[\^?\]?)|(?P<huge>\{(?=[0-9,]*[0-9]{5})[0-9]*,?[0-9]*\})|(?P<most>\{,[0-9]+\})|(?P<other>.)",
    re.DOTALL,
)
# A pattern that matches the empty text somewhere does so in one of these.
_SAMPLES = ("", " ", "a", "A1", "0 a-b@c.d\n[x]")

_REASONS = (
    (("(?=", "(?!", "(?<=", "(?<!"), "no look-around (match what stands around the value, too)"),
    (("(?P", *(f"\\{number}" for number in range(1, 10))), "no back-references"),
    (("(?>", "++", "*+", "?+"), "no possessive repetition (there is no need for it: searches never go back)"),
)


class Found(NamedTuple):
    """A match, in characters.

    Attributes:
        start: Its first.
        end: The one behind its last.
        value: The same of the first group; of the match where the pattern has no group, (-1, -1) where the group has no
            part in it.
    """

    start: int
    end: int
    value: tuple[int, int]


class TooSlow(Exception):
    """A pattern takes more time for a text than a text may take."""


class _NotOffered(Exception):
    """Part of a regular expression means something else in RE2, or nothing."""


class OwnRegex:
    """One regular expression. Safe to use from several threads; other threads run while it searches.

    Args:
        regex: The regular expression.
        cpu_seconds: CPU time that the calling thread has taken.

    Raises:
        ValueError: it is invalid or unsupported; the message says why.
    """

    def __init__(self, regex: str, cpu_seconds: Callable[[], float] = time.thread_time) -> None:
        self._cpu_seconds = cpu_seconds
        options = re2.Options()
        options.max_mem = _MAX_MEMORY_BYTES
        options.log_errors = False
        reason, translated = "", regex
        try:
            translated = f"(?m){_translated(regex)}"
            self._regex = re2.compile(translated, options)
        except _NotOffered as error:
            reason = str(error)
        except re2.error as error:
            reason = _reason(error).replace(translated, regex)
        if reason:
            raise ValueError(
                f"not a regular expression as RE2 has them: {reason} (in YAML, single quotes leave backslashes alone)"
            )
        self._group = 1 if self._regex.groups else 0

    @property
    def has_group(self) -> bool:
        """Whether a group says which part of a match is the value."""
        return self._group > 0

    def find(self, text: str) -> Iterator[Found]:
        """Every match, from left to right; none overlap.

        Raises:
            TooSlow: it takes too long. What was found until then is not all.
        """
        data = text.encode("utf-8", "surrogatepass")
        until = self._cpu_seconds() + min(_SECONDS + _SECONDS_PER_MIB * len(data) / 2**20, _MAX_SECONDS)
        characters = _Characters(data, ascii_only=len(data) == len(text))
        for match in self._matches(data, until):
            start = characters.at(match.start())
            first, behind = match.span(self._group)
            value = (first, behind) if first < 0 else (characters.at(first), characters.at(behind))
            yield Found(start, characters.at(match.end()), value)

    def _matches(self, data: bytes, until: float) -> "Iterator[re2._Match]":
        at, size = 0, _WINDOW_BYTES
        while at <= len(data):
            if self._cpu_seconds() > until:
                raise TooSlow
            end = _boundary(data, at + size)
            match = self._regex.search(data, at, end)
            whole = end == len(data)
            if match is None and whole:
                return
            if match is None:
                size *= 2  # from the same place: a match may be longer than the window was
            elif whole or match.end() <= end - _REACH_BYTES:
                yield match
                at, size = (match.end(), _WINDOW_BYTES)
                if match.end() == match.start():
                    at = _boundary(data, at + 1) if at < len(data) else at + 1
            elif match.start() > at:
                at, size = match.start(), _WINDOW_BYTES  # what follows may make it longer: look from here on
            else:
                size *= 2


class _Characters:
    """From offsets in UTF-8 to offsets in characters; they must be asked for in ascending order."""

    def __init__(self, data: bytes, *, ascii_only: bool) -> None:
        self._data = data
        self._ascii_only = ascii_only
        self._offset = self._characters = 0

    def at(self, offset: int) -> int:
        """Characters in front of an offset."""
        if self._ascii_only:
            return offset
        self._characters += len(self._data[self._offset : offset].decode("utf-8", "surrogatepass"))
        self._offset = offset
        return self._characters


def _boundary(data: bytes, offset: int) -> int:
    """The first offset from this one on at which a character begins, or the end."""
    offset = min(offset, len(data))
    while offset < len(data) and data[offset] & 0xC0 == 0x80:
        offset += 1
    return offset


def _translated(regex: str) -> str:
    """The same for RE2.

    Raises:
        _NotOffered: part of it is not offered.
    """
    inside = False
    pieces: list[str] = []
    for piece in _PIECE.finditer(regex):
        kind, text = piece.lastgroup, piece[0]
        if kind in ("short", "long"):
            text = f"\\x{{{text[2:]}}}"
        elif kind == "escaped":
            text = _escaped(text[1], inside=inside)
        elif kind == "most" and not inside:
            text = f"{{0{text[1:]}"
        elif kind == "huge" and not inside:
            raise _NotOffered(f"{text} is not offered: nothing can be repeated more than 1000 times")
        elif kind == "opens" and inside:
            text = text.replace("[", r"\[", 1)
            inside = not text.endswith("]")
        elif kind == "opens":
            inside = True
        elif text == "]":
            inside = False
        pieces.append(text)
    return "".join(pieces)


def _escaped(letter: str, *, inside: bool) -> str:
    if letter in "CQE":
        raise _NotOffered(f"\\{letter} is not offered")
    if inside and letter == "W":
        raise _NotOffered("\\W in brackets is not offered (write what may stand there)")
    return (_INSIDE if inside else _OUTSIDE).get(letter, f"\\{letter}")


def _reason(error: Exception) -> str:
    """Why RE2 refuses it."""
    (said,) = error.args
    said = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    what = said.rpartition(": ")[2]
    return next((f"{what} is not offered: {reason}" for these, reason in _REASONS if what in these), said)


def compiled(regex: str) -> OwnRegex:
    """An operator's regular expression, compiled.

    Raises:
        ValueError: it is none, or matches the empty text; the message says what to do.
    """
    pattern = OwnRegex(regex)
    if any(found.end == found.start for sample in _SAMPLES for found in pattern.find(sample)):
        raise ValueError("matches the empty text, so it would be found everywhere (ask for at least one character)")
    return pattern
