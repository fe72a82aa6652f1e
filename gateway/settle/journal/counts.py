"""Everything that is counted, over time: rings of buckets, in each the cells of every key."""

from collections.abc import Iterator

import msgspec

from gateway.settle.journal.arguments import Selection
from gateway.settle.journal.cell import Cell
from gateway.settle.journal.keys import Key
from gateway.settle.journal.windows import COUNTS, Ring

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Cell).decode

Bucket = dict[Key, Cell | bytes]
"""Cells; packed in buckets that are over, which takes a tenth of the memory."""


class Counts:
    """Cells by time and key."""

    def __init__(self) -> None:
        self._rings = tuple(_CountRing(Ring[Bucket](resolution, dict)) for resolution in COUNTS)

    def add(self, key: Key, at: float, cell: Cell) -> None:
        """Count what ended at ``at``."""
        for ring in self._rings:
            ring.add(key, at, cell)

    def step(self, selection: Selection) -> int:
        """Seconds of one bucket of the selection's window."""
        return self._rings[selection.window.ring].ring.step

    def first_start(self, selection: Selection, now: float) -> int:
        """When the first bucket of the selection's window begins."""
        return self._rings[selection.window.ring].ring.first_start(now, selection.window.seconds)

    def cells(self, selection: Selection, now: float) -> Iterator[tuple[int, Key, Cell]]:
        """When its bucket began, whose it is, and the cell, for everything in a window; oldest first."""
        ring = self._rings[selection.window.ring].ring
        for start, bucket in ring.between(now, selection.window.seconds):
            for key, kept in bucket.items():
                if selection.takes(*key):
                    yield start, key, _unpack(kept) if isinstance(kept, bytes) else kept


class _CountRing:
    """One resolution. The bucket that was written last is open; all others are packed."""

    def __init__(self, ring: Ring[Bucket]) -> None:
        self.ring = ring
        self._open: Bucket = {}

    def add(self, key: Key, at: float, cell: Cell) -> None:
        bucket = self.ring.bucket(at)
        if bucket is None:
            return
        if bucket is not self._open:
            self._open.update({each: _pack(kept) for each, kept in self._open.items() if isinstance(kept, Cell)})
            self._open = bucket
        total = bucket.get(key)
        if not isinstance(total, Cell):
            total = bucket[key] = Cell() if total is None else _unpack(total)
        total.add(cell)
