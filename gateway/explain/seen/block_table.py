"""Blocks that were computed once: a table of fixed size, in which the latest take the place of the oldest.

Four places stand together, chosen by the block's hash; the one written longest ago is overwritten when all are taken.
So the memory never grows, and what was not used for long is forgotten first. Instead of the number of a place a block
may have marks: bits that are collected. All blocks of a prompt are looked up and written at once, by array operations:
one by one they would cost as much as everything else that is explained.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_WAYS = 4
_TICKS = 64
"""Times are kept in such parts of a second, which lasts for two years."""

_PLACE_BITS = 32
_PLACES = (1 << _PLACE_BITS) - 1

Hashes = NDArray[np.uint64]
Marks = NDArray[np.uint64]


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
        # A group is one line of the processor's cache: four hashes, then time and place of each in one number.
        self._table = np.zeros((groups, 2 * _WAYS), np.uint64)

    @property
    def nbytes(self) -> int:
        """Memory of the table."""
        return self._table.nbytes

    def beginning(self, chain: Sequence[int] | Hashes) -> list[BlockRecord]:
        """Records of a chain's blocks up to the first that was not seen."""
        if not len(chain):
            return []
        groups, ways, found = self._find(np.asarray(chain, np.uint64))
        depth = len(chain) if found.all() else int(found.argmin())
        if not depth:
            return []
        notes = self._table[groups[:depth], ways[:depth] + _WAYS].tolist()
        return [BlockRecord(note & _PLACES, ((note >> _PLACE_BITS) - 1) / _TICKS) for note in notes]

    def put(self, chain: Sequence[int] | Hashes, place: int, at: float, since: float = 0.0) -> int:
        """All blocks of a chain were computed, or used, at a place.

        Args:
            chain: The blocks.
            place: Number of the place.
            at: When, in seconds since the table began.
            since: An earlier time.

        Returns:
            How many blocks from the first on were there already, with this place and a time from ``since`` on.
        """
        if not len(chain):
            return 0
        note = _note(at, place)
        hashes = np.asarray(chain, np.uint64)
        groups, ways, found = self._find(hashes)
        before = self._table[groups, ways + _WAYS]
        is_known = found & (before >= _note(since, 0)) & (before & np.uint64(_PLACES) == np.uint64(place))
        self._table[groups[found], ways[found] + _WAYS] = note
        self._insert(hashes, groups, np.flatnonzero(~found), note)
        return len(hashes) if is_known.all() else int(is_known.argmin())

    def put_all(self, chains: Iterable[tuple[Hashes, int, float]]) -> None:
        """As ``put``, for many chains at once, and later than it happened: what is noted since then stays.

        Args:
            chains: Each with its place and its time.
        """
        known = [chain for chain in chains if len(chain[0])]
        if not known:
            return
        lengths = [len(hashes) for hashes, _, _ in known]
        notes = np.repeat(np.array([_note(at, place) for _, place, at in known], np.uint64), lengths)
        # A block that several of them have is written once, with its latest note.
        order = np.argsort(notes, kind="stable")[::-1]
        hashes, latest = np.unique(np.concatenate([hashes for hashes, _, _ in known])[order], return_index=True)
        notes = notes[order][latest]
        groups, ways, found = self._find(hashes)
        at = groups[found], ways[found] + _WAYS
        self._table[at] = np.maximum(self._table[at], notes[found])
        self._insert(hashes, groups, np.flatnonzero(~found), notes)

    def mark(self, hashes: Hashes, bits: int, at: float, since: float) -> Marks:
        """Mark blocks by bits, in place of the number of a place.

        All bits of a block are as old as the latest of them: one that is renewed all the time stays with what else it
        was marked by.

        Args:
            hashes: The blocks.
            bits: The marks that are added.
            at: As in ``put``.
            since: Marks from before then are forgotten.

        Returns:
            By what each block was marked before; 0 where it was not.
        """
        groups, ways, found = self._find(hashes)
        before = self._table[groups, ways + _WAYS]
        before[~found | (before < _note(since, 0))] = 0
        before &= np.uint64(_PLACES)
        note = _note(at, bits)
        self._table[groups[found], ways[found] + _WAYS] = note | before[found]
        self._insert(hashes, groups, np.flatnonzero(~found), note)
        return before

    def _insert(
        self, hashes: Hashes, groups: NDArray[np.intp], left: NDArray[np.intp], note: np.uint64 | NDArray[np.uint64]
    ) -> None:
        """Write blocks that are not there; ``left`` are their numbers, ``note`` that of all or of each block."""
        notes = np.broadcast_to(note, hashes.shape)
        while left.size:
            # Of several that belong into one group, one at a time: each takes the place of the oldest.
            own, first = np.unique(groups[left], return_index=True)
            oldest = self._table[own, _WAYS:].argmin(1)
            self._table[own, oldest] = hashes[left[first]]
            self._table[own, oldest + _WAYS] = notes[left[first]]
            left = np.delete(left, first)

    def clear(self) -> None:
        """Forget all."""
        self._table.fill(0)

    def _find(self, hashes: Hashes) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
        """For each block its group, its place in there if it has one, and whether it has."""
        groups = (hashes & self._mask).astype(np.intp)
        same = self._table[groups, :_WAYS] == hashes[:, None]
        return groups, same.argmax(1), same.any(1)


def _note(at: float, place: int) -> np.uint64:
    """Time and place in one number. An empty place has the time 0, and is taken first."""
    return np.uint64((1 + int(max(at, 0.0) * _TICKS)) << _PLACE_BITS | place)
