"""Data of people: e-mail addresses, phone numbers, locales, names, and other values in template slots."""

import re
from collections.abc import Callable

from gateway.canon.lexicon import entries
from gateway.canon.recognizer.value_kind import (
    ID_WORDS,
    LANGUAGE_NAMES,
    LOCALE_WORDS,
    PERSON_WORDS,
    FoundValue,
    TextWindow,
    ValueKind,
)
from gateway.core.reasons import Reason

_PHONE_WORDS = frozenset(entries("neighbours", "phones"))


def _is_phone(one: FoundValue, other: FoundValue) -> bool:
    """Whether both have 7 to 15 digits and a plus, a leading zero, a bracket, or a phone word in front."""
    words = {*one.window.label(one.start).split(), *one.window.words_before(one.start, 2)}
    if words & ID_WORDS - {"number", "no", "nummer", "call", "customer", "client", "user"}:
        return False
    return all(
        7 <= sum(map(str.isdigit, each.value)) <= 15 and (each.value[0] in "+(0" or words & _PHONE_WORDS)
        for each in (one, other)
    )


def _is_locale(one: FoundValue, other: FoundValue) -> bool:
    words = {*one.window.label(one.start).split(), *one.window.words_before(one.start, 2)}
    return bool(words & LOCALE_WORDS) or all("-" in each.value or "_" in each.value for each in (one, other))


def _are_languages(one: FoundValue, other: FoundValue) -> bool:
    return all(each.value.lower() in LANGUAGE_NAMES for each in (one, other))


def _kind(
    detail: str,
    pattern: str,
    fits: Callable[[FoundValue, FoundValue], bool] | None = None,
    kind: str = "",
    *,
    signs: str = "",
) -> ValueKind:
    return ValueKind(Reason.USER_DATA, detail, kind or detail, re.compile(pattern), fits=fits, signs=frozenset(signs))


EMAIL = _kind(
    "email",
    r"(?<![\w.+%\-])[\w.+%\-]{1,64}@[A-Za-z0-9\u00c0-\u052f\-]{1,63}(?:\.[A-Za-z0-9\u00c0-\u052f\-]{1,63}){1,4}",
    kind="e-mail",
    signs="@",
)

KINDS = (
    _kind("phone", r"(?<![\w+])[+(]{0,2}\d[\d ()./\-]{5,20}\d(?!\w)", _is_phone),
    _kind(
        "timezone", r"(?<![\w/])[A-Z][a-z]+/[A-Z][A-Za-z_]+(?:/[A-Z][a-z_A-Z]+)?(?![\w/])", kind="time zone", signs="/"
    ),
    _kind("locale", r"(?<![\w\-])[a-z]{2,3}(?:[\-_][A-Z]{2}|[\-_][A-Z][a-z]{3})?(?![\w\-])", _is_locale),
    _kind("locale", r"(?<!\w)[^\W\d_]{4,12}(?!\w)", _are_languages),
)

NUMBERS = (
    _kind(
        "number",
        r"(?<![\w.])(?<![A-Za-z]-)[$€£¥₽₹]?\s?[+\-−]?\d{1,12}(?:[.,' \u00a0]\d{1,12}){0,5}(?:\s?[%$€£¥₽₹°])?(?![\w])",
    ),
)
"""Numbers that are neither a time nor an id."""

_VALUE_CHARS, _VALUE_WORDS = 64, 6
_OPENING, _CLOSING = "\"'“‘«„‹<([{`*|「『【", "\"'”’»“›>)]}`*|」』】"
_LINE_END = re.compile(r"[ \t]*(?:$|[\n,;.|)\]}>」』】])")
_ARTICLES = frozenset(entries("neighbours", "articles"))
"""Articles: a capitalized word behind one is a noun (German capitalizes all nouns) rather than a name."""


def template_value(
    before: TextWindow, after: TextWindow, one: tuple[int, int], other: tuple[int, int]
) -> tuple[str, str] | None:
    """Classify two spans with the same text around them, as (detail, kind): a name or a value; None for an edit.

    A slot differs from an edit by its surroundings (a key, brackets, quotes), or by the capitals of names.
    """
    first, second = before.text[slice(*one)], after.text[slice(*other)]
    if not (_is_short(first) and _is_short(second)) or _has_digits(first) != _has_digits(second):
        return None
    words = before.words_before(one[0])
    label = set(re.split(r"[ _\-.]+", before.label(one[0]))) - {""}
    is_framed = _is_framed(before, one) and _is_framed(after, other)
    is_capital = _has_capitals(first) and _has_capitals(second)
    speaks_of_people = bool(label & PERSON_WORDS or (not label and set(words) & PERSON_WORDS))
    if is_capital and not (words and words[-1] in _ARTICLES) and _is_within_a_line(before, one):
        is_name = speaks_of_people or (" " in first and " " in second)
        return ("name", "name") if is_name else ("value", "value")
    if label and _ends_at_delimiter(before, one) and _ends_at_delimiter(after, other):
        return ("name", "name") if speaks_of_people else ("value", "value")
    return ("value", "value") if is_framed else None


def _is_short(value: str) -> bool:
    return 0 < len(value) <= _VALUE_CHARS and "\n" not in value and len(value.split()) <= _VALUE_WORDS


def _has_digits(value: str) -> bool:
    return any(map(str.isdigit, value))


def _has_capitals(value: str) -> bool:
    """Whether all words begin with a capital, as in names."""
    words = re.findall(r"[^\W\d_][\w'’.\-]*", value)
    return 0 < len(words) <= 4 and all(word[0].isupper() for word in words) and not any(map(str.isdigit, value))


def _is_within_a_line(window: TextWindow, span: tuple[int, int]) -> bool:
    """Whether words precede it in its sentence; the first word of a sentence is always capitalized."""
    sentence = re.split(r"[\n.!?]\s*", window.text[: span[0]])[-1]
    return bool(sentence.strip("\"'“‘«„*-# "))


def _is_framed(window: TextWindow, span: tuple[int, int]) -> bool:
    start, end = span
    return start > 0 and end < len(window.text) and window.text[start - 1] in _OPENING and window.text[end] in _CLOSING


def _ends_at_delimiter(window: TextWindow, span: tuple[int, int]) -> bool:
    return bool(_LINE_END.match(window.text[span[1] : span[1] + 16].lstrip("\"'`*")))
