"""Sums as bytes, to outlive a restart (hourly totals of seven days, totals by day, markers) or for other gateways.

Columns are stored by name, so that another release can read them. Missed tokens of a reason that this release does not
know become ``unclassified``: hits and reasons still add up to the prompt's tokens.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from gateway.core.reasons import Reason
from gateway.stats.day_totals import DayKey, DayTotal
from gateway.stats.label_limiter import StatsKey
from gateway.stats.markers import Marker
from gateway.stats.query_arguments import Selection
from gateway.stats.totals import COLUMNS, LOST, MISSED, PLACES, Row

HISTORY = 2
"""Version of the format of stored sums."""
FIGURES = 1002
"""Version of the format of sums for other gateways."""

_QUICK = 1
_MAX_BYTES = 256 * 1024 * 1024


class HistoryInvalid(Exception):
    """Stored data is no history, or of a release that stores another format; the message says which."""


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """The stored format. The sender can be read without the content, which takes up to a quarter of a second.

    Attributes:
        version: Of the format.
        sender: Random id of the process that counted.
        content: ``StoredSums``, compressed.
    """

    version: int
    sender: bytes
    content: bytes


class StoredSums(msgspec.Struct, frozen=True, array_like=True):
    """What is stored.

    Attributes:
        since: Begin of the totals, Unix seconds.
        columns: Names of the columns.
        sums: Hourly totals, by Unix seconds of the hour's start; for other gateways those of windows, by their length.
            For each key indexes into ``columns``, and the values.
        days: Totals by day.
        markers: Markers.
    """

    since: float
    columns: list[str]
    sums: list[tuple[int, list[tuple[StatsKey, list[int], list[float]]]]]
    days: list[tuple[DayKey, DayTotal]]
    markers: list[Marker]

    def rows(self) -> Iterator[tuple[int, StatsKey, Row]]:
        """Hours or windows, keys, and the rows in the columns of this release."""
        columns = [_column_of(name) for name in self.columns]
        for start, rows in self.sums:
            for key, numbers, figures in rows:
                row: Row = {}
                for number, figure in zip(numbers, figures, strict=True):
                    if (column := columns[number]) is not None:
                        row[column] = row.get(column, 0) + figure
                yield start, key, row

    def window(self, selection: Selection) -> dict[StatsKey, Row]:
        """The rows of a selection."""
        seconds = selection.window.seconds
        return {key: row for length, key, row in self.rows() if length == seconds and selection.takes(*key)}


_stored_decoder = msgspec.msgpack.Decoder(_Stored)
_decoder = msgspec.msgpack.Decoder(StoredSums)


def encoded(  # noqa: PLR0917 - the fields in their order
    version: int,
    sender: bytes,
    since: float,
    sums: Iterable[tuple[int, Mapping[StatsKey, Row]]],
    days: list[tuple[DayKey, DayTotal]] | None = None,
    markers: list[Marker] | None = None,
) -> bytes:
    """Sums as they are stored: ``HISTORY`` or ``FIGURES``; of a sender, and otherwise as in ``StoredSums``."""
    packed = [
        (start, [(key, [PLACES[column] for column in row], list(row.values())) for key, row in rows.items()])
        for start, rows in sums
    ]
    content = msgspec.msgpack.encode(StoredSums(since, list(COLUMNS), packed, days or [], markers or []))
    return msgspec.msgpack.encode(_Stored(version, sender, zlib.compress(content, _QUICK)))


def decoded(data: bytes, version: int = HISTORY) -> StoredSums:
    """Stored sums.

    Raises:
        HistoryInvalid: The data cannot be read.
    """
    try:
        decompressor = zlib.decompressobj()
        content = decompressor.decompress(_stored(data, version).content, _MAX_BYTES)
        if decompressor.unconsumed_tail or not decompressor.eof:
            raise HistoryInvalid("it is incomplete, or larger than any history")
        found = _decoder.decode(content)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise HistoryInvalid(f"it is no history of this program ({error})") from None
    widest = len(found.columns)
    for _, rows in found.sums:
        for _, numbers, figures in rows:
            if len(numbers) != len(figures) or any(not 0 <= number < widest for number in numbers):
                raise HistoryInvalid("its rows do not fit its columns")
    return found


def decode_all(every: Sequence[bytes] | None, version: int, own: bytes | None = None) -> tuple[list[StoredSums], bool]:
    """Stored sums of other gateways, and whether any is missing; all are if ``every`` is None.

    Those of the process with the random id ``own`` are skipped.
    """
    found: list[StoredSums] = []
    missing = every is None
    for data in every or ():
        try:
            if sender_of(data, version) != own:
                found.append(decoded(data, version))
        except HistoryInvalid:  # of another release
            missing = True
    return found, missing


def sender_of(data: bytes, version: int = HISTORY) -> bytes:
    """The random id of the process that counted stored sums, whose content is not read.

    Raises:
        HistoryInvalid: The data is no history of this release.
    """
    return _stored(data, version).sender


def _stored(data: bytes, version: int) -> _Stored:
    try:
        stored = _stored_decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise HistoryInvalid(f"it is no history of this program ({error})") from None
    if stored.version != version:
        raise HistoryInvalid(f"its format has version {stored.version}, and this release reads {version}")
    return stored


def _column_of(name: str) -> str | None:
    """The column of a stored name; None for one whose values are dropped."""
    if name in PLACES:
        return name
    if name.startswith("missed:"):
        return MISSED[Reason.UNCLASSIFIED]
    return LOST[Reason.UNCLASSIFIED] if name.startswith("lost_gpu_seconds:") else None
