"""Blocks that were computed once: a table of fixed size, in which the latest take the place of the oldest.

Four places stand together, chosen by the block's hash; the one written longest ago is overwritten when all are taken.
So the memory never grows, and what was not used for long is forgotten first. All blocks of a prompt are looked up and
written at once, by array operations: one by one they would cost as much as everything else that is explained.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_WAYS = 4
_TICKS = 64
"""Times are kept in such parts of a second, which lasts for two years."""

_Hashes = NDArray[np.uint64]


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
        self._mask = np.uint64(groups - 1)
        self._keys = np.zeros((groups, _WAYS), np.uint64)
        self._times = np.zeros((groups, _WAYS), np.uint32)
        self._places = np.zeros((groups, _WAYS), np.uint32)

    @property
    def nbytes(self) -> int:
        """Memory of the table."""
        return self._keys.nbytes + self._times.nbytes + self._places.nbytes

    def beginning(self, chain: Sequence[int]) -> list[BlockRecord]:
        """Records of a chain's blocks up to the first that was not seen."""
        if not chain:
            return []
        groups, ways, found = self._find(np.array(chain, np.uint64))
        depth = len(chain) if found.all() else int(found.argmin())
        groups, ways = groups[:depth], ways[:depth]
        places, times = self._places[groups, ways].tolist(), self._times[groups, ways].tolist()
        return [BlockRecord(place, (ticks - 1) / _TICKS) for place, ticks in zip(places, times, strict=True)]

    def put(self, chain: Sequence[int], place: int, at: float) -> None:
        """All blocks of a chain were computed, or used, at a place, ``at`` seconds after the table began."""
        if not chain:
            return
        ticks = 1 + int(at * _TICKS)  # an empty place has 0, and is taken first
        hashes = np.array(chain, np.uint64)
        groups, ways, found = self._find(hashes)
        self._times[groups[found], ways[found]] = ticks
        self._places[groups[found], ways[found]] = place
        left = np.flatnonzero(~found)
        while left.size:
            # Of several that belong into one group, one at a time: each takes the place of the oldest.
            own, first = np.unique(groups[left], return_index=True)
            oldest = self._times[own].argmin(1)
            self._keys[own, oldest] = hashes[left[first]]
            self._times[own, oldest] = ticks
            self._places[own, oldest] = place
            left = np.delete(left, first)

    def clear(self) -> None:
        """Forget all."""
        for column in (self._keys, self._times, self._places):
            column.fill(0)

    def _find(self, hashes: _Hashes) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
        """For each block its group, its place in there if it has one, and whether it has."""
        groups = (hashes & self._mask).astype(np.intp)
        same = self._keys[groups] == hashes[:, None]
        return groups, same.argmax(1), same.any(1)
