"""What other gateways have counted: the sums of a journal as they are told, and as another one adds them to its own."""

import zlib
from collections.abc import Sequence

import msgspec
import numpy as np

from gateway.stats import columns
from gateway.stats.counters import Counters, SelectionTotals
from gateway.stats.label_limiter import StatsKey
from gateway.stats.query_arguments import Selection
from gateway.stats.time_buckets import WINDOWS

_LAYOUT = zlib.crc32(repr((columns.REASONS, columns.RUNGS, columns.RULES, columns.SECTIONS)).encode())
"""Stands for what the columns mean: gateways of another release may have others."""

_QUICK = 1
_PLACES = np.dtype("<u4")
_FIGURES = np.dtype("<f8")


class _TotalsMessage(msgspec.Struct, frozen=True, array_like=True):
    """The sums of a window, of which only those are told that are not zero.

    Attributes:
        keys: Whose sums they are.
        places: Of each figure, the number of its key times the number of columns, plus its column.
        figures: They.
    """

    keys: list[StatsKey]
    places: bytes
    figures: bytes


class TotalsPublisher(msgspec.Struct, frozen=True, array_like=True):
    """What one journal tells.

    Attributes:
        teller: Stands for the process whose journal it is.
        layout: Stands for what its columns mean.
        since: When it began.
        windows: Its sums, by the name of the window.
    """

    teller: bytes
    layout: int
    since: float
    windows: dict[str, _TotalsMessage]

    def sums(self, selection: Selection) -> SelectionTotals:
        """What it has of a selection."""
        told = self.windows[selection.window.name]
        figures = np.zeros(len(told.keys) * columns.WIDTH)
        figures[np.frombuffer(told.places, _PLACES)] = np.frombuffer(told.figures, _FIGURES)
        taken = [number for number, key in enumerate(told.keys) if selection.takes(*key)]
        return SelectionTotals([told.keys[number] for number in taken], figures.reshape(-1, columns.WIDTH)[taken])


_decoder = msgspec.msgpack.Decoder(TotalsPublisher)


def tell_figures(counts: Counters, now: float, *, teller: bytes, since: float) -> bytes:
    """What a journal has counted, for other gateways.

    Args:
        counts: What it has counted.
        now: The time.
        teller: Stands for this process.
        since: When the journal began.
    """
    windows = {name: _told(counts.sums(Selection(window), now)) for name, window in WINDOWS.items()}
    return zlib.compress(msgspec.msgpack.encode(TotalsPublisher(teller, _LAYOUT, since, windows)), _QUICK)


class PeerTotals:
    """What other gateways have counted.

    Args:
        told: What ``tell_figures`` gave there; None: it cannot be had.
        teller: Stands for this process: what it told itself is left out.
    """

    def __init__(self, told: Sequence[bytes] | None, teller: bytes) -> None:
        self._missing = told is None
        self._figures: list[TotalsPublisher] = []
        for data in told or ():
            figures = _read(data)
            if figures is None:
                self._missing = True
            elif figures.teller != teller:
                self._figures.append(figures)

    @property
    def since(self) -> float | None:
        """When the first of them began to count; None if there are none."""
        return min((figures.since for figures in self._figures), default=None)

    @property
    def shown(self) -> dict[str, object]:
        """How many gateways are in the figures, JSON-ready."""
        return {"counted": 1 + len(self._figures), "missing": self._missing}

    def sums(self, selection: Selection) -> list[SelectionTotals]:
        """What each has of a selection."""
        return [figures.sums(selection) for figures in self._figures]


def _told(sums: SelectionTotals) -> _TotalsMessage:
    figures = sums.figures.reshape(-1)
    places = np.flatnonzero(figures)
    return _TotalsMessage(list(sums.keys), places.astype(_PLACES).tobytes(), figures[places].astype(_FIGURES).tobytes())


def _read(data: bytes) -> TotalsPublisher | None:
    try:
        figures = _decoder.decode(zlib.decompress(data))
    except (zlib.error, msgspec.MsgspecError):
        return None
    return figures if figures.layout == _LAYOUT else None
