"""Totals exchanged between gateways: encodes the sums of a journal, and decodes those of others to add them up."""

import zlib
from collections.abc import Sequence

import msgspec
import numpy as np

from gateway.stats import columns
from gateway.stats.counters import Counters, SelectionTotals
from gateway.stats.label_limiter import StatsKey
from gateway.stats.query_arguments import Selection
from gateway.stats.time_buckets import WINDOWS

_LAYOUT = zlib.crc32(
    repr((columns.REASON_COLUMNS, columns.RUNG_COLUMNS, columns.RULE_COLUMNS, columns.SECTIONS)).encode()
)
"""Checksum of the columns' meaning: gateways of another release may have other columns."""

_QUICK = 1
_PLACES = np.dtype("<u4")
_FIGURES = np.dtype("<f8")


class _WindowTotals(msgspec.Struct, frozen=True, array_like=True):
    """The non-zero sums of a window.

    Attributes:
        keys: The keys.
        places: Index of each value: number of its key times the number of columns, plus its column.
        figures: The values.
    """

    keys: list[StatsKey]
    places: bytes
    figures: bytes


class TotalsMessage(msgspec.Struct, frozen=True, array_like=True):
    """The totals of one journal, as another gateway reads them.

    Attributes:
        sender: Random id of the process that keeps the journal.
        layout: Checksum of its columns.
        since: Start of the journal, Unix seconds.
        windows: Its sums, by name of the window.
    """

    sender: bytes
    layout: int
    since: float
    windows: dict[str, _WindowTotals]

    def sums(self, selection: Selection) -> SelectionTotals:
        """Its sums of a selection."""
        window = self.windows[selection.window.name]
        figures = np.zeros(len(window.keys) * columns.WIDTH)
        figures[np.frombuffer(window.places, _PLACES)] = np.frombuffer(window.figures, _FIGURES)
        taken = [number for number, key in enumerate(window.keys) if selection.takes(*key)]
        return SelectionTotals([window.keys[number] for number in taken], figures.reshape(-1, columns.WIDTH)[taken])


_decoder = msgspec.msgpack.Decoder(TotalsMessage)


def encode_totals(counts: Counters, now: float, *, sender: bytes, since: float) -> bytes:
    """Encodes the totals of a journal for other gateways.

    Args:
        counts: The counters.
        now: Unix seconds.
        sender: Random id of this process.
        since: Start of the journal, Unix seconds.
    """
    windows = {name: _window_totals(counts.sums(Selection(window), now)) for name, window in WINDOWS.items()}
    return zlib.compress(msgspec.msgpack.encode(TotalsMessage(sender, _LAYOUT, since, windows)), _QUICK)


class PeerTotals:
    """The totals of other gateways.

    Args:
        encoded: Their results of ``encode_totals``; None if they are unavailable.
        sender: Random id of this process, whose own totals are skipped.
    """

    def __init__(self, encoded: Sequence[bytes] | None, sender: bytes) -> None:
        self._missing = encoded is None
        self._totals: list[TotalsMessage] = []
        for data in encoded or ():
            totals = _decode(data)
            if totals is None:
                self._missing = True
            elif totals.sender != sender:
                self._totals.append(totals)

    @property
    def since(self) -> float | None:
        """Start of the oldest of their journals; None without other gateways."""
        return min((totals.since for totals in self._totals), default=None)

    @property
    def shown(self) -> dict[str, object]:
        """Number of gateways included, and whether any is missing, JSON-ready."""
        return {"counted": 1 + len(self._totals), "missing": self._missing}

    def sums(self, selection: Selection) -> list[SelectionTotals]:
        """The sums of a selection, for each gateway."""
        return [totals.sums(selection) for totals in self._totals]


def _window_totals(sums: SelectionTotals) -> _WindowTotals:
    figures = sums.figures.reshape(-1)
    places = np.flatnonzero(figures)
    return _WindowTotals(list(sums.keys), places.astype(_PLACES).tobytes(), figures[places].astype(_FIGURES).tobytes())


def _decode(data: bytes) -> TotalsMessage | None:
    try:
        totals = _decoder.decode(zlib.decompress(data))
    except (zlib.error, msgspec.MsgspecError):
        return None
    return totals if totals.layout == _LAYOUT else None
