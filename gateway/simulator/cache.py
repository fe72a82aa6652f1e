"""The prefix cache of vLLM, as bookkeeping without any tensors.

Blocks that nobody uses wait in one queue, whether they hold a cached prefix or not. An allocation takes its front and
thereby evicts what stood there; a hit takes its block out of the middle; a finished sequence appends its blocks, the
last one first, but for the one that is not full: it holds nothing that could be reused and goes to the front. That
order is the eviction order: least recently used, and the end of a prompt before its beginning. (vLLM 0.32,
``vllm/v1/core/block_pool.py``.)
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from gateway.values.prompt import TOKEN_BYTES

_HASH_BYTES = 16


@dataclass(slots=True, eq=False)
class Block:
    """One block of the cache.

    Attributes:
        number: Which one.
        hash: Name of the prefix that ends here; None while the block is not full or was evicted.
        users: Sequences that hold it.
    """

    number: int
    hash: bytes | None = None
    users: int = 0


@dataclass(slots=True, eq=False)
class BlockTable:
    """The tokens of one sequence and the blocks that hold them.

    Attributes:
        tokens: Little-endian u32 ids, prompt first.
        hashes: One for each full block.
        blocks: Empty until the sequence is begun and after it ended.
        cached_tokens: Prompt tokens that were found in the cache.
    """

    tokens: bytearray
    hashes: list[bytes]
    root: bytes
    blocks: list[Block] = field(default_factory=list)
    cached_tokens: int = 0

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.tokens) // TOKEN_BYTES


class BlockCache:
    """A pool of blocks, and which prefixes stand in them.

    Equal blocks computed twice are kept twice, as the engine does: each copy leaves on its own.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.usable_blocks = blocks - 1
        """Block 0 is the engine's own."""
        self._free: OrderedDict[int, Block] = OrderedDict((number, Block(number)) for number in range(1, blocks))
        self._cached: dict[bytes, dict[int, Block]] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks in no sequence's use, those with a cached prefix included."""
        return len(self._free)

    @property
    def cached_blocks(self) -> int:
        """Blocks that a new sequence could reuse, copies counted."""
        return sum(map(len, self._cached.values()))

    def table(self, tokens: bytes, salt: str = "") -> BlockTable:
        """A table for a sequence that starts with these tokens. Different salts never share a block."""
        root = hashlib.blake2b(salt.encode(), digest_size=_HASH_BYTES).digest()
        table = BlockTable(tokens=bytearray(tokens), hashes=[], root=root)
        self._hash_full_blocks(table)
        return table

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens take up."""
        return -(-tokens // self.block_size)

    def begin(self, table: BlockTable, *, reuse: bool = True, spare: int = 0) -> bool:
        """Take the blocks of a new sequence, from the cache as far as it goes.

        Its full blocks can be hit by others at once, although their content is computed only now: the engine computes
        in the order in which it allocates.

        Args:
            table: The sequence, not begun yet.
            reuse: Whether to look for its prefix at all.
            spare: Blocks that must stay free after this.

        Returns:
            False, with nothing changed, when too few blocks are free.
        """
        hits = self._find(table) if reuse else []
        missing = self.blocks_for(table.length) - len(hits)
        if missing + sum(not block.users for block in hits) + spare > len(self._free):
            return False
        for block in hits:
            if not block.users:
                del self._free[block.number]
            block.users += 1
        table.cached_tokens = len(hits) * self.block_size
        table.blocks = hits + [self._allocate() for _ in range(missing)]
        for index in range(len(hits), len(table.hashes)):
            self._publish(table.blocks[index], table.hashes[index])
        return True

    def append(self, table: BlockTable, token: int) -> None:
        """Add a decoded token to a begun sequence. Its block can be hit as soon as it is full.

        Raises:
            RuntimeError: No block is free. Whoever begins sequences has to spare enough.
        """
        if table.length % self.block_size == 0:
            if not self._free:
                raise RuntimeError("no free block for a decoded token")
            table.blocks.append(self._allocate())
        table.tokens += token.to_bytes(TOKEN_BYTES, "little")
        if self._hash_full_blocks(table):
            self._publish(table.blocks[len(table.hashes) - 1], table.hashes[-1])

    def end(self, table: BlockTable) -> None:
        """Give back the blocks of a sequence; what they hold stays cached until they are taken again."""
        for block in reversed(table.blocks):
            block.users -= 1
            if not block.users:
                self._free[block.number] = block
                if block.hash is None:
                    self._free.move_to_end(block.number, last=False)
        table.blocks = []

    def reset(self) -> bool:
        """Forget every cached prefix. Returns False, with nothing changed, while a sequence holds blocks."""
        if len(self._free) != self.usable_blocks:
            return False
        self._cached.clear()
        for block in self._free.values():
            block.hash = None
        return True

    def _hash_full_blocks(self, table: BlockTable) -> bool:
        """Name the blocks that have become full. Returns whether there was one."""
        size = self.block_size * TOKEN_BYTES
        before = len(table.hashes)
        parent = table.hashes[-1] if table.hashes else table.root
        for end in range((before + 1) * size, len(table.tokens) + 1, size):
            parent = hashlib.blake2b(parent + table.tokens[end - size : end], digest_size=_HASH_BYTES).digest()
            table.hashes.append(parent)
        return len(table.hashes) > before

    def _find(self, table: BlockTable) -> list[Block]:
        """The longest cached prefix. The last token is always computed, so its block is never a hit."""
        hits: list[Block] = []
        for name in table.hashes[: (table.length - 1) // self.block_size]:
            copies = self._cached.get(name)
            if not copies:
                break
            hits.append(next(iter(copies.values())))
        return hits

    def _allocate(self) -> Block:
        _, block = self._free.popitem(last=False)
        if block.hash is not None:
            copies = self._cached[block.hash]
            del copies[block.number]
            if not copies:
                del self._cached[block.hash]
            block.hash = None
        block.users = 1
        return block

    def _publish(self, block: Block, name: bytes) -> None:
        block.hash = name
        self._cached.setdefault(name, {})[block.number] = block
