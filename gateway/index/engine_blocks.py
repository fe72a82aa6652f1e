"""The cached blocks of one target by the hash that its engine gave them: parents, copies and media.

Per block: its engine hash (``name``), chain hash, parent, copies, and number of children; all in arrays, because ten
million blocks have to fit into memory.

A block can have several copies (engines do not merge equal blocks that were computed twice) and lie on several media;
it is removed with its last copy. If it still has children then, it stays as a gap: no block behind it can be reused
until it is stored again.
"""

import secrets
from array import array
from collections.abc import Callable, Iterator

from gateway.core.kv_events import Medium
from gateway.core.prompt import TOKEN_BYTES
from gateway.index.holders import NONE, Holders, SlotMap

# Copies of a block, packed into 32 bits. A count that has reached its maximum stays there.
_SHIFT = {Medium.GPU: 0, Medium.CPU: 16, Medium.DISK: 24}
_MAX = {Medium.GPU: 0xFFFF, Medium.CPU: 0xFF, Medium.DISK: 0xFF}
GPU_COPIES = _MAX[Medium.GPU]
"""Mask of a block's copies in the GPU cache."""

_FREED_PER_STEP = 1024
"""Blocks without copies that are freed in one step."""

_WORD = 2**64 - 1
_SCATTER = secrets.randbits(64) | 1
_GATHER = pow(_SCATTER, -1, 2**64)


class EngineBlocks:
    """The blocks of one target, and which of them requests can find in ``holders``.

    Args:
        holders: The index that requests are looked up in.
        bit: The target's bit in ``holders``.
        on_lost: Called with the chain hash of every block that the target no longer holds.

    Attributes:
        held: Blocks that are in ``holders``.
        digest: XOR of their chain hashes.
        gaps: Blocks that are gone while they have children. While there are none, the held blocks of every chain form a
            prefix of it.
        gpu_copies: Blocks of the engine's GPU cache accounted for, copies counted.
    """

    def __init__(self, holders: Holders, bit: int, on_lost: Callable[[int], None]) -> None:
        self.held = 0
        self.digest = 0
        self.gaps = 0
        self.gpu_copies = 0
        self._holders = holders
        self._bit = bit
        self._on_lost = on_lost
        self._slots = SlotMap()
        # Blocks without children and copies, still to be freed.
        self._pending: list[int] = []
        # A chain hash of 0: a page inside of a block, never looked up. A parent of NONE: a root.
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
        """The slot of an engine hash, or ``NONE``."""
        return self._slots.find(_to_key(name))

    def chain(self, slot: int) -> int:
        """Chain hash of a block."""
        return self._chains[slot]

    def parent(self, slot: int) -> int:
        """The slot of the parent; ``NONE`` for a root."""
        return self._parents[slot]

    def root(self, chain: int) -> int:
        """The slot that is the parent of the first blocks of a space."""
        return self._slots.find(_to_key(chain)) or self._new(chain, NONE, chain)

    def place(self, name: int, parent: int, chain: int, copies: int) -> int:
        """Add a block that is not there yet.

        Args:
            name: The engine's name.
            parent: Slot of the block before it.
            chain: Its chain hash, or 0.
            copies: Packed by ``one_copy``.
        """
        slot = self._new(name, parent, chain)
        self._children[parent] += 1
        self._copies[slot] = copies
        self.gpu_copies += copies & GPU_COPIES
        self._put(slot)
        if copies > GPU_COPIES:
            self._show_medium(slot)
        return slot

    def add_copies(self, slot: int, copies: int) -> None:
        """More copies of a block, packed by ``one_copy``."""
        total = add_packed(self._copies[slot], copies)
        if total != self._copies[slot]:
            self._set(slot, total)

    def drop_copy(self, slot: int, medium: Medium) -> None:
        """One copy less, if there is one."""
        copies = self._copies[slot]
        left = drop_packed(copies, medium)
        if left != copies:
            self._set(slot, left)

    def named(self) -> Iterator[tuple[int, int, int]]:
        """Chain hash, name and number of GPU copies of every block that has copies."""
        for slot, copies in enumerate(self._copies):
            if copies:
                yield self._chains[slot], _to_name(self._slots.keys[slot]), copies & GPU_COPIES

    def purge(self, start: int, count: int) -> int:
        """Remove the blocks of up to ``count`` slots from ``holders``, after all of this was cleared.

        Returns:
            The slot to continue at, or 0 when it is done.
        """
        end = min(start + count, len(self._chains))
        for slot in range(start, end):
            if self._is_shown(slot):
                self._holders.take(self._chains[slot], self._bit)
        return end if end < len(self._chains) else 0

    def _new(self, name: int, parent: int, chain: int) -> int:
        slot = self._slots.add(_to_key(name))
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
        self.gpu_copies += (copies & GPU_COPIES) - (before & GPU_COPIES)
        if not before:
            # It was kept without a copy because it has children.
            self.gaps -= 1
            self._put(slot)
        elif not copies:
            self._take(slot)
            if self._children[slot]:
                self.gaps += 1
                return
            self._free(slot)
            return
        if before > GPU_COPIES or copies > GPU_COPIES:
            self._show_medium(slot)

    def free_pending(self) -> bool:
        """Free some of the pending blocks. Returns whether there are more."""
        for _ in range(_FREED_PER_STEP):
            if not self._pending:
                return False
            self._free(self._pending.pop())
        return bool(self._pending)

    def _free(self, slot: int) -> None:
        """Free a block without children; its parent follows if it was kept only for this child."""
        parent = self._parents[slot]
        self._chains[slot] = 0
        self._slots.discard(slot)
        if parent == NONE:
            return
        self._children[parent] -= 1
        if self._children[parent] or self._copies[parent]:
            return
        if self._parents[parent] != NONE:
            self.gaps -= 1
        self._pending.append(parent)

    def _is_shown(self, slot: int) -> bool:
        if not self._chains[slot] or self._parents[slot] == NONE:
            return False
        return bool(self._copies[slot])

    def _put(self, slot: int) -> None:
        chain = self._chains[slot]
        if chain:
            self._holders.put(chain, self._bit)
            self.held += 1
            self.digest ^= chain

    def _take(self, slot: int) -> None:
        chain = self._chains[slot]
        if chain:
            self._holders.take(chain, self._bit)
            self.held -= 1
            self.digest ^= chain
            self._on_lost(chain)

    def _show_medium(self, slot: int) -> None:
        copies, chain = self._copies[slot], self._chains[slot]
        if copies and chain:
            fastest = next(medium for medium in Medium if copies >> _SHIFT[medium] & _MAX[medium])
            self._holders.set_medium(chain, self._bit, fastest)


def one_copy(medium: Medium) -> int:
    """One copy on a medium, packed."""
    return 1 << _SHIFT[medium]


def add_packed(copies: int, more: int) -> int:
    """The sum of packed copies, each medium's within its limit."""
    total = 0
    for medium, shift in _SHIFT.items():
        most = _MAX[medium]
        total |= min((copies >> shift & most) + (more >> shift & most), most) << shift
    return total


def drop_packed(copies: int, medium: Medium) -> int:
    """Packed copies less one on a medium, if there is one and it is still counted."""
    there = copies >> _SHIFT[medium] & _MAX[medium]
    return copies - one_copy(medium) if 0 < there < _MAX[medium] else copies


def _to_key(name: int) -> int:
    """The key of an engine hash in the slot map; a bijection.

    The slot map uses the low bits of its keys, and engine hashes may differ in a few high bits only.
    """
    product = name * _SCATTER & _WORD
    return product ^ product >> 32


def _to_name(key: int) -> int:
    """Inverse of ``_to_key``."""
    return (key ^ key >> 32) * _GATHER & _WORD


class PageTokens:
    """Tokens of each page by slot, for engines whose pages are smaller than a block of a chain.

    A block is hashed when its last page is stored; its other pages may have been stored by any earlier event.

    Args:
        page_size: Tokens per page.
        pages_per_block: Pages per block.

    Attributes:
        pages_per_block: As above.
        block_bytes: Length of a block's tokens.
    """

    def __init__(self, page_size: int, pages_per_block: int) -> None:
        self._size = page_size * TOKEN_BYTES
        self.pages_per_block = pages_per_block
        self._tokens = bytearray(self._size)
        self.block_bytes = self._size * pages_per_block

    @property
    def nbytes(self) -> int:
        """Memory."""
        return len(self._tokens)

    def put(self, slot: int, tokens: bytes) -> None:
        """Tokens of the page in a slot."""
        end = (slot + 1) * self._size
        if len(self._tokens) < end:
            self._tokens.extend(bytes(end - len(self._tokens)))
        self._tokens[slot * self._size : end] = tokens

    def block_so_far(self, blocks: EngineBlocks, slot: int) -> tuple[int, bytes]:
        """The tokens of a block that is not complete yet.

        Args:
            blocks: The pages.
            slot: The last page.

        Returns:
            The slot of the last page of the last complete block, and the tokens after it.
        """
        pages: list[bytes] = []
        while not blocks.chain(slot) and blocks.parent(slot) != NONE:
            pages.append(bytes(self._tokens[slot * self._size : (slot + 1) * self._size]))
            slot = blocks.parent(slot)
        return slot, b"".join(reversed(pages))
