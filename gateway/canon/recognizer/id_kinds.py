"""Ids, keys, tokens, addresses, versions and counters.

Of plain numbers only integers are a ``counter``; prices, percentages and measures are ``user_data``.
"""

import re
from collections.abc import Callable
from string import ascii_uppercase, digits

from gateway.canon.recognizer.value_kind import ID_WORDS, FoundValue, ValueKind
from gateway.core.reasons import Reason

_START, _END = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"
_DIGIT, _UPPER, _LOWER = re.compile(r"[0-9]"), re.compile(r"[A-Z]"), re.compile(r"[a-z]")
_WORDS_IN_CASE = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[^A-Za-z]+")
_LETTER = re.compile(r"[A-Za-z]")
_HEX_LETTER = re.compile(r"[a-fA-F]")
_RANDOM_CHARS = 10
_WORD_BEHIND = re.compile(r"[ \-]?[^\W\d_]{2}")


def _has_digit_and_letter(one: FoundValue, other: FoundValue) -> bool:
    """One of the two is enough: a short hexadecimal number may happen to have digits only."""
    return any(_DIGIT.search(each.value) and not each.value.isdigit() for each in (one, other))


def _is_random(value: str) -> bool:
    """Whether it alternates between digits and letters, or between cases, more often than words do."""
    pieces = _WORDS_IN_CASE.findall(value)
    return len(value) / len(pieces) < 3.5 and len(pieces) >= 4


def _are_random(one: FoundValue, other: FoundValue) -> bool:
    return _is_random(one.value) and _is_random(other.value)


def _are_marks(one: FoundValue, other: FoundValue) -> bool:
    """Short random marks: digits and letters in turn, unlike numbered words (``doc12``)."""
    return all(
        _LETTER.search(each.value) and _DIGIT.search(each.value) and len(_WORDS_IN_CASE.findall(each.value)) >= 3
        for each in (one, other)
    )


def _are_encoded(one: FoundValue, other: FoundValue) -> bool:
    """Base64: all kinds of characters, mixed."""
    return all(
        _UPPER.search(each.value) and _LOWER.search(each.value) and _is_random(each.value) for each in (one, other)
    )


def _have_one_prefix(one: FoundValue, other: FoundValue) -> bool:
    """Whether both have the same prefix, and either at least four characters behind it or an id word in it."""
    prefix, other_prefix = (each.match["prefix"] for each in (one, other))
    if prefix != other_prefix or not all(_DIGIT.search(each.match["rest"]) for each in (one, other)):
        return False
    words = set(re.split(r"[_\-]", prefix.lower()))
    return bool(words & ID_WORDS) or all(len(each.match["rest"]) >= 4 for each in (one, other))


def _has_id_key(one: FoundValue, other: FoundValue) -> bool:
    """Whether the key is that of an id, and both values have digits or at least 12 characters."""
    label = one.window.label(one.start)
    words = set(re.split(r"[ _\-.]+", label))
    words |= {label[-2:]} if label.endswith("id") else set()
    return bool(words & ID_WORDS) and all(_DIGIT.search(each.value) or len(each.value) >= 12 for each in (one, other))


def _are_addresses(one: FoundValue, other: FoundValue) -> bool:
    return all(max(map(int, re.findall(r"\d+", each.match["ip"]))) <= 255 for each in (one, other))


def _are_ipv6_addresses(one: FoundValue, other: FoundValue) -> bool:
    """Excludes times of day, which consist of decimal groups."""
    return all("::" in each.value or _HEX_LETTER.search(each.value) for each in (one, other))


def _is_counter(one: FoundValue, other: FoundValue) -> bool:
    """Excludes numbers of products or standards (``utf-8``) and numbers within a sentence (``at most 3 words``), which
    belong to an edited instruction."""
    window = one.window
    joined = re.search(r"([A-Za-z]+)[\-.]$", window.text[max(one.start - 16, 0) : one.start])
    if joined is not None:
        return joined[1].lower() in ID_WORDS
    if window.label(one.start) or set(window.words_before(one.start, 2)) & ID_WORDS:
        return True
    if window.text[: one.start].rstrip().endswith(("#", "№")):
        return True
    return not all(_WORD_BEHIND.match(each.window.text, each.end) for each in (one, other))


def _kind(
    detail: str,
    pattern: str,
    fits: Callable[[FoundValue, FoundValue], bool] | None = None,
    *,
    kind: str = "id",
    start: str = _START,
    end: str = _END,
    signs: str = digits,
) -> ValueKind:
    compiled = re.compile(f"{start}(?:{pattern}){end}")
    return ValueKind(Reason.DYNAMIC_ID, detail, kind, compiled, fits=fits, signs=frozenset(signs))


_HEX = "[0-9a-fA-F]"
UUID = rf"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"
"""Pattern of a UUID, without what is around it."""

SURE_KINDS = (
    _kind("uuid", UUID, signs="-"),
    _kind("traceparent", rf"{_HEX}{{2}}-{_HEX}{{32}}-{_HEX}{{16}}-{_HEX}{{2}}", signs="-"),
    _kind("jwt", r"eyJ[A-Za-z0-9_\-]{8,}(?:\.[A-Za-z0-9_\-]+){0,2}", kind="token", signs="J"),
    _kind(
        "ip",
        r"(?P<ip>\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})(?::\d{2,5})?",
        _are_addresses,
        kind="address",
        start=r"(?<![A-Za-z0-9.])",
        end=r"(?![A-Za-z0-9])",
        signs=".",
    ),
    _kind(
        "ip",
        rf"(?:{_HEX}{{1,4}}:){{3,7}}:?{_HEX}{{1,4}}|{_HEX}{{1,4}}(?::{_HEX}{{0,4}}){{2,7}}",
        _are_ipv6_addresses,
        signs=":",
    ),
)
"""Kinds without false positives; tried first."""

KINDS = (
    _kind(
        "version",
        r"[vV]?\d{1,4}(?:\.\d{1,6}){2,3}(?:[\-+.][0-9A-Za-z][0-9A-Za-z.]*)?|[vV]\d{1,4}\.\d{1,6}",
        kind="version",
    ),
    _kind("object_id", rf"{_HEX}{{24}}", _has_digit_and_letter),
    _kind("hex", rf"(?:0x)?{_HEX}{{8,}}", _has_digit_and_letter),
    _kind("ulid", r"[0-7][0-9A-HJKMNP-TV-Z]{25}|[0-7][0-9a-hjkmnp-tv-z]{25}", _has_digit_and_letter),
    _kind("ksuid", r"[0-9A-Za-z]{27}", _are_random, signs=digits + ascii_uppercase),
    _kind("snowflake", r"\d{17,19}"),
    _kind(
        "prefixed",
        r"(?P<prefix>[A-Za-z]{1,12}(?:[_\-][A-Za-z]{1,12}){0,2}(?:[_\-]20\d\d)?[_\-])(?P<rest>[A-Za-z0-9][A-Za-z0-9\-]*)",
        _have_one_prefix,
    ),
    _kind(
        "random",
        rf"[A-Za-z0-9_\-]{{{_RANDOM_CHARS},}}",
        _are_random,
        start=r"(?<![A-Za-z0-9_+/\-])",
        end=r"(?![A-Za-z0-9+/=])",
        signs=digits + ascii_uppercase + "_-",
    ),
    _kind("random", r"[A-Za-z0-9]{6,32}", _are_marks, start=r"(?<=[\[(<{])", end=r"(?=[\])>}])"),
    _kind(
        "base64",
        r"[A-Za-z0-9+/]{16,}={0,2}",
        _are_encoded,
        start=r"(?<![A-Za-z0-9+/])",
        end=r"(?![A-Za-z0-9+/=])",
        signs=ascii_uppercase,
    ),
    _kind("port", r"\d{2,5}", kind="port", start=r"(?<=[A-Za-z0-9\]]:)"),
    _kind(
        "counter",
        r"\d{1,16}(?:(?:st|nd|rd|th)(?![A-Za-z]))?",
        _is_counter,
        kind="number",
        start=r"(?<![A-Za-z0-9_$€£¥₽₹])(?<!\d[.,])(?<![$€£¥₽₹] )",
        end=r"(?![A-Za-z0-9_]|[.,]\d|\s?[%$€£¥₽₹°])",
    ),
    _kind(
        "labelled",
        r"[A-Za-z0-9][A-Za-z0-9_\-./+]*[A-Za-z0-9]={0,2}|[A-Za-z0-9]",
        _has_id_key,
        start=r"(?<![A-Za-z0-9_\-.:/+])",
        signs="",
    ),
)
