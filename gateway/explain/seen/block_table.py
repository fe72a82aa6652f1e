"""A bounded table of computed blocks, an 8-way set-associative cache with eviction of the oldest entry in a group.

The hash of a block chooses its group of eight entries; the entry written longest ago is overwritten when all are taken.
So the least recently used blocks are evicted first. The table doubles with the blocks written until it has its
capacity, because blocks are written at random: a large table would soon be resident as a whole. An entry holds the time
and either the number of a place or marks: bits that accumulate. All blocks of a prompt are read and written at once, by
array operations: one by one they would double the time of an explanation.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_WAYS = 8
_TICKS = 64
"""Resolution of times in parts of a second; 32 bits last for two years."""

_PLACE_BITS = 32
_PLACES = (1 << _PLACE_BITS) - 1
_MARKS = np.uint64(_PLACES)

_FIRST_GROUPS = 1 << 9
_BLOCKS_PER_GROUP = 2
"""A table is doubled when so many blocks per group were written: one in ten thousand finds its group full then."""

_ANY_WAY = np.dtype(f"u{_WAYS}")
"""Reads the comparisons with all entries of a group, a byte each, as one number."""

Hashes = NDArray[np.uint64]
Marks = NDArray[np.uint64]
Places = NDArray[np.uint64]


class BlockRun(NamedTuple):
    """Successive blocks of a chain that were computed last at one place and time.

    Attributes:
        place: Number of the place.
        at: Seconds since the table's start.
        blocks: Number of blocks.
    """

    place: int
    at: float
    blocks: int


class _Found(NamedTuple):
    hashes: Hashes
    notes_at: NDArray[np.intp]
    present: NDArray[np.bool_]


class BlockTable:
    """Chain hash -> record.

    Args:
        blocks: Capacity; rounded up to a power of two.
    """

    def __init__(self, blocks: int) -> None:
        self._max_groups = 1 << max((blocks - 1) // _WAYS, 1).bit_length()
        # A group is two CPU cache lines: eight hashes, then time and place of each in one number.
        self._use(np.zeros((min(_FIRST_GROUPS, self._max_groups), 2 * _WAYS), np.uint64))
        self._written = 0
        # The blocks looked up last, which are usually recorded next; None after a block was moved or overwritten.
        self._found: _Found | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the table now."""
        return self._table.nbytes

    def beginning(self, chain: Sequence[int] | Hashes, start: int = 0, stop: int | None = None) -> list[BlockRun]:
        """The records of a chain's blocks from ``start`` to before ``stop``, up to the first one missing.

        A chain that is recorded next should be passed as a whole, as the same array: it is looked up only once.
        """
        if not len(chain):
            return []
        notes_at, found = self._find(np.asarray(chain, np.uint64))
        found = found[start:stop]
        depth = len(found) if found.all() else int(found.argmin())
        if not depth:
            return []
        return [
            BlockRun(note & _PLACES, ((note >> _PLACE_BITS) - 1) / _TICKS, count)
            for note, count in runs(self._numbers[notes_at[start : start + depth]])
        ]

    def put(self, chain: Sequence[int] | Hashes, place: int | Places, at: float) -> None:
        """Record that all blocks of a chain were computed, or used, at a place.

        Args:
            chain: The blocks.
            place: Number of the place; or of each block's.
            at: Seconds since the table's start.
        """
        if len(chain):
            hashes = np.asarray(chain, np.uint64)
            places = place if isinstance(place, np.ndarray) else np.full(hashes.shape, place, np.uint64)
            self._write(hashes, *self._find(hashes), places | _note(at, 0))

    def known(self, chain: Sequence[int] | Hashes, place: int, since: float, stop: int | None = None) -> int:
        """Number of blocks from the first on that were recorded with this place, at ``since`` or later; of those before
        ``stop``. A chain that is recorded next should be passed as for ``beginning``."""
        if not len(chain):
            return 0
        notes_at, found = self._find(np.asarray(chain, np.uint64))
        before = self._numbers[notes_at[:stop]]
        is_known = found[:stop] & (before >= _note(since, 0)) & (before & _MARKS == np.uint64(place))
        return len(is_known) if is_known.all() else int(is_known.argmin())

    def put_all(self, chains: Iterable[tuple[Hashes, int, float]]) -> None:
        """As ``put``, for many chains at once, reported late: newer records stay.

        Args:
            chains: Each with its place and its time.
        """
        known = [chain for chain in chains if len(chain[0])]
        if not known:
            return
        lengths = [len(hashes) for hashes, _, _ in known]
        notes = np.repeat(np.array([_note(at, place) for _, place, at in known], np.uint64), lengths)
        # A block of several chains is written once, with its latest time.
        order = np.argsort(notes, kind="stable")[::-1]
        hashes, latest = np.unique(np.concatenate([hashes for hashes, _, _ in known])[order], return_index=True)
        notes = notes[order][latest]
        notes_at, found = self._find(hashes)
        notes[found] = np.maximum(self._numbers[notes_at[found]], notes[found])
        self._write(hashes, notes_at, found, notes)

    def mark(self, hashes: Hashes, bits: int, at: float, since: float) -> Marks:
        """Add marks to blocks, instead of the number of a place.

        All marks of a block share the time of the latest one, so a block marked repeatedly keeps all its marks.

        Args:
            hashes: The blocks.
            bits: The marks to add.
            at: As in ``put``.
            since: Older marks are dropped.

        Returns:
            The previous marks of each block; 0 for none.
        """
        notes_at, found = self._find(hashes)
        before = self._numbers[notes_at]
        earliest = _note(since, 0)
        if not found.all() or (before < earliest).any():
            before[~found | (before < earliest)] = 0
        before &= _MARKS
        self._write(hashes, notes_at, found, before | _note(at, bits))
        return before

    def _write(
        self, hashes: Hashes, notes_at: NDArray[np.intp], found: NDArray[np.bool_], notes: NDArray[np.uint64]
    ) -> None:
        """Write the entries of blocks that ``_find`` has looked up."""
        left = (~found).nonzero()[0][::-1]
        if not left.size:
            self._numbers[notes_at] = notes
            return
        self._found = None
        if self._grow(left.size):
            notes_at, found = self._find(hashes)
            self._found = None
        numbers = self._numbers
        numbers[notes_at[found]] = notes[found]
        # Each block overwrites the oldest entry of its group. Of several in a group only the one written last stays,
        # which is the first of them; the others follow in the next round.
        while left.size:
            groups = notes_at[left] // (2 * _WAYS)
            at = groups * (2 * _WAYS) + self._table.take(groups, 0)[:, _WAYS:].argmin(1)
            new = hashes[left]
            numbers[at] = new
            numbers[at + _WAYS] = notes[left]
            left = left[numbers[at] != new]

    def clear(self) -> None:
        """Remove all blocks."""
        self._table.fill(0)
        self._found = None

    def _use(self, table: NDArray[np.uint64]) -> None:
        self._table = table
        self._numbers = table.reshape(-1)
        self._mask = np.uint64(len(table) - 1)

    def _grow(self, blocks: int) -> bool:
        """Double the table before so many blocks are written, as often as necessary; returns whether it was doubled.

        The next bit of its hash tells whether an entry stays in its group or moves to the one that is added for it.
        """
        self._written += blocks
        before = len(self._table)
        while self._written > _BLOCKS_PER_GROUP * (groups := len(self._table)) and groups < self._max_groups:
            table = np.zeros((2 * groups, 2 * _WAYS), np.uint64)
            moves = np.tile((self._table[:, :_WAYS] & np.uint64(groups)) != 0, 2)
            table[:groups] = np.where(moves, 0, self._table)
            table[groups:] = np.where(moves, self._table, 0)
            self._use(table)
        return len(self._table) > before

    def _find(self, hashes: Hashes) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """For each block the index of its time and place in ``_numbers``, and whether it is present.

        The index of a missing block is that of any entry in its group.
        """
        last = self._found
        if last is not None and last.hashes is hashes:
            return last.notes_at, last.present
        groups = (hashes & self._mask).astype(np.intp)
        same = self._table.take(groups, 0)[:, :_WAYS] == hashes[:, None]
        notes_at, present = groups * (2 * _WAYS) + (same.argmax(1) + _WAYS), same.view(_ANY_WAY)[:, 0] != 0
        self._found = _Found(hashes, notes_at, present)
        return notes_at, present


def runs(values: NDArray[np.uint64]) -> list[tuple[int, int]]:
    """Each value with the number of times that it follows itself, in order."""
    if not values.size:
        return []
    if (values == values[0]).all():
        return [(int(values[0]), values.size)]
    ends = [*(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), values.size]
    return [(int(values[begin]), end - begin) for begin, end in zip([0, *ends], ends, strict=False)]


def _note(at: float, place: int) -> np.uint64:
    """Time and place in one number. An empty entry has time 0, so it is overwritten first."""
    return np.uint64((1 + int(max(at, 0.0) * _TICKS)) << _PLACE_BITS | place)
