"""Parses dates and times well enough to decide whether they are the current ones."""

import re
import unicodedata
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from gateway.canon.recognizer.calendar_words import MONTH_NUMBERS, ascii_digits

NEAR_SECONDS = 36 * 3600
"""Maximum distance of the current date from now: a day, plus half a day for time zones."""

_BUDDHIST, _REIWA = 543, 2018
_OTHER_CALENDAR = (1340, 1500)
"""Years of the Islamic calendars, which are not converted: such dates are unreadable."""
UNIX_UNITS = {10: 1, 13: 10**3, 16: 10**6, 19: 10**9}
"""Units per second of Unix times, by their number of digits."""
_WORD = re.compile(r"[^\s\d_.,/()\-:]+")

_COMPACT = re.compile(r"(?<!\d)(20\d\d)([01]\d)([0-3]\d)(?:[T_\-]?([0-2]\d)([0-5]\d)(?:[0-5]\d)?)?(?=\D|$)")
_YEAR_FIRST = re.compile(r"(?<!\d)(\d{4})\s?[\-/.]\s?(\d{1,2})\s?[\-/.]\s?(\d{1,2})(?!\d)")
_YEAR_LAST = re.compile(r"(?<![\d.])(\d{1,2})\s?[\-/.]\s?(\d{1,2})\s?[\-/.]\s?(\d{4}|\d{2})(?![\d:])")
_EAST_ASIAN = re.compile(r"(?:(令和)?\s?(\d{1,4})\s?[年년])?\s?(\d{1,2})\s?[月월](?:\s?(\d{1,2})\s?[日号號일])?")
_VIETNAMESE = re.compile(r"(\d{1,2})\s(?:tháng\s)(\d{1,2})(?:,?\s(?:năm\s)?(\d{4}))?")
_DAY_IN_FRONT = re.compile(r"(?<!\d)(\d{1,2})(?:st|nd|rd|th|er|ste|de|[.ºª°])?\.?[\s\-/]?(?:de\s|of\s|d['’])?$")
_DAY_BEHIND = re.compile(r"\.?[\s\-]{1,2}(\d{1,2})(?!\d|:)(?:st|nd|rd|th|ta|a)?")
_YEAR_BEHIND = re.compile(r"\.?,?[\s/\-](?:de\s|del\s|of\s)?(\d{4}|\d{2}(?![\d:]))(?!\d)")
_CLOCK = re.compile(
    r"(?<![\d.:/\-])(\d{1,2})(?:\s?[:hH時时点點시]\s?|\.(?=[0-5]\d\s?[Uu]hr))([0-5]\d)(?!\d|[.]\d{2,4}[./])"
)
_OFFSET = re.compile(r"\d\s?(?:UTC|GMT)?\s?([+\-−])(\d{1,2})(?::?(\d{2}))?(?![\d\-/.])")
_AFTERNOON = re.compile(r"[pP]\.?[mM]\b|下午|晚上|午後|오후")
_YEAR = re.compile(r"(?<![\d.:])(\d{4})(?![\d:])")


@dataclass(frozen=True, slots=True)
class Moment:
    """A parsed date.

    Attributes:
        days: Possible readings as year, month and day, each 0 if missing; 03/04/2026 has two readings.
        second: Second of the day; None without a time of day.
        offset: Offset of its time zone from UTC in seconds; 0 if it has no numeric offset.
        epoch: Unix seconds, if given in this form.
    """

    days: tuple[tuple[int, int, int], ...] = ()
    second: int | None = None
    offset: int = 0
    epoch: float | None = None

    def is_near(self, now: float) -> bool:
        """Whether it may be the current date or time at ``now``, Unix seconds."""
        if self.epoch is not None:
            return abs(self.epoch - now) <= NEAR_SECONDS
        return any(
            start - NEAR_SECONDS <= now <= end + NEAR_SECONDS
            for each in self.days
            for start, end in self._spans(each, now)
        )

    def seconds_from(self, now: float) -> float | None:
        """Distance of its nearest reading from ``now`` in seconds: negative for the past, 0 if ``now`` is in it.

        None for a date that does not exist.
        """
        if self.epoch is not None:
            return self.epoch - now
        distances = [
            start - now if now < start else min(end - now, 0.0)
            for each in self.days
            for start, end in self._spans(each, now)
        ]
        return min(distances, key=abs, default=None)

    def begins(self) -> float | None:
        """Unix seconds of the first reading's begin; None without a year, or for a date that does not exist."""
        if self.epoch is not None:
            return self.epoch
        spans = [span for each in self.days[:1] if each[0] for span in self._spans(each, 0.0)]
        return spans[0][0] if spans else None

    def _spans(self, day: tuple[int, int, int], now: float) -> list[tuple[float, float]]:
        year, month, number = day
        current = datetime.fromtimestamp(now, UTC).year
        spans: list[tuple[float, float]] = []
        for each in (year,) if year else (current - 1, current, current + 1):
            try:
                start = date(each, month or 1, number or 1)
            except ValueError:
                continue
            length = timedelta(days=1 if number else 31 if month else 366)
            begin = datetime(start.year, start.month, start.day, tzinfo=UTC).timestamp() - self.offset
            if self.second is not None and number:
                spans.append((begin + self.second, begin + self.second))
            else:
                spans.append((begin, begin + length.total_seconds()))
        return spans


def moment(value: str) -> Moment | None:
    """Parse a date; None if there is none, such as in a time of day or in an unknown language."""
    text = ascii_digits(value).strip()
    digits, _, fraction = text.partition(".")
    if digits.isdecimal() and len(digits) in UNIX_UNITS and (not fraction or fraction.isdecimal()):
        return Moment(epoch=int(digits) / UNIX_UNITS[len(digits)])
    days = _days(text)
    return Moment(days, _second(text), _offset(text)) if days else None


def _days(text: str) -> tuple[tuple[int, int, int], ...]:
    if found := _COMPACT.search(text):
        return ((int(found[1]), int(found[2]), int(found[3])),)
    if found := _YEAR_FIRST.search(text):
        year = _gregorian(int(found[1]))
        return _valid((year, int(found[2]), int(found[3])), (year, int(found[3]), int(found[2])))
    if found := _YEAR_LAST.search(text):
        year = _gregorian(_full(found[3]))
        return _valid((year, int(found[2]), int(found[1])), (year, int(found[1]), int(found[2])))
    if found := _EAST_ASIAN.search(text):
        year = int(found[2] or 0)
        year = year + _REIWA if found[1] else _gregorian(year)
        return _valid((year, int(found[3]), int(found[4] or 0)))
    if found := _VIETNAMESE.search(text):
        return _valid((int(found[3] or 0), int(found[2]), int(found[1])))
    return _named(text)


def _named(text: str) -> tuple[tuple[int, int, int], ...]:
    """Dates with the name of a month."""
    for word in _WORD.finditer(text):
        month = MONTH_NUMBERS.get(unicodedata.normalize("NFC", word[0]).casefold())
        if month is None:
            continue
        at = word.end()
        day = 0
        if (front := _DAY_IN_FRONT.search(text[max(0, word.start() - 12) : word.start()])) and int(front[1]) <= 31:
            day = int(front[1])
        elif (behind := _DAY_BEHIND.match(text, at)) and int(behind[1]) <= 31:
            day, at = int(behind[1]), behind.end()
        year = _YEAR_BEHIND.match(text, at)
        if year is None:
            other = _YEAR.search(text)
            found_year = int(other[1]) if other else 0
        else:
            found_year = _full(year[1])
        if day or found_year:
            return _valid((_gregorian(found_year), month, day))
    return ()


def _valid(*days: tuple[int, int, int]) -> tuple[tuple[int, int, int], ...]:
    return tuple(
        dict.fromkeys(
            day
            for day in days
            if 1 <= day[1] <= 12 and day[2] <= 31 and not _OTHER_CALENDAR[0] <= day[0] <= _OTHER_CALENDAR[1]
        )
    )


def _full(year: str) -> int:
    return int(year) + 2000 if len(year) == 2 else int(year)


def _gregorian(year: int) -> int:
    return year - _BUDDHIST if 2443 <= year <= 2643 else year


def _second(text: str) -> int | None:
    found = _CLOCK.search(text)
    if found is None:
        compact = _COMPACT.search(text)
        return int(compact[4]) * 3600 + int(compact[5]) * 60 if compact and compact[4] else None
    hour = int(found[1])
    if hour < 12 and _AFTERNOON.search(text):
        hour += 12
    return hour * 3600 + int(found[2]) * 60 if hour <= 24 else None


def _offset(text: str) -> int:
    clock = _CLOCK.search(text)
    found = _OFFSET.search(text, clock.end() - 1) if clock else None
    if found is None or int(found[2]) > 14:
        return 0
    seconds = int(found[2]) * 3600 + int(found[3] or 0) * 60
    return seconds if found[1] == "+" else -seconds
