"""The prefix cache of one replica as a simulation needs it: block ids instead of tokens.

It takes the same decisions as ``simulator/block_cache.py``, which has the tokens: a hit ends at the first block that is
not cached, blocks in use are never evicted, and the front of the queue of free blocks is evicted first (least recently
used, the end of a prompt before its beginning). Equal blocks are kept once.
"""

from collections import OrderedDict
from collections.abc import MutableMapping, Sequence


class BlockHolders:
    """Which caches hold which block: a bit for each cache."""

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}

    def add(self, block: int, bit: int) -> None:
        """A cache holds a block from now on."""
        self._bits[block] = self._bits.get(block, 0) | bit

    def remove(self, block: int, bit: int) -> None:
        """A cache has evicted a block."""
        left = self._bits[block] & ~bit
        if left:
            self._bits[block] = left
        else:
            del self._bits[block]

    def depths(self, blocks: Sequence[int], limit: int, caches: int) -> list[int]:
        """How many of the first ``limit`` blocks each of ``caches`` caches holds without a gap."""
        depths = [limit] * caches
        holding = (1 << caches) - 1
        find = self._bits.get
        for depth in range(limit):
            still = holding & find(blocks[depth], 0)
            if still != holding:
                ended = holding ^ still
                for cache in range(caches):
                    if ended >> cache & 1:
                        depths[cache] = depth
                if not still:
                    break
                holding = still
        return depths


class PrefixCacheModel:
    """A pool of blocks.

    Args:
        blocks: Size of the pool; None for one without a limit.
        holders: Records what this cache holds.
        number: Its number there.
        expected: Blocks that are expected in this cache, too; one that is evicted is removed from it.
    """

    def __init__(
        self,
        blocks: int | None,
        holders: BlockHolders,
        number: int = 0,
        expected: MutableMapping[int, int] | None = None,
    ) -> None:
        self.blocks = blocks
        self._holders = holders
        self._bit = 1 << number
        self._expected = expected
        self._empty = blocks or 0
        self._users: dict[int, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict()
        """Free blocks with content. Below 0: generated tokens, which are never a hit."""
        self._generated = 0

    def begin(self, full: Sequence[int], reusable: int, needed: int, spare: int = 0) -> int | None:
        """Take the blocks of a new sequence.

        Args:
            full: Ids of the full blocks of its prompt.
            reusable: How many of them may be hits.
            needed: Blocks that its prompt takes up.
            spare: Blocks that must stay free after this.

        Returns:
            How many blocks are hits; None, with nothing changed, when too few blocks are free.
        """
        users, free = self._users, self._free
        hits = idle = 0
        for block in full[:reusable]:
            if block in free:
                idle += 1
            elif block not in users:
                break
            hits += 1
        if self.blocks is not None and needed - hits + idle + spare > self._empty + len(free):
            return None
        for block in full[:hits]:
            self._hold(block)
        self._allocate(needed - hits)
        for block in full[hits:]:
            if block in users or block in free:
                self._hold(block)
                self._empty += 1  # equal content exists: its own block is released again
            else:
                users[block] = 1
                self._holders.add(block, self._bit)
        return hits

    def grow(self) -> None:
        """Take a block for generated tokens. The caller of ``begin`` has to spare it."""
        self._allocate(1)

    def end(self, full: Sequence[int], generated: int, partial: int) -> None:
        """Release the blocks of a sequence; their content stays until they are allocated again.

        Args:
            full: The full blocks of its prompt.
            generated: Blocks that generated tokens completed.
            partial: Blocks that are not full: 0 or 1.
        """
        self._empty += partial
        free, users = self._free, self._users
        for _ in range(generated):
            self._generated -= 1
            free[self._generated] = None
        for block in reversed(full):
            count = users[block]
            if count > 1:
                users[block] = count - 1
            else:
                del users[block]
                free[block] = None

    def _hold(self, block: int) -> None:
        if block in self._free:
            del self._free[block]
            self._users[block] = 1
        else:
            self._users[block] += 1

    def _allocate(self, count: int) -> None:
        if self.blocks is None:
            return
        taken = min(self._empty, count)
        self._empty -= taken
        for _ in range(count - taken):
            block, _ = self._free.popitem(last=False)
            if block >= 0:
                self._holders.remove(block, self._bit)
                if self._expected:
                    self._expected.pop(block, None)
