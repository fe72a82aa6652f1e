"""The part of the journal that outlives a restart: hourly totals of seven days, totals by day, markers.

Columns are stored by name, so that another release can read them. Missed tokens of a reason that this release does not
know become ``unclassified``: hits and reasons still add up to the prompt's tokens.
"""

import zlib
from collections.abc import Sequence

import msgspec

from gateway.core.reasons import Reason
from gateway.stats import columns
from gateway.stats.columns import Row
from gateway.stats.counters import Counters
from gateway.stats.day_totals import DayKey, DayTotal, DayTotals
from gateway.stats.label_limiter import StatsKey
from gateway.stats.markers import Marker, Markers

_VERSION = 2
_QUICK = 1
_MAX_BYTES = 256 * 1024 * 1024
_UNCLASSIFIED = columns.MISSED + columns.REASON_COLUMNS.index(Reason.UNCLASSIFIED)
_UNCLASSIFIED_SECONDS = columns.LOST_GPU_SECONDS + columns.REASON_COLUMNS.index(Reason.UNCLASSIFIED)
_MISSED, _LOST = "missed:", "lost_gpu_seconds:"


class HistoryInvalid(Exception):
    """Stored data is no history, or of a release that stores another format; the message says which."""


class _Hour(msgspec.Struct, frozen=True, array_like=True):
    """The totals of an hour.

    Attributes:
        start: Unix seconds.
        rows: For each key: indexes into ``History.columns``, and the values.
    """

    start: int
    rows: list[tuple[StatsKey, list[int], list[float]]]


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """The stored format. The sender can be read without the content, which takes up to a quarter of a second.

    Attributes:
        version: Of the format.
        sender: Random id of the process that counted.
        content: ``_History``, compressed.
    """

    version: int
    sender: bytes
    content: bytes


class _History(msgspec.Struct, frozen=True, array_like=True):
    """What is stored.

    Attributes:
        since: Begin of the totals, Unix seconds.
        columns: Names of the columns.
        hours: Hourly totals.
        days: Totals by day.
        markers: Markers.
    """

    since: float
    columns: list[str]
    hours: list[_Hour]
    days: list[tuple[DayKey, DayTotal]]
    markers: list[Marker]


_stored_decoder = msgspec.msgpack.Decoder(_Stored)
_decoder = msgspec.msgpack.Decoder(_History)


class JournalHistory:
    """The counters, day totals and markers of a journal, and since when they count.

    Args:
        since: Start of the journal, Unix seconds.
        sender: Random id of this process.

    Attributes:
        since: Begin of the hourly totals, Unix seconds; earlier than the process itself after a restart.
        counts: The counters.
        days: The totals by day.
        markers: The markers.
    """

    def __init__(self, since: float, sender: bytes) -> None:
        self.since = since
        self._sender = sender
        self._restored = {sender}
        self.counts = Counters()
        self.days = DayTotals()
        self.markers = Markers()

    def encoded(self) -> bytes:
        """The history, as it is stored."""
        hours = [
            _Hour(start, [(key, list(row), list(row.values())) for key, row in rows.items()])
            for start, rows in self.counts.hours()
        ]
        history = _History(self.since, list(_NAMES), hours, list(self.days.items()), self.markers.all())
        content = zlib.compress(msgspec.msgpack.encode(history), _QUICK)
        return msgspec.msgpack.encode(_Stored(_VERSION, self._sender, content))

    def restore(self, data: bytes) -> None:
        """Add the history of an earlier process; nothing, if that was added before or is this one's own.

        Raises:
            HistoryInvalid: The data cannot be read; nothing was added.
        """
        sender = sender_of(data)
        if sender in self._restored:
            return
        history = _decoded(data)
        self._restored.add(sender)
        places = [_place_of(name) for name in history.columns]
        for hour in history.hours:
            for key, numbers, figures in hour.rows:
                self.counts.restore(key, hour.start, _row(places, numbers, figures))
        self.days.restore(history.days)
        self.markers.restore(history.markers)
        self.since = min(self.since, history.since)


def sender_of(data: bytes) -> bytes:
    """The random id of the process that counted a stored history, whose content is not read.

    Raises:
        HistoryInvalid: The data is no history of this release.
    """
    return _stored(data).sender


def check_history(data: bytes) -> None:
    """Read a stored history, and drop what was read.

    Raises:
        HistoryInvalid: The data cannot be read.
    """
    _decoded(data)


def day_totals_of(data: bytes) -> DayTotals:
    """The totals by day of a stored history.

    Raises:
        HistoryInvalid: The data cannot be read.
    """
    totals = DayTotals()
    totals.restore(_decoded(data).days)
    return totals


def _stored(data: bytes) -> _Stored:
    try:
        stored = _stored_decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise HistoryInvalid(f"it is no history of this program ({error})") from None
    if stored.version != _VERSION:
        raise HistoryInvalid(f"its format has version {stored.version}, and this release reads {_VERSION}")
    return stored


def _decoded(data: bytes) -> _History:
    try:
        decompressor = zlib.decompressobj()
        content = decompressor.decompress(_stored(data).content, _MAX_BYTES)
        if decompressor.unconsumed_tail or not decompressor.eof:
            raise HistoryInvalid("it is incomplete, or larger than any history")
        history = _decoder.decode(content)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise HistoryInvalid(f"it is no history of this program ({error})") from None
    widest = len(history.columns)
    for hour in history.hours:
        for _, numbers, figures in hour.rows:
            if len(numbers) != len(figures) or any(not 0 <= number < widest for number in numbers):
                raise HistoryInvalid("its rows do not fit its columns")
    return history


def _row(places: Sequence[int], numbers: Sequence[int], figures: Sequence[float]) -> Row:
    row: Row = {}
    for number, figure in zip(numbers, figures, strict=True):
        place = places[number]
        if place >= 0:
            row[place] = row.get(place, 0) + figure
    return row


def _names() -> list[str]:
    """A name for each column, in order."""
    names = [""] * columns.WIDTH
    groups: list[tuple[int, str, Sequence[object]]] = [
        (columns.REQUESTS, "", ("requests", "prompt_tokens", "confirmed", "predicted")),
        (columns.MISSED, _MISSED, columns.REASON_COLUMNS),
        (columns.LADDER, "ladder:", columns.RUNG_COLUMNS),
        (columns.TURN_TOKENS, "turn_tokens:", range(columns.TURNS)),
        (columns.TURN_HITS, "turn_hits:", range(columns.TURNS)),
        (columns.OBSERVED_TOKENS, "", ("observed_tokens",)),
        (columns.SAVED_BY_RULE, "saved_by_rule:", [":".join(rule) for rule in columns.RULE_COLUMNS]),
        (columns.LOST_BY_RULE, "lost_by_rule:", [":".join(rule) for rule in columns.RULE_COLUMNS]),
        (columns.SKIPPED, "", ("skipped", "observed")),
        (columns.CHANGED_BY_RULE, "changed_by_rule:", [":".join(rule) for rule in columns.RULE_COLUMNS]),
        (columns.COLD, "ttft_cold:", range(columns.BINS)),
        (columns.WARM, "ttft_warm:", range(columns.BINS)),
        (columns.COLD_TOTAL, "total_cold:", range(columns.BINS)),
        (columns.WARM_TOTAL, "total_warm:", range(columns.BINS)),
        (columns.SAVED_SECONDS, "", ("saved_seconds", "saved_gpu_seconds", "lost_seconds")),
        (columns.LOST_GPU_SECONDS, _LOST, columns.REASON_COLUMNS),
    ]
    for first, prefix, endings in groups:
        for number, ending in enumerate(endings):
            names[first + number] = f"{prefix}{ending}"
    assert all(names)
    return names


_NAMES = _names()
_PLACES = {name: place for place, name in enumerate(_NAMES)}


def _place_of(name: str) -> int:
    """The column of a stored name; -1 for one whose values are dropped."""
    place = _PLACES.get(name, -1)
    if place < 0 and name.startswith(_MISSED):
        return _UNCLASSIFIED
    if place < 0 and name.startswith(_LOST):
        return _UNCLASSIFIED_SECONDS
    return place
