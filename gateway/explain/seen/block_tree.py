"""A bounded memory of computed blocks: runs of successive blocks with one note each, by their first block.

Because block hashes are chained, the last hash of a run stands for all in front of it: a look-up compares one number
per run, and finds the next run by the hash that follows. A run has one note for all of its blocks, so a chain that
leaves a run in its middle, or ends there, divides it when its note is written. A prompt that continues an earlier one
makes the run longer. Chains of several kinds are kept apart by a key that is combined with their hashes.

The runs that were not written for longest are evicted first, and of one run its end first. Writing a chain writes all
of its beginning, so a run is never evicted before those that follow it.

A note is a time with a number: ``note`` makes one.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable
from itertools import compress, count
from typing import TypeAlias

Hashes: TypeAlias = "array[int]"
"""Hashes of successive blocks, each an unsigned number of 64 bits (``array("Q")``)."""

_TICKS = 64
"""Resolution of times in parts of a second."""

_NUMBER_BITS = 32

NUMBERS = (1 << _NUMBER_BITS) - 1
"""Mask of the number in a note."""

_HASH_BYTES = 8

_RUN_BYTES = 280
"""Memory of a run besides its hashes: the object, the array's header, its entry in the table, its name and its note."""


def note(at: float, number: int) -> int:
    """A time, in seconds since the memory's start, with a number; of two notes the later one is greater."""
    return (1 + int(max(at, 0.0) * _TICKS)) << _NUMBER_BITS | number


def noted_at(noted: int) -> float:
    """The time of a note."""
    return ((noted >> _NUMBER_BITS) - 1) / _TICKS


class _BlockRun:
    """Successive blocks with the same note.

    Attributes:
        name: Its first hash, combined with the key of its chain.
        hashes: Its blocks, at least one.
        note: Its note.
        older: The run that was written before it.
        newer: The run that was written after it.
    """

    __slots__ = ("hashes", "name", "newer", "note", "older")

    def __init__(self, name: int, hashes: Hashes, noted: int) -> None:
        self.name = name
        self.hashes = hashes
        self.note = noted
        self.older = self.newer = self


class BlockTree:
    """The notes of blocks.

    Args:
        max_bytes: Maximum memory; beyond it, the blocks that were not written for longest are forgotten.
        whole_chains: Whether every chain is given from its first block. Then a chain that continues a run makes it
            longer. Otherwise it begins a new run, at a place where other chains may begin later.

    Attributes:
        nbytes: Memory of all runs.
        has_forgotten: Whether blocks were evicted.
    """

    def __init__(self, max_bytes: int, *, whole_chains: bool = True) -> None:
        self.nbytes = 0
        self.has_forgotten = False
        self._max_bytes = max_bytes
        self._whole_chains = whole_chains
        self._runs: dict[int, _BlockRun] = {}
        # In a circle: the oldest run is the next newer one of this.
        self._ends = _BlockRun(0, array("Q"), 0)

    def notes(self, key: int, chain: Hashes, start: int, stop: int) -> list[tuple[int, int]]:
        """The notes of a chain's blocks from ``start`` to before ``stop``, up to the first one that is not known.

        Args:
            key: The key of the chain.
            chain: The chain.
            start: The first block.
            stop: The block behind the last one, at most the chain's length.

        Returns:
            Each note with the number of successive blocks that have it.
        """
        found: list[tuple[int, int]] = []
        depth = 0
        while depth < stop:
            run = self._runs.get(chain[depth] ^ key)
            if run is None:
                if depth >= start:
                    break
                # Of what other gateways computed, only the end of a chain may have arrived: it may begin before
                # ``start``.
                depth = self._next_run(key, chain, depth + 1, start + 1)
                if depth > start:
                    break
                continue
            end = _common_end(run.hashes, chain, depth, stop)
            if end > start:
                _add(found, run.note, end - max(depth, start))
            depth = end
        return found

    def write(self, key: int, chain: Hashes, change: Callable[[int], int]) -> list[tuple[int, int]]:
        """Replace the note of every block of a chain.

        Args:
            key: The key of the chain.
            chain: The chain.
            change: Gives the new note for the previous one; 0 stands for a block that is not known.

        Returns:
            Each previous note with the number of successive blocks that had it, for all blocks.
        """
        before: list[tuple[int, int]] = []
        path: list[_BlockRun] = []
        depth, total = 0, len(chain)
        while depth < total:
            name = chain[depth] ^ key
            run = self._runs.get(name)
            previous = 0 if run is None else run.note
            new = change(previous)
            if run is not None:
                end = _common_end(run.hashes, chain, depth, total)
                if end - depth < len(run.hashes):
                    run = self._divided(run, end - depth)
                run.note = new
                path.append(run)
            else:
                end = total if self._whole_chains else self._next_run(key, chain, depth + 1, total)
                rest = chain[depth:end]
                self.nbytes += _HASH_BYTES * len(rest)
                if self._whole_chains and path and path[-1].note == new:
                    path[-1].hashes.extend(rest)
                else:
                    path.append(self._added(name, rest, new))
            _add(before, previous, end - depth)
            depth = end
        for run in reversed(path):
            if self._runs.get(run.name) is run:
                self._move_to_end(run)
        if self.nbytes > self._max_bytes:
            self._evict()
        return before

    def clear(self) -> None:
        """Forget all blocks."""
        self._runs.clear()
        self._ends.older = self._ends.newer = self._ends
        self.nbytes = 0

    def _next_run(self, key: int, chain: Hashes, depth: int, stop: int) -> int:
        """The first block from ``depth`` to before ``stop`` that begins a run; ``stop`` for none."""
        # A view, because a copy of the rest for each run would take quadratic time.
        is_known = map(self._runs.__contains__, map(key.__xor__, memoryview(chain)[depth:stop]))
        return next(compress(count(depth), is_known), stop)

    def _added(self, name: int, hashes: Hashes, noted: int) -> _BlockRun:
        run = self._runs[name] = _BlockRun(name, hashes, noted)
        self.nbytes += _RUN_BYTES
        return run

    def _divided(self, run: _BlockRun, blocks: int) -> _BlockRun:
        """Make the first blocks of a run a run of their own, which is returned; the other ones keep their age."""
        key = run.name ^ run.hashes[0]
        first = self._added(run.name, run.hashes[:blocks], run.note)
        run.hashes = run.hashes[blocks:]
        run.name = run.hashes[0] ^ key
        other = self._runs.setdefault(run.name, run)
        if other is not run:
            # Its blocks arrived as the end of another chain, too, before the beginning of that: the longer run stays.
            longer, shorter = (run, other) if len(run.hashes) > len(other.hashes) else (other, run)
            self._runs[run.name] = longer
            self._drop(shorter)
        return first

    def _move_to_end(self, run: _BlockRun) -> None:
        run.older.newer, run.newer.older = run.newer, run.older
        newest = self._ends.older
        run.older, run.newer = newest, self._ends
        newest.newer = self._ends.older = run

    def _evict(self) -> None:
        self.has_forgotten = True
        while self.nbytes > self._max_bytes:
            run = self._ends.newer
            blocks = -(-(self.nbytes - self._max_bytes) // _HASH_BYTES)
            if blocks < len(run.hashes):
                del run.hashes[-blocks:]
                self.nbytes -= _HASH_BYTES * blocks
            else:
                del self._runs[run.name]
                self._drop(run)

    def _drop(self, run: _BlockRun) -> None:
        run.older.newer, run.newer.older = run.newer, run.older
        self.nbytes -= _RUN_BYTES + _HASH_BYTES * len(run.hashes)


def _common_end(run: Hashes, chain: Hashes, depth: int, stop: int) -> int:
    """Where a chain leaves a run that begins at its block ``depth``, or ends in it; at most ``stop``."""
    end = min(depth + len(run), stop)
    if run[end - depth - 1] == chain[end - 1]:
        return end
    # Agreement is a prefix property, so its end can be found by bisection.
    return bisect_left(range(end), True, lo=depth + 1, key=lambda at: run[at - depth] != chain[at])


def _add(runs: list[tuple[int, int]], noted: int, blocks: int) -> None:
    if runs and runs[-1][0] == noted:
        runs[-1] = noted, runs[-1][1] + blocks
    else:
        runs.append((noted, blocks))
