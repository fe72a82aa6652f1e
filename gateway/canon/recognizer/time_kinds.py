"""Dates, times, weekdays, Unix times, durations and relative times, in many languages.

The patterns apply to text with marked calendar words.
"""

import re
from collections.abc import Callable
from string import digits

from gateway.canon.lexicon import alternatives, entries
from gateway.canon.recognizer.calendar_words import HALF, MONTH, RELATIVE, SHORT_DAY, UNIT, WEEKDAY
from gateway.canon.recognizer.moments import UNIX_UNITS
from gateway.canon.recognizer.value_kind import ID_WORDS, TIME_WORDS, FoundValue, ValueKind
from gateway.core.reasons import Reason


def _any(section: str, *, as_written: bool = False) -> str:
    return alternatives(entries("calendar", section, as_written=as_written))


_START, _END = r"(?<![A-Za-z0-9_])", r"(?![A-Za-z0-9_])"
_HOUR, _MINUTE = r"(?:[01]?\d|2[0-4])", r"[0-5]\d"
_FRACTION = r"(?:[.,]\d{1,9})?"
_AM_PM = rf"(?:\s?(?:[aApP]\.?[mM](?![A-Za-z0-9])\.?|{HALF}{{1,8}}|Uhr|uhr))?"
_ZONE = (
    r"(?:\s?(?:Z|UTC|GMT|[A-Z]{2,4}T)(?![A-Za-z0-9]))?(?:\s?[+\-−]\d{1,2}(?::?\d{2})?(?!\d))?"
    r"(?:\s?\([A-Z][A-Za-z ]{1,40}\))?(?:\[[A-Za-z_/+\-]{2,40}\])?"
)
_CLOCK = rf"{_HOUR}[:.hH]{_MINUTE}(?:[:.]{_MINUTE}{_FRACTION})?{_AM_PM}{_ZONE}"
_HALF_CLOCK = rf"(?:{HALF}{{1,8}}\s?)?{_HOUR}\s?[时時点點시:]\s?(?:\d{{1,2}}\s?[分분]?)?(?:\s?:?\d{{1,2}}\s?[秒초]?)?"

_YEAR_FIRST = r"\d{4}(?:-[01]?\d-[0-3]?\d|/[01]?\d/[0-3]?\d|\.\s?[01]?\d\.\s?[0-3]?\d\.?)"
_YEAR_LAST = r"[0-3]?\d(?:-[0-3]?\d-|/[0-3]?\d/|\.\s?[01]?\d\.\s?)(?:\d{4}|\d{2})(?!\d)"
_NAMED = (
    rf"[0-3]?\d(?:st|nd|rd|th|er|ste|de|º|ª|°)?\.?(?:\s|-|/|\sde\s|\sof\s)?{MONTH}{{2,14}}\.?"
    r",?(?:[\s/\-](?:de\s|del\s|of\s)?(?:\d{4}|\d{2}(?![\d:])))?"
)
_MONTH_FIRST = rf"{MONTH}{{2,14}}\.?[\s\-][\s]?[0-3]?\d(?!\d|:)(?:st|nd|rd|th)?(?:,?\s\d{{4}})?"
_MONTH_YEAR = rf"{MONTH}{{2,14}}\.?,?\s(?:de\s)?\d{{4}}"
_IN_FRONT = rf"(?:(?:{WEEKDAY}{{2,14}}|{SHORT_DAY}{{2,4}})\.?,?\s(?:(?:{_any('weekday_articles')})\s)?)?"
_BEHIND = rf"(?:,?\s?\(?{WEEKDAY}{{2,14}}\)?)?"
_DATE = rf"{_IN_FRONT}(?:{_YEAR_FIRST}|{_NAMED}|{_YEAR_LAST}|{_MONTH_FIRST}|{_MONTH_YEAR}){_BEHIND}"
_EAST_ASIAN = (
    r"(?:\d{1,4}\s?[年년]\s?)?\d{1,2}\s?[月월](?:\s?\d{1,2}\s?[日号號일])?"
    rf"(?:\s?[(（]?(?:{WEEKDAY}{{2,3}}|[(（][月火水木金土日월화수목금토일])[)）]?)?"
)
_BETWEEN = rf"(?:,?\s(?:(?:{_any('before_time')})\s)?|T|\s?[\-–|,]\s?)"
# Day, word and year are a date even if the month's name is unknown; the year may be of another calendar.
_UNKNOWN_MONTH = r"\d{1,2}\.?\s(?:(?:de|of)\s|d['’])?[^\W\d_]{3,14}\.?,?\s\d{4}"
_VIETNAMESE = r"(?:ngày\s)?\d{1,2}\stháng\s\d{1,2}(?:\snăm\s\d{4})?"

_REIWA = r"令和\s?\d{1,2}\s?年\s?\d{1,2}\s?月\s?\d{1,2}\s?日"
_THAI = r"\d{1,2}\s[\u0e00-\u0e7f]{3,14}\s(?:พ\.ศ\.\s)?\d{4}"

_COUNT = r"\d{1,6}(?:[.,]\d{1,3})?"
_SPAN = rf"{_COUNT}\s?{UNIT}{{1,14}}(?:(?:,?\s(?:(?:{_any('and')})\s)?){_COUNT}\s?{UNIT}{{1,14}}){{0,5}}"
_AGO = rf"(?:{_any('ago')})"
_SINCE = rf"(?:(?:{_any('since')})\s)"
_ASIAN_SPAN = rf"\d{{1,6}}\s?(?:{_any('units_unspaced')})"

_WEEKS = _any("weeks", as_written=True)
_JUST_NOW = _any("just_now", as_written=True)

_SECONDS_FROM, _SECONDS_TO = 978_307_200, 4_133_980_800  # 2001..2100


def _is_unix_time(one: FoundValue, other: FoundValue) -> bool:
    """Whether both are Unix times of this century (s, ms, µs or ns) without an id word in front.

    Nanoseconds look like ids of many services, so they need a time word in front.
    """
    label = set(one.window.label(one.start).replace("_", " ").replace("-", " ").split())
    words = label | set(one.window.words_before(one.start, 2))
    speaks_of_time = bool(words & TIME_WORDS)
    if words & ID_WORDS and not speaks_of_time:
        return False
    for found in (one, other):
        digits = found.value.partition(".")[0]
        scale = UNIX_UNITS.get(len(digits))
        if scale is None or not _SECONDS_FROM <= int(digits) // scale <= _SECONDS_TO:
            return False
    return len(one.value.partition(".")[0]) < 19 or speaks_of_time


def _is_compact_date(one: FoundValue, other: FoundValue) -> bool:
    return all(1 <= int(each.value[4:6]) <= 12 and 1 <= int(each.value[6:8]) <= 31 for each in (one, other))


def _is_year(one: FoundValue, _: FoundValue) -> bool:
    """Whether no id word, and no key except that of a time, is in front of it."""
    words = one.window.words_before(one.start, 2)
    return not set(words) & ID_WORDS and (not one.window.label(one.start) or bool(set(words) & TIME_WORDS))


def _is_calendar_name(one: FoundValue, other: FoundValue) -> bool:
    """Excludes short lower-case words: ``sun`` and ``set`` are ordinary words, too."""
    return all(len(each.value) >= 4 or not each.value[0].isascii() or each.value[0].isupper() for each in (one, other))


def _is_relative(one: FoundValue, other: FoundValue) -> bool:
    return any(each.match["ago"] or each.match["since"] or not each.match["span"] for each in (one, other))


_MOMENTS = frozenset({"iso_datetime", "datetime", "date", "time", "epoch", "weekday"})


def _kind(
    detail: str,
    pattern: str,
    fits: Callable[[FoundValue, FoundValue], bool] | None = None,
    kind: str = "",
    *,
    start: str = _START,
    end: str = _END,
    is_marked: bool = True,
    signs: str = "",
) -> ValueKind:
    compiled = re.compile(f"{start}(?:{pattern}){end}")
    is_moment, signs_of_kind = detail in _MOMENTS, frozenset(signs)
    return ValueKind(Reason.DYNAMIC_TIME, detail, kind or detail, compiled, is_marked, is_moment, fits, signs_of_kind)


KINDS = (
    _kind(
        "iso_datetime",
        rf"\d{{4}}-\d{{2}}-\d{{2}}[Tt_ ]\d{{2}}:?\d{{2}}(?::?\d{{2}}{_FRACTION})?{_ZONE}"
        rf"|20\d{{2}}[01]\d[0-3]\d[T_\-]?[0-2]\d[0-5]\d(?:[0-5]\d)?Z?",
        kind="date and time",
    ),
    _kind(
        "datetime",
        rf"(?:{_DATE}|{_EAST_ASIAN}){_BETWEEN}?(?:{_CLOCK}|{_HALF_CLOCK})"
        rf"|{_HOUR}:{_MINUTE}(?::{_MINUTE}{_FRACTION})?{_AM_PM}{_ZONE},?\s(?:(?:{_any('before_date')})\s)?{_DATE}"
        rf"|{WEEKDAY}{{2,14}},?\s{MONTH}{{2,14}}\s{{1,2}}\d{{1,2}}\s{_CLOCK}(?:\s[A-Z]{{2,5}})?\s\d{{4}}"
        rf"|\d{{1,2}}/{MONTH}{{2,14}}/\d{{4}}:\d{{2}}:\d{{2}}:\d{{2}}{_ZONE}",
        kind="date and time",
    ),
    _kind("week", rf"\d{{4}}-?W\d{{2}}(?:-?[1-7])?|(?:{_WEEKS})\s?\d{{1,2}}", is_marked=False),
    _kind("quarter", r"\d{4}[\s\-]?Q[1-4]|Q[1-4](?:[\s/\-]\d{4})?"),
    _kind("date", f"{_DATE}|{_EAST_ASIAN}|{_UNKNOWN_MONTH}|{_VIETNAMESE}"),
    _kind("date", r"20\d{6}", _is_compact_date, signs=digits),
    _kind("date", rf"{_REIWA}|{_THAI}", start="", end=""),
    _kind(
        "relative",
        rf"(?P<since>{_SINCE})?(?P<span>{_SPAN}|{_ASIAN_SPAN})(?P<ago>\s{_AGO}|\s?(?:{_any('ago_unspaced')}))?"
        rf"|{_JUST_NOW}",
        _is_relative,
        kind="relative time",
    ),
    _kind(
        "duration", rf"{_SPAN}|(?:\d{{1,6}}\s?[dhms]\s?){{2,4}}|P(?:\d{{1,4}}[YMWD])*T?(?:\d{{1,6}}(?:\.\d+)?[HMS])+"
    ),
    _kind("duration", rf"\d{{1,5}}\s?{UNIT}{{1,14}},?\s\d{{1,2}}:\d{{2}}(?::\d{{2}})?"),
    _kind(
        "time",
        rf"{_HOUR}:{_MINUTE}(?::{_MINUTE}{_FRACTION})?{_AM_PM}{_ZONE}"
        rf"|{_HOUR}(?:\s?[aApP]\.?[mM]\.?|\s?[hH]{_MINUTE}|[.]{_MINUTE}\s?[Uu]hr|\s[Uu]hr)"
        rf"|{HALF}{{1,8}}\s?{_HOUR}\s?[时時点點시:]\s?(?:\d{{1,2}}\s?[分분]?)?|{_HOUR}[时時点點시]\s?\d{{1,2}}[分분]",
        start=r"(?<![A-Za-z0-9_:.])",
        end=r"(?![A-Za-z0-9_:])",
    ),
    _kind("epoch", r"\d{10}(?:\.\d{1,9})?|\d{13}|\d{16}|\d{19}", _is_unix_time, kind="epoch time", signs=digits),
    _kind("weekday", rf"{WEEKDAY}{{2,14}}", _is_calendar_name, signs=WEEKDAY),
    _kind("month", rf"{MONTH}{{2,14}}", _is_calendar_name, signs=MONTH),
    _kind(
        "relative",
        rf"(?:{RELATIVE}|{WEEKDAY}|{HALF}){{2,14}}",
        _is_calendar_name,
        kind="relative time",
        signs=RELATIVE + WEEKDAY + HALF,
    ),
    _kind("year", r"20\d{2}", _is_year, signs=digits),
)
