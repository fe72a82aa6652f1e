"""``inner-spaces``: makes runs of blanks inside lines single blanks."""

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

from gateway.canon.code_spans import fenced, touched
from gateway.canon.rule import NOTHING, Detected, Fields, RuleContext
from gateway.canon.rules.dynamic.quoted_data import Line, kind_of
from gateway.canon.rules.text_replacements import TextReplacement, text_edits, written_texts
from gateway.core.canonical import RuleName

# Begins with two blanks, which makes the search fast. Blanks beside a quotation mark may be what is spoken of, beside a
# digit they may align numbers, and beside most other signs of ASCII they may be in code.
_RUN = re.compile(
    r"  (?:(?<=[.!?。！？]  )(?! *[\"'`“”„«»])"
    r"|(?<=^[-*+•]  )(?! *[\d\"'`“”„«»])"
    r"|(?<=[^\s\d!-(*+\--/<-@\[-`{-~“”„«»]  )(?! *[!-')-@\[-`{-~\d“”„«»]))"
    r" *+(?=\S)"
)
_SENTENCE_ENDS = ".!?。！？"
_BULLETS = "-*+•"
_DATA_BEGINS = '{[]}"$'
_CODE_ENDS = (";", "(", "{")
_SQL = re.compile(r"(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|FROM|WHERE|AND|OR|JOIN|LEFT|GROUP|ORDER|WITH)\b")
_QUOTES = re.compile(r"[\"“”„‟«»‹›「」『』《》]")
_APOSTROPHES = re.compile(r"‘|(?<!\w)'(?=\w)")
_COLUMN = 3
"""So many blanks behind a word align something."""

_CHANGES = "@@ -"
_SAID = "Several blanks within a line become one."


class InnerSpaces:
    """Single blanks between the words of a line.

    Leaves alone what blanks may have a meaning in: code, inline code, tables, logs, JSON, diffs, indented lines, lines
    with quotations, and lines with columns. Code of its edits: ``blanks``.
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
    above = columns = quotation = False
    at = 0
    # A line with columns is known to stand alone only when the line below it was seen.
    for line in (*text.split("\n"), ""):
        quotes = len(_QUOTES.findall(line))
        stays = quotation or bool(quotes) or _is_data(line, tenant)
        runs = [] if stays else [(at + run.start(), at + run.end()) for run in _RUN.finditer(line)]
        behind_words = [run for run in runs if text[run[0] - 1] not in _SENTENCE_ENDS + _BULLETS]
        below = bool(behind_words)
        if not (columns and (above or below)):
            yield from (TextReplacement(*run, " ", "blanks") for run in waiting if not touched(code, *run))
        above, columns, waiting = columns, below, [] if _has_columns(line, behind_words) else runs
        # A quotation of several lines ends with its paragraph at the latest.
        quotation = bool(line.strip()) and quotation != bool(quotes % 2)
        at += len(line) + 1


def _has_columns(line: str, runs: Sequence[tuple[int, int]]) -> bool:
    """Whether the blanks behind words of a line align them."""
    return any(end - start >= _COLUMN for start, end in runs) or (
        len(runs) > 1 and line.rstrip()[-1:] not in _SENTENCE_ENDS
    )


def _is_data(line: str, tenant: str) -> bool:
    """Whether it has no run of blanks, or is a line of code, a table, a log, a quotation or other data."""
    bare = line.lstrip(" ")
    return (
        "  " not in bare
        or "\t" in line
        or "`" in line
        or "|" in line
        or bare != line
        or bare[0] in _DATA_BEGINS
        or bare.rstrip().endswith(_CODE_ENDS)
        or _SQL.match(bare) is not None
        or _APOSTROPHES.search(line) is not None
        or kind_of(line, tenant).line is Line.DATA
    )
