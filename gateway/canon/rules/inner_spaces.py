"""``inner-spaces``: makes runs of blanks inside lines single blanks."""

import re
from collections.abc import Iterator
from typing import ClassVar

from gateway.canon.code_spans import fenced, touched
from gateway.canon.rule import NOTHING, Detected, Fields, RuleContext
from gateway.canon.rules.dynamic.quoted_data import Line, kind_of
from gateway.canon.rules.text_replacements import TextReplacement, text_edits, written_texts
from gateway.core.canonical import RuleName

# Begins with two blanks, which makes the search fast. Blanks beside a quotation mark may be what is spoken of, and
# beside a digit they may align numbers.
_RUN = re.compile(r"  (?:(?<=[.!?。！？]  )|(?<=[^\s\d\"'`“”„«»]  )(?! *\d)) *+(?=[^\s\"'`“”„«»])")
_SENTENCE_ENDS = ".!?。！？"
_DATA_BEGINS = '{[]}"'
_CHANGES = "@@ -"
_INDENT = 4
_SAID = "Several blanks within a line become one."


class InnerSpaces:
    """Single blanks between the words of a line.

    Leaves alone what blanks may have a meaning in: code, inline code, tables, logs, JSON, diffs, and neighbouring lines
    with columns. Code of its edits: ``blanks``.
    """

    name: ClassVar[RuleName] = RuleName.INNER_SPACES

    def detect(self, fields: Fields, given: RuleContext) -> Detected:
        """See ``Rule``."""
        edits = [
            edit
            for text in written_texts(fields)
            if "  " in text.text and _CHANGES not in text.text
            for edit in text_edits(RuleName.INNER_SPACES, text, list(_pieces(text.text, given.tenant)), lambda _: _SAID)
        ]
        return Detected(edits) if edits else NOTHING


def _pieces(text: str, tenant: str) -> Iterator[TextReplacement]:
    code = fenced(text)
    waiting: list[tuple[int, int]] = []
    above = columns = False
    at = 0
    # A line with columns is known to stand alone only when the line below it was seen.
    for line in (*text.split("\n"), ""):
        runs = [] if _is_data(line, tenant) else [(at + run.start(), at + run.end()) for run in _RUN.finditer(line)]
        below = any(text[start - 1] not in _SENTENCE_ENDS for start, _ in runs)
        if not (columns and (above or below)):
            yield from (TextReplacement(*run, " ", "blanks") for run in waiting if not touched(code, *run))
        above, columns, waiting = columns, below, runs
        at += len(line) + 1


def _is_data(line: str, tenant: str) -> bool:
    """Whether it has no run of blanks, or is a line of code, a table, a log or other data."""
    bare = line.lstrip(" ")
    return (
        "  " not in bare
        or "\t" in line
        or "`" in line
        or "|" in line
        or len(line) - len(bare) >= _INDENT
        or bare[0] in _DATA_BEGINS
        or kind_of(line, tenant).line is Line.DATA
    )
