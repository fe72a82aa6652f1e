"""Lines around a date whose label may stand in any document: do they look like data?"""

import re
from collections.abc import Sequence

from gateway.canon.rules.dynamic.values import lowered
from gateway.canon.rules.dynamic.words import CONTEXT_LABELS, CONTEXT_WITHOUT_BLANKS

_LABELLED = re.compile(r"\s*(?:[-*•]\s+)?[*_]*([^:：=\n]{1,40}?)[*_]*\s*[:：=](?!//)")
_WORDS = re.compile(r"[^\W\d_]+")
_DATE_ALONE = re.compile(r"[\s*_\-•]*[\d:./\-TZ ,]{8,40}$")
_LETTER = re.compile(
    r"\s*(?:dear|hi|hello|to whom|re:|subject|sincerely|regards|best regards|kind regards|yours|cc:|sehr geehrte|liebe|mit freundlichen|"
    r"betreff|madame|monsieur|objet|cordialement|estimad|asunto|atentamente|egregi|gentile|oggetto|distinti|prezad|assunto|"
    r"geachte|betreft|szanown|vážen|уважаем|шановн|sayın|拝啓|敬具|尊敬的|此致|안녕하세요|귀하)",
    re.IGNORECASE,
)
_RUN = 12
_AROUND = 8


def stands_in_data(lines: Sequence[str], number: int, pointer: re.Pattern[str]) -> bool:
    """Whether a line stands in a letter, a record or a list, as far as its neighbours tell.

    Args:
        lines: All lines.
        number: Which one.
        pointer: What a pointer looks like: a line that has one was such a line before, and says nothing.
    """
    around = lines[max(0, number - _AROUND) : number + _AROUND + 1]
    if any(_LETTER.match(line) for line in around):
        return True
    return any(_is_data(line) for line in _run(lines, number, -1, pointer) + _run(lines, number, 1, pointer))


def _run(lines: Sequence[str], number: int, step: int, pointer: re.Pattern[str]) -> list[str]:
    """The lines next to one, up to the first that has no label."""
    run: list[str] = []
    at = number + step
    while 0 <= at < len(lines) and len(run) < _RUN:
        line = lines[at]
        if not pointer.search(line):
            if not line.strip() or not (_LABELLED.match(line) or _DATE_ALONE.match(line)):
                break
            run.append(line)
        at += step
    return run


def _is_data(line: str) -> bool:
    label = _LABELLED.match(line)
    if label is None or _DATE_ALONE.match(line):
        return True
    low = lowered(label[1])
    return not any(each in CONTEXT_LABELS for each in _WORDS.findall(low)) and not any(
        each in low for each in CONTEXT_WITHOUT_BLANKS
    )
