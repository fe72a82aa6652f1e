"""Names of months, weekdays, units of time and relative days; replaces them in a text by marks.

Marking keeps all offsets: each letter of a month's name becomes ``MONTH``, and so on, so that one pattern fits all
languages.
"""

import re
import unicodedata

from gateway.canon.lexicon import LexiconError, alternatives, by_part, entries

MONTH, WEEKDAY, SHORT_DAY, HALF, UNIT, RELATIVE = "\ue001", "\ue002", "\ue003", "\ue004", "\ue005", "\ue006"
_MARKS = "\ue001-\ue006"


_SCRIPTLESS = re.compile(  # scripts without spaces between words
    r"(?P<weekday>(?:星期|週|周|礼拜|禮拜)[一二三四五六日天]|[月火水木金土日]曜日?|[월화수목금토일]요일)"
    rf"|(?P<half>{alternatives(entries('calendar', 'half_days'))})"
)
_WORD = re.compile(
    r"(?:[^\W\d_]|[\u0300-\u036f\u064b-\u065f\u0900-\u0903\u093a-\u0957])"
    r"(?:[^\W\d_]|[\u0300-\u036f\u064b-\u065f\u0900-\u0903\u093a-\u0957'’](?=[^\W\d_]|\b)|[\u0900-\u0903\u093a-\u0957])*"
)
_FOREIGN_DIGIT = re.compile(r"[^\D0-9]")
_RESERVED = re.compile(f"[{_MARKS}]")


def _folded(word: str) -> str:
    return unicodedata.normalize("NFC", word).casefold()


def _month_numbers() -> dict[str, int]:
    numbers: dict[str, int] = {}
    for language, months in by_part("calendar", "months").items():
        if len(months) != 12:
            raise LexiconError(f"calendar.yaml: months.{language} has {len(months)} months instead of 12")
        for number, names in enumerate(months, 1):
            for name in names.split("/"):
                if numbers.setdefault(_folded(name), number) != number:
                    raise LexiconError(f"calendar.yaml: months.{language}: {name!r} already stands for another month")
    return numbers


MONTH_NUMBERS = _month_numbers()
"""Month, 1 to 12, by its name, NFC-normalized and case-folded. Unambiguous within these languages."""

# For words in several lists the last list wins: month over unit, weekday over its short form.
_CLASSES: dict[str, str] = {
    _folded(word): mark
    for mark, words in (
        (SHORT_DAY, entries("calendar", "short_weekdays")),
        (RELATIVE, entries("calendar", "relative_days")),
        (UNIT, entries("calendar", "units")),
        (WEEKDAY, entries("calendar", "weekdays")),
        (MONTH, MONTH_NUMBERS.keys() - set(entries("calendar", "months_unmarked"))),
    )
    for word in words
}


_PIECES = frozenset(piece for word in _CLASSES for piece in word.split("'"))
_ASCII_LETTERS = str.maketrans({chr(number): " " for number in range(128) if not chr(number).isalpha()})


def ascii_digits(text: str) -> str:
    """The text, of the same length, with decimal digits of all scripts as ASCII."""
    return _FOREIGN_DIGIT.sub(lambda match: str(unicodedata.decimal(match[0])), text)


def marked(text: str) -> str:
    """The text, of the same length, with calendar words marked and decimal digits of all scripts as ASCII."""
    text = _RESERVED.sub("\ue000", text)
    if not text.isascii():
        text = ascii_digits(text)
        text = _SCRIPTLESS.sub(lambda match: (WEEKDAY if match["weekday"] else HALF) * len(match[0]), text)
        text = text.replace("：", ":")
    elif _PIECES.isdisjoint(text.lower().translate(_ASCII_LETTERS).split()):
        # Most texts have none; replacing each word by itself takes several times as long.
        return text
    return _WORD.sub(_mark_word, text)


def _mark_word(match: re.Match[str]) -> str:
    word = match[0]
    mark = _CLASSES.get(word.casefold().replace("’", "'"))
    return word if mark is None else mark * len(word)
