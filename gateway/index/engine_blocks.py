"""The blocks of one target under the names its engine gave them: which stands on which, and how many copies there are.

Per block: its name, its chain hash, the block before it, its copies, and how many blocks stand on it; all in arrays,
because ten million blocks have to fit.

A block can be there several times (engines do not merge equal blocks that were computed twice) and on several media;
it goes with its last copy. If others still stand on it then, it stays as a gap: nothing behind it can be reused until
it is back, and then all of it can.
"""

import secrets
from array import array
from collections.abc import Callable, Iterator

from gateway.core.kv_events import Medium
from gateway.index.holders import Holders
from gateway.index.slot_map import NONE, SlotMap

# Copies of a block, packed into 32 bits. A count that reached its most is not followed any more.
_SHIFT = {Medium.GPU: 0, Medium.CPU: 16, Medium.DISK: 24}
_MOST = {Medium.GPU: 0xFFFF, Medium.CPU: 0xFF, Medium.DISK: 0xFF}
_GPU = _MOST[Medium.GPU]

_FREED_AT_ONCE = 1024
"""Blocks without copies that are given up in one portion of work."""

_WORD = 2**64 - 1
_SCATTER = secrets.randbits(64) | 1
_GATHER = pow(_SCATTER, -1, 2**64)


class EngineBlocks:
    """The blocks, and what of them is on the shelf.

    Args:
        shelf: Where requests look.
        bit: The target's bit there.
        on_lost: Told the chain hash of every block that the target does not hold any more.
        keeps_ancestors: Whether a block without copies counts as held while others stand on it. For groups of layers
            that need only the end of a prefix.

    Attributes:
        held: Blocks on the shelf.
        digest: XOR of their chain hashes.
        gaps: Blocks that are gone while others stand on them. While there is none, whatever is held of a chain is held
            from its beginning.
        gpu_copies: Blocks of the engine's GPU cache accounted for, copies counted.
    """

    def __init__(
        self, shelf: Holders, bit: int, on_lost: Callable[[int], None], *, keeps_ancestors: bool = False
    ) -> None:
        self.held = 0
        self.digest = 0
        self.gaps = 0
        self.gpu_copies = 0
        self._keeps_ancestors = keeps_ancestors
        self._shelf = shelf
        self._bit = bit
        self._on_lost = on_lost
        self._slots = SlotMap()
        # Blocks that nothing stands on any more and that have no copies, still to be given up.
        self._pending: list[int] = []
        # A chain of 0: no request asks for it (a page inside of a block). A parent of NONE: where chains begin.
        self._chains = array("Q", [0])
        self._parents = array("I", [NONE])
        self._copies = array("I", [0])
        self._children = array("I", [0])

    @property
    def slots(self) -> int:
        """Size of the arrays."""
        return len(self._chains)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        columns = (self._chains, self._parents, self._copies, self._children)
        return self._slots.nbytes + sum(column.buffer_info()[1] * column.itemsize for column in columns)

    def find(self, name: int) -> int:
        """The slot of a name, or ``NONE``."""
        return self._slots.find(_scattered(name))

    def chain(self, slot: int) -> int:
        """Chain hash of a block."""
        return self._chains[slot]

    def parent(self, slot: int) -> int:
        """The slot before one; ``NONE`` for the slot of a root."""
        return self._parents[slot]

    def root(self, chain: int) -> int:
        """The slot on which the first blocks of a space stand."""
        return self._slots.find(_scattered(chain)) or self._new(chain, NONE, chain)

    def place(self, name: int, parent: int, chain: int, copies: int) -> int:
        """Add a block that is not there yet.

        Args:
            name: The engine's name.
            parent: Slot of the block before it.
            chain: Its chain hash, or 0.
            copies: Packed by ``one_copy``. 0 only with ``keeps_ancestors``, and only if another is placed upon it next.
        """
        slot = self._new(name, parent, chain)
        self._children[parent] += 1
        self._copies[slot] = copies
        self.gpu_copies += copies & _GPU
        self._put(slot)
        if copies > _GPU:
            self._show_medium(slot)
        return slot

    def add_copies(self, slot: int, copies: int) -> None:
        """More copies of a block, packed by ``one_copy``."""
        total = add_packed(self._copies[slot], copies)
        if total != self._copies[slot]:
            self._set(slot, total)

    def has_copies(self, slot: int) -> bool:
        """Whether there is any copy of a block; of a slot that was given up there is none."""
        return bool(self._copies[slot])

    def drop_copy(self, slot: int, medium: Medium) -> None:
        """One copy less, if there is one."""
        copies = self._copies[slot]
        left = drop_packed(copies, medium)
        if left != copies:
            self._set(slot, left)

    def copies(self) -> Iterator[tuple[int, int]]:
        """Name and number of GPU copies of every block that has one: for comparing with an engine."""
        for slot, copies in enumerate(self._copies):
            if copies & _GPU:
                yield _gathered(self._slots.keys[slot]), copies & _GPU

    def purge(self, start: int, count: int) -> int:
        """Take up to ``count`` slots' blocks off the shelf, when all of this counts no more.

        Returns:
            Where to go on, or 0 when it is done.
        """
        end = min(start + count, len(self._chains))
        for slot in range(start, end):
            if self._is_shown(slot):
                self._shelf.take(self._chains[slot], self._bit)
        return end if end < len(self._chains) else 0

    def _new(self, name: int, parent: int, chain: int) -> int:
        slot = self._slots.add(_scattered(name))
        if slot == len(self._chains):
            self._chains.append(chain)
            self._parents.append(parent)
            self._copies.append(0)
            self._children.append(0)
        else:
            self._chains[slot] = chain
            self._parents[slot] = parent
        return slot

    def _set(self, slot: int, copies: int) -> None:
        before = self._copies[slot]
        self._copies[slot] = copies
        self.gpu_copies += (copies & _GPU) - (before & _GPU)
        if not before:
            # It was here without a copy because others stand on it.
            if not self._keeps_ancestors:
                self.gaps -= 1
                self._put(slot)
        elif not copies:
            if self._children[slot]:
                if not self._keeps_ancestors:
                    self.gaps += 1
                    self._take(slot)
                return
            self._take(slot)
            self._free(slot)
            return
        if before > _GPU or copies > _GPU:
            self._show_medium(slot)

    def free_pending(self) -> bool:
        """Give up some of the blocks that nothing stands on any more. Returns whether there are more."""
        for _ in range(_FREED_AT_ONCE):
            if not self._pending:
                return False
            self._free(self._pending.pop())
        return bool(self._pending)

    def _free(self, slot: int) -> None:
        """Give up a block that nothing stands on; the one before it is next if it was here only for its sake."""
        parent = self._parents[slot]
        self._chains[slot] = 0
        self._slots.discard(slot)
        if parent == NONE:
            return
        self._children[parent] -= 1
        if self._children[parent] or self._copies[parent]:
            return
        if self._parents[parent] != NONE:
            if self._keeps_ancestors:
                self._take(parent)
            else:
                self.gaps -= 1
        self._pending.append(parent)

    def _is_shown(self, slot: int) -> bool:
        if not self._chains[slot] or self._parents[slot] == NONE:
            return False
        return bool(self._copies[slot] or (self._keeps_ancestors and self._children[slot]))

    def _put(self, slot: int) -> None:
        chain = self._chains[slot]
        if chain:
            self._shelf.put(chain, self._bit)
            self.held += 1
            self.digest ^= chain

    def _take(self, slot: int) -> None:
        chain = self._chains[slot]
        if chain:
            self._shelf.take(chain, self._bit)
            self.held -= 1
            self.digest ^= chain
            self._on_lost(chain)

    def _show_medium(self, slot: int) -> None:
        copies, chain = self._copies[slot], self._chains[slot]
        if copies and chain:
            fastest = next(medium for medium in Medium if copies >> _SHIFT[medium] & _MOST[medium])
            self._shelf.set_medium(chain, self._bit, fastest)


def one_copy(medium: Medium) -> int:
    """One copy on a medium, packed."""
    return 1 << _SHIFT[medium]


def add_packed(copies: int, more: int) -> int:
    """The sum of packed copies, each medium's within its limit."""
    total = 0
    for medium, shift in _SHIFT.items():
        most = _MOST[medium]
        total |= min((copies >> shift & most) + (more >> shift & most), most) << shift
    return total


def drop_packed(copies: int, medium: Medium) -> int:
    """Packed copies less one on a medium, if there is one and it is still counted."""
    there = copies >> _SHIFT[medium] & _MOST[medium]
    return copies - one_copy(medium) if 0 < there < _MOST[medium] else copies


def _scattered(name: int) -> int:
    """A name as the slot map needs it: an engine's names may differ in a few high bits alone, and the map looks at the
    low ones. Different names stay different."""
    product = name * _SCATTER & _WORD
    return product ^ product >> 32


def _gathered(key: int) -> int:
    """The name that ``_scattered`` made a key of."""
    return (key ^ key >> 32) * _GATHER & _WORD
