"""``dash-style``: one kind of bullet, and one kind of dash."""

import re
from collections.abc import Iterator
from typing import ClassVar

from gateway.canon.code_spans import fenced, touched
from gateway.canon.rule import NOTHING, Detected, Fields, RuleContext
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
_SAID = {
    "bullets": "The bullets of lists become hyphens.",
    "dashes": "Dashes between words become hyphens.",
    "hyphens": "Other hyphens become the one of keyboards.",
    RuleName.DASH_STYLE.value: "Bullets and dashes become hyphens.",
}


class DashStyle:
    """Hyphens in place of other bullets, of dashes between blanks, and of other hyphens within words.

    Leaves code, inline code and diffs alone, and dashes without blanks, as in a range of numbers. Codes of its edits:
    ``bullets``, ``dashes``, ``hyphens``.
    """

    name: ClassVar[RuleName] = RuleName.DASH_STYLE

    def detect(self, fields: Fields, given: RuleContext) -> Detected:  # noqa: ARG002 - independent of the context
        """See ``Rule``."""
        edits = [
            edit
            for text in written_texts(fields)
            if _CHANGES not in text.text and _ANY.search(text.text)
            for edit in text_edits(RuleName.DASH_STYLE, text, list(_pieces(text.text)), _SAID.__getitem__)
        ]
        return Detected(edits) if edits else NOTHING


def _pieces(text: str) -> Iterator[TextReplacement]:
    code = fenced(text)
    line_end, ticks = -1, False
    for match in _MARKS.finditer(text):
        what = match.lastgroup or ""
        start, end = match.span(what)
        # Once for each line: a line may be as long as the text.
        if start > line_end:
            line = text.rfind("\n", 0, start) + 1
            line_end = text.find("\n", start)
            line_end = len(text) if line_end < 0 else line_end
            ticks = text.find("`", line, line_end) >= 0
        if not ticks and not touched(code, start, end):
            yield TextReplacement(start, end, "-", what)
