"""Finds code in texts. Rules leave code alone: its whitespace is significant, and dates in it are data.

More tolerant than a Markdown parser, because clients send text in many forms. Runs in linear time, also on adversarial
texts.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence

from gateway.canon.lexicon import alternatives, entries

Ranges = Sequence[tuple[int, int]]
"""Half-open ranges ``[start, end)`` of a text, sorted and disjoint."""

_LINE_END = re.compile(r"\r\n?|\n")
# Possessive quantifiers throughout: no backtracking. A fence may follow quotation marks (>) or a list bullet.
_OPENING = re.compile(
    r"([ \t]*+(?:>[ \t]*+|(?:[-*+]|[0-9]{1,9}[.)])[ \t]++)*+)(?:(`{3,}+)[^`\r\n]*+|(~{3,}+)[^\r\n]*+)(?=[\r\n]|\Z)"
)
_PLAIN = re.compile(r" {0,3}")
_CLOSING = {
    "`": re.compile(r"([ \t>]*+)(`{3,}+)[ \t]*+(?=[\r\n]|\Z)"),
    "~": re.compile(r"([ \t>]*+)(~{3,}+)[ \t]*+(?=[\r\n]|\Z)"),
}
_CODE_TAGS = entries("documents", "code_tags")
_TAG = re.compile(rf"<({alternatives(_CODE_TAGS)})(?:[ \t\r\n][^<>]*+)?>", re.IGNORECASE)
_TAG_ENDS = {name: re.compile(rf"</{name}[ \t\r\n]*+>", re.IGNORECASE) for name in _CODE_TAGS}


def fenced(text: str) -> Ranges:
    """Ranges of code: between fences of three or more backticks or tildes, and in ``<pre>`` and ``<code>``.

    A range begins with the opening fence's line or the opening tag, and ends with the last character of the closing
    fence or tag. An unclosed fence extends to the text's end; an unclosed tag is plain text.
    """
    # Searching for one character is many times faster than for three.
    ticks, tildes = "`" in text and "```" in text, "~" in text and "~~~" in text
    if not ticks and not tildes and ("<" not in text or _TAG.search(text) is None):
        return ()
    ranges: list[tuple[int, int]] = []
    fences, tags = _FencedCode(text), _Tags(text)
    at = 0
    while True:
        fence, tag = fences.behind(at), tags.behind(at)
        if fence is not None and (tag is None or fence.start() < tag[0]):
            ranges.append((fence.start(), _fence_end(text, fence)))
        elif tag is not None:
            ranges.append(tag)
        else:
            return ranges
        at = ranges[-1][1]


def touched(ranges: Ranges, start: int, end: int) -> bool:
    """Whether ``[start, end)`` overlaps one of the ranges; an empty piece: whether it lies inside of one."""
    before = bisect_left(ranges, (end,)) - 1
    return before >= 0 and ranges[before][1] > start


class _FencedCode:
    """Finds opening fences, in ascending order."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: re.Match[str] | None = None
        # Offset of the next mark of each kind; searched again only after it was passed.
        self._marks = {"```": -1, "~~~": -1}

    def behind(self, at: int) -> re.Match[str] | None:
        """The next one on a line that begins at ``at`` or behind it."""
        if self._found is None or self._found.start() < at:
            self._found = self._next(at)
        return self._found

    def _next(self, at: int) -> re.Match[str] | None:
        line = _line_start(self._text, at)
        while (mark := self._mark(line)) < len(self._text):
            # A fence is at the beginning of its line, so every line is examined once.
            line = _line_of(self._text, line, mark)
            opening = _OPENING.match(self._text, line)
            if opening is not None:
                return opening
            line = _next_line(self._text, mark)
        return None

    def _mark(self, at: int) -> int:
        for mark, place in self._marks.items():
            if place < at:
                found = self._text.find(mark, at)
                self._marks[mark] = len(self._text) if found < 0 else found
        return min(self._marks.values())


class _Tags:
    """Finds ``<pre>`` and ``<code>`` elements, in ascending order."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: tuple[int, int] | None = None
        self._done = False
        # Span of the next closing tag of each kind; None: there are no more.
        self._ends: dict[str, tuple[int, int] | None] = dict.fromkeys(_TAG_ENDS, (-1, -1))

    def behind(self, at: int) -> tuple[int, int] | None:
        """The next one that begins at ``at`` or behind it."""
        if not self._done and (self._found is None or self._found[0] < at):
            self._found = self._next(at)
            self._done = self._found is None
        return self._found

    def _next(self, at: int) -> tuple[int, int] | None:
        while any(self._ends.values()) and (tag := _TAG.search(self._text, at)) is not None:
            end = self._end(tag[1].lower(), tag.end())
            if end is not None:
                return tag.start(), end
            at = tag.end()
        return None

    def _end(self, name: str, at: int) -> int | None:
        known = self._ends[name]
        if known is not None and known[0] < at:
            found = _TAG_ENDS[name].search(self._text, at)
            known = self._ends[name] = found and found.span()
        return known and known[1]


def _fence_end(text: str, opening: re.Match[str]) -> int:
    """End of the closing fence: it has a line of its own, and is at least as long as the opening one."""
    plain = _PLAIN.fullmatch(opening[1]) is not None
    mark = opening[2] or opening[3]
    line = _next_line(text, opening.end())
    while (found := text.find(mark, line)) >= 0:
        # If the line consists of one fence only, that fence contains the mark and is thus long enough.
        closing = _CLOSING[mark[0]].match(text, _line_of(text, line, found))
        if closing is not None and (not plain or _PLAIN.fullmatch(closing[1])):
            return closing.end(2)
        line = _next_line(text, found)
    return len(text)


def _line_of(text: str, start: int, at: int) -> int:
    """Start of the line that contains ``at``, given the start of the same or an earlier line."""
    return max(start, text.rfind("\n", start, at) + 1, text.rfind("\r", start, at) + 1)


def _line_start(text: str, at: int) -> int:
    """``at`` if a line begins there, else the start of the next line."""
    return at if at == 0 or text[at - 1] in "\r\n" else _next_line(text, at)


def _next_line(text: str, at: int) -> int:
    end = _LINE_END.search(text, at)
    return len(text) if end is None else end.end()
