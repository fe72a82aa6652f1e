"""Lines around a date whose label may stand in any document: do they look like data?"""

import re
from collections.abc import Sequence

from gateway.canon.rules.dynamic.values import lowered
from gateway.canon.rules.dynamic.words import CONTEXT_LABELS, CONTEXT_WITHOUT_BLANKS

_LABELLED = re.compile(r"\s*(?:[-*•]\s+)?[*_]*([^:：=\n]{1,40}?)[*_]*\s*[:：=](?!//)")
_WORDS = re.compile(r"[^\W\d_]+")
_DATE_ALONE = re.compile(r"[\s*_\-•]*[\d:./\-TZ ,]{8,40}$")
_LETTER = re.compile(
    r"\s*(?:(?:(?:dear|hi|hello|hey|good morning|to whom|hallo|liebe[rs]?|sehr geehrte[rs]?|guten tag|cher|chère|"
    r"bonjour|madame|monsieur|"
    r"hola|estimad[oa]s?|querid[oa]|caro|cara|ciao|gentile|egregio|prezad[oa]s?|olá|geachte|beste|szanown[iy]|"
    r"dzień dobry|cześć|"
    r"vážen[ýáí]|dobrý den|уважаем[а-я]+|здравствуйте|привет|шановн[а-яі]+|вітаю|sayın|merhaba|bästa|hej|kjære|kære|"
    r"hei|"
    r"عزيزي|عزيزتي|שלום|יקר|प्रिय|kính gửi)(?!\w)[^\n.:]{0,40}[,!،，]\s*$)"
    r"|(?:sincerely|(?:best|kind|warm)? ?regards|yours|cheers|best|mit freundlichen|viele grüße|beste grüße|"
    r"cordialement|atentamente|"
    r"saludos|distinti saluti|cordiali saluti|atenciosamente|met vriendelijke|z poważaniem|pozdrawiam|s pozdravem|"
    r"с уважением|"
    r"з повагою|saygılarımla|med vänlig|trân trọng)(?!\w)[^\n.:]{0,20}[,!]?\s*$"
    r"|(?:re|subject|cc|betreff|objet|asunto|oggetto|assunto|betreft|temat|тема)\s?:|拝啓|敬具|尊敬的|此致|敬启|안녕하세요|귀하)",
    re.IGNORECASE,
)
_LONGEST_GREETING = 80
_RUN = 12
_AROUND = 8


def stands_in_data(lines: Sequence[str], number: int, pointer: re.Pattern[str]) -> bool:
    """Whether a line stands in a letter, a record or a list, as far as its neighbours tell.

    Args:
        lines: All lines.
        number: Which one.
        pointer: What a pointer looks like: a line that has one was such a line before, and says nothing.
    """
    return stands_in_letter(lines, number) or any(
        _is_data(line) for line in _run(lines, number, -1, pointer) + _run(lines, number, 1, pointer)
    )


def stands_in_letter(lines: Sequence[str], number: int) -> bool:
    """Whether somebody is greeted in a line near it."""
    around = lines[max(0, number - _AROUND) : number + _AROUND + 1]
    return any(len(line) <= _LONGEST_GREETING and _LETTER.match(line) for line in around)


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
