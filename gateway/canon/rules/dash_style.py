"""``dash-style``: one kind of bullet, and one kind of dash."""

import re
from collections.abc import Iterator
from typing import ClassVar

from gateway.canon.code_spans import fenced, touched
from gateway.canon.lexicon import alternatives, entries
from gateway.canon.rule import NOTHING, Detected, Fields, RuleContext
from gateway.canon.rules.dynamic.quoted_data import Line, kind_of
from gateway.canon.rules.text_replacements import TextReplacement, text_edits, written_texts
from gateway.core.canonical import RuleName

_DASHES = "\u2012\u2013\u2014\u2015"
_MARKS = re.compile(
    # A line of such marks only is a rule between two parts.
    rf"^[ \t]*(?P<bullets>[*•‣◦▪●∙·{_DASHES}])(?=[ \t]+[^\s])(?![*•‣◦▪●∙·{_DASHES} \t]*$)"
    rf"|(?<=\S )(?P<dashes>[{_DASHES}])(?= \S)"
    r"|(?<=\w)(?P<hyphens>[\u2010\u2011])(?=\w)",
    re.MULTILINE,
)
_ANY = re.compile(rf"[*•‣◦▪●∙·{_DASHES}\u2010\u2011]")
_CHANGES = "@@ -"
_COMMENT, _COMMENT_END = ("/*", "//", "#!"), "*/"
_CRON = re.compile(r"\s*\*(?:[ \t]+(?:[\d*/,?LW#-]+|[A-Za-z]{3}(?:-[A-Za-z]{3})?)){4}(?!\S)")
_COMMIT = re.compile(r"\s*\*[ |\\/]*(?:commit )?[0-9a-f]{7,40}(?!\S)")
_BRANCH = re.compile(r"[* ] [\w./-]+(?:\s+[0-9a-f]{7,40}\s.*)?")
_QUOTES = re.compile(r"[\"“”„‟«»‹›「」『』《》]")
_APOSTROPHES = re.compile(r"‘|(?<!\w)'(?=\w)")
_MARK_WORDS = re.compile(rf"(?<!\w)(?:{alternatives(entries('documents', 'mark_words'))})(?!\w)", re.IGNORECASE)
_BEFORE_MARKS = frozenset(entries("documents", "before_marks"))
_LAST_WORD = re.compile(r"([^\W\d_]+) $")
_WORD_CHARS = 32
"""Characters in front of a dash in which the word there is looked for."""

_UNITS = "%‰°€$£¥₽₸"
_SENTENCE_ENDS = ".!?:;…。！？"
_SAID = {
    "bullets": "The bullets of lists become hyphens.",
    "dashes": "Dashes between words become hyphens.",
    "hyphens": "Other hyphens become the one of keyboards.",
    RuleName.DASH_STYLE.value: "Bullets and dashes become hyphens.",
}


class DashStyle:
    """Hyphens in place of other bullets, of dashes between blanks, and of other hyphens within words.

    Leaves alone code, comments, crontabs, diffs, tables, JSON, quotations, verses, dashes beside a number, and lines
    that speak of dashes or bullets. Codes of its edits: ``bullets``, ``dashes``, ``hyphens``.
    """

    name: ClassVar[RuleName] = RuleName.DASH_STYLE

    def detect(self, fields: Fields, given: RuleContext) -> Detected:
        """See ``Rule``."""
        edits = [
            edit
            for text in written_texts(fields)
            if _CHANGES not in text.text and _ANY.search(text.text)
            for edit in text_edits(RuleName.DASH_STYLE, text, list(_pieces(text.text, given.tenant)), _SAID.__getitem__)
        ]
        return Detected(edits) if edits else NOTHING


def _pieces(text: str, tenant: str) -> Iterator[TextReplacement]:
    code = fenced(text)
    lines = ["", *text.split("\n"), ""]
    at = 0
    comment = quotation = False
    for above, line, below in zip(lines, lines[1:], lines[2:], strict=False):
        end = at + len(line)
        bare = line.lstrip()
        comment = comment or bare.startswith(_COMMENT[0])
        quotes = len(_QUOTES.findall(line))
        if not bare:
            quotation = False
        elif _ANY.search(line) and not (comment or quotation or _is_literal(above, line, below, tenant)):
            only_bullets = bool(quotes) or _APOSTROPHES.search(line) is not None or _is_verse(above, line, below)
            for match in _MARKS.finditer(text, at, end):
                what = match.lastgroup or ""
                start, stop = match.span(what)
                stays = what != "bullets" and (only_bullets or (what == "dashes" and _is_meant(text, start)))
                if not stays and not touched(code, start, stop):
                    yield TextReplacement(start, stop, "-", what)
        # A quotation of several lines ends with its paragraph at the latest.
        quotation = quotation != bool(quotes % 2)
        comment = comment and _COMMENT_END not in line
        at = end + 1


def _is_literal(above: str, line: str, below: str, tenant: str) -> bool:
    """Whether a line is code or data, or speaks of such marks."""
    bare = line.lstrip()
    return (
        "`" in line
        or bare.startswith(_COMMENT)
        or _CRON.match(line) is not None
        or _COMMIT.match(line) is not None
        or (_is_branch(line, "*") and (_is_branch(above, " ") or _is_branch(below, " ")))
        or _MARK_WORDS.search(line) is not None
        or kind_of(line, tenant).line is Line.DATA
    )


def _is_branch(line: str, mark: str) -> bool:
    """Whether a line is one of a list of branches: the current one has an asterisk, all others have blanks."""
    return line.startswith(mark) and _BRANCH.fullmatch(line) is not None


def _is_verse(above: str, line: str, below: str) -> bool:
    """Whether a line and one beside it begin with capitals and go on without the end of a sentence."""
    return _goes_on(line, below) or _goes_on(above, line)


def _goes_on(line: str, below: str) -> bool:
    line, below = line.strip(), below.lstrip()
    return line[:1].isalpha() and line[-1] not in _SENTENCE_ENDS and below[:1].isupper()


def _is_meant(text: str, at: int) -> bool:
    """Whether a dash between blanks stands beside a number, or behind a word such as "use"."""
    front, behind = text[at - 2], text[at + 2]
    if front.isdigit() or front in _UNITS or behind.isdigit() or behind in _UNITS:
        return True
    word = _LAST_WORD.search(text, max(at - _WORD_CHARS, 0), at)
    return word is not None and word[1].lower() in _BEFORE_MARKS
