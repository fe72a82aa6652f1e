"""Blocks that were computed once: a table of fixed size, in which the latest take the place of the oldest.

Four places stand together, chosen by the block's hash; the one written longest ago is overwritten when all are taken.
So the memory never grows, a look-up costs four comparisons, and what was not used for long is forgotten first.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_WAYS = 4
_TICKS = 64
"""Times are kept in such parts of a second, which lasts for two years."""

_FRESH_TICKS = 30 * _TICKS


class BlockRecord(NamedTuple):
    """When and where a block was computed last.

    Attributes:
        place: Number of the place.
        at: When, in seconds since the table began.
    """

    place: int
    at: float


class BlockTable:
    """Chain hash -> record.

    Args:
        blocks: How many are remembered; rounded up to a power of two.
    """

    def __init__(self, blocks: int) -> None:
        groups = 1 << max((blocks - 1) // _WAYS, 1).bit_length()
        self._mask = groups - 1
        self._keys = array("Q", bytes(8 * _WAYS * groups))
        self._times = array("I", bytes(4 * _WAYS * groups))
        self._places = array("I", bytes(4 * _WAYS * groups))

    @property
    def nbytes(self) -> int:
        """Memory of the table."""
        return sum(column.itemsize * len(column) for column in (self._keys, self._times, self._places))

    def get(self, block: int) -> BlockRecord | None:
        """A block's record; None for one that was not seen, or is forgotten."""
        first = (block & self._mask) * _WAYS
        for slot in range(first, first + _WAYS):
            if self._keys[slot] == block:
                return BlockRecord(self._places[slot], self._times[slot] / _TICKS)
        return None

    def beginning(self, chain: Iterable[int]) -> list[BlockRecord]:
        """Records of a chain's blocks up to the first that was not seen."""
        found = []
        for block in chain:
            record = self.get(block)
            if record is None:
                break
            found.append(record)
        return found

    def put(self, chain: Sequence[int], place: int, at: float) -> None:
        """All blocks of a chain were computed, or used, at a place, ``at`` seconds after the table began."""
        ticks = int(at * _TICKS)
        for block in chain[self._fresh(chain, place, ticks) :]:
            self._put(block, place, ticks)

    def clear(self) -> None:
        """Forget all."""
        for column in (self._keys, self._times, self._places):
            column[:] = array(column.typecode, bytes(column.itemsize * len(column)))

    def _fresh(self, chain: Sequence[int], place: int, ticks: int) -> int:
        """How many blocks from the first on were put there a moment ago: the shared beginning of most prompts."""
        low, high = 0, len(chain)
        while low < high:
            middle = (low + high) // 2
            record = self.get(chain[middle])
            if record is not None and record.place == place and ticks - record.at * _TICKS < _FRESH_TICKS:
                low = middle + 1
            else:
                high = middle
        return low

    def _put(self, block: int, place: int, ticks: int) -> None:
        keys, times = self._keys, self._times
        first = (block & self._mask) * _WAYS
        oldest = first
        for slot in range(first, first + _WAYS):
            if keys[slot] == block:
                oldest = slot
                break
            if times[slot] < times[oldest]:
                oldest = slot
        keys[oldest] = block
        times[oldest] = ticks
        self._places[oldest] = place
