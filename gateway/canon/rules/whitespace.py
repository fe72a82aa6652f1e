"""``whitespace``: unifies line ends, trailing whitespace and empty lines."""

import re
from collections.abc import Iterator
from typing import ClassVar

from gateway.canon.code_spans import fenced, touched
from gateway.canon.rule import NOTHING, Detected, Fields, RuleContext
from gateway.canon.rules.text_replacements import TextReplacement, text_edits, written_strings, written_texts
from gateway.canon.texts import LEADING_ROLES, Text, messages
from gateway.core.canonical import RuleName

_SPACE = " \t\r\n"
_SPACES = tuple(_SPACE)
# Detects everything but "\r" and the text's end; begins with a line feed, which makes the search fast.
_DIRTY = re.compile(r"\n(?:\n\n|(?<=[ \t]\n))")
# From a line's end to the next line that is not blank, without its indentation.
_BREAK = re.compile(r"[\r\n](?:[ \t\r\n]*[\r\n])?")
_EMPTY_LINE = re.compile(r"(?:\r\n?|\n) *+[\r\n]")
_INDENTED = re.compile(r"(?: {4}| {0,3}\t)[ \t]*+[^ \t\r\n]")
_CHANGES = re.compile(r"@@+ -[0-9]")
_IN_CHANGES = re.compile(r"[ +\-\\@]|diff |index |new file|deleted file|rename |similarity |Binary ")
_SAID = {
    "line_ends": "Line ends become line feeds.",
    "trailing_space": "Space at the end of a line is taken out.",
    "blank_lines": "Several empty lines become one.",
    "end": "Space at the end of the text is taken out.",
    RuleName.WHITESPACE.value: "Line ends, the space in front of them and empty lines are made alike.",
}


class Whitespace:
    """One kind of line end, no trailing whitespace, single empty lines, no whitespace at the end of instructions.

    Skips significant whitespace: code, diffs, tables with tabs, the end of a text to be continued.
    """

    name: ClassVar[RuleName] = RuleName.WHITESPACE

    def detect(self, fields: Fields, given: RuleContext) -> Detected:  # noqa: ARG002 - independent of the context
        """See ``Rule``."""
        if not any(map(_may_change, written_strings(fields))):
            return NOTHING
        edits = [
            edit
            for text in written_texts(fields)
            if (ends := _ends(fields, text)) or _is_dirty(text.text)
            for edit in text_edits(RuleName.WHITESPACE, text, list(_pieces(text, ends)), _SAID.__getitem__)
        ]
        return Detected(edits) if edits else NOTHING


def _may_change(characters: str) -> bool:
    return characters.endswith(_SPACES) or _is_dirty(characters)


def _is_dirty(characters: str) -> bool:
    return ("\n" in characters and _DIRTY.search(characters) is not None) or "\r" in characters


def _ends(fields: Fields, text: Text) -> bool:
    """Whether whitespace at the end of the text is removed."""
    return text.role in LEADING_ROLES and text.text[-1:] in _SPACE and _is_last(fields, text)


def _is_last(fields: Fields, text: Text) -> bool:
    """Whether it is the last text of its message; a following part may continue its last line."""
    content = messages(fields)[text.message]["content"]
    return isinstance(content, str) or text.path[3] == len(content) - 1


def _pieces(text: Text, ends: bool) -> Iterator[TextReplacement]:
    characters = text.text
    gaps = list(_gaps(characters))
    end = len(characters.rstrip(_SPACE))
    behind = bool(gaps) and gaps[-1][0] == end
    if behind and (text.path[0] == "prompt" or (ends and end)):
        gaps.pop()
    if ends and end:
        gaps.append((end, len(characters)))
    code = fenced(characters)
    tables = _in_tables(characters, gaps) if "\t" in characters else set[int]()
    has_changes = "@@ -" in characters
    changes, line = False, 0
    for number, (start, stop) in enumerate(gaps):
        if has_changes:
            changes = (_IN_CHANGES if changes else _CHANGES).match(characters, line, start) is not None
        if changes or number in tables or (code and touched(code, start, stop)):
            pass
        elif ends and end and stop == len(characters):
            yield TextReplacement(start, stop, "", "end")
        elif stop - start > 1 or characters[start] != "\n":
            yield from _alike(characters, line, start, stop)
        line = stop


def _gaps(characters: str) -> Iterator[tuple[int, int]]:
    """The gaps between lines that are not blank: trailing whitespace, line ends, blank lines."""
    line = 0
    for found in _BREAK.finditer(characters):
        start, end = found.span()
        if characters[start - 1] in " \t":
            start = line + len(characters[line:start].rstrip(" \t"))
        yield start, end
        line = end


def _alike(characters: str, line: int, start: int, stop: int) -> Iterator[TextReplacement]:
    """The replacement of the gap behind a line, if it changes."""
    gap = characters[start:stop]
    count = kept = gap.count("\n") + gap.count("\r") - gap.count("\r\n")
    # Between two indented lines the empty lines may belong to code or a list.
    if count > 2 and not (_INDENTED.match(characters, line, start) and _INDENTED.match(characters, stop)):
        kept = 2
    after = "\n" * kept
    if after != gap:
        yield TextReplacement(start, stop, after, _what(gap, kept < count))


def _what(gap: str, fewer: bool) -> str:
    if "\r" in gap:
        return "line_ends"
    return "blank_lines" if fewer else "trailing_space"


def _in_tables(characters: str, gaps: list[tuple[int, int]]) -> set[int]:
    """Indexes of gaps whose tabs may be empty cells: a line of the same paragraph has a tab inside."""
    found, waiting = set[int](), list[int]()
    row, line = False, 0
    for number, (start, stop) in enumerate(gaps):
        row = row or "\t" in characters[line:start].lstrip(" \t")
        gap = characters[start:stop]
        if "\t" in gap:
            waiting.append(number)
        if len(gap) > 1 and _EMPTY_LINE.search(gap):
            found.update(waiting if row else ())
            waiting, row = [], False
        line = stop
    if row or "\t" in characters[line:].strip(" \t"):
        found.update(waiting)
    return found
