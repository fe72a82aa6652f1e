"""The prefix cache of vLLM: block accounting without tensors; the identity and the events of cached blocks.

Free blocks wait in one queue, with or without a cached prefix. An allocation takes the front and
evicts its content; a hit takes its block out of the middle; a finished sequence appends its blocks, the
last one first, except an incomplete one, which cannot be reused and goes to the front. That
order is the eviction order: least recently used, and the end of a prompt before its beginning. (vLLM 0.32,
``vllm/v1/core/block_pool.py``.)

SGLang keeps a tree that has every prefix once; evicting its least recently used leaves gives the same order.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.core.prompt import TOKEN_BYTES

_HASH_BYTES = 32


@dataclass(slots=True, eq=False, frozen=True)
class Prefix:
    """A prefix that ends with a full block.

    Attributes:
        hash: 32 bytes over everything that identifies it.
        parent: The prefix one block shorter; None at the beginning of a prompt.
        tokens: Token ids of its last block, little-endian u32.
        salt: Cache salt of the request, empty for none.
        adapter: LoRA adapter of the request, empty for none.
    """

    hash: bytes
    parent: "Prefix | None"
    tokens: bytes
    salt: str
    adapter: str

    @classmethod
    def of(cls, parent: "Prefix | None", tokens: bytes, salt: str, adapter: str) -> "Prefix":
        """The prefix of ``parent`` and one more block, ``tokens``."""
        before = parent.hash if parent is not None else _root(salt, adapter)
        return cls(hashlib.blake2b(before + tokens, digest_size=_HASH_BYTES).digest(), parent, tokens, salt, adapter)

    def blocks(self) -> Iterator["Prefix"]:
        """This prefix and all shorter ones, the longest first."""
        prefix: Prefix | None = self
        while prefix is not None:
            yield prefix
            prefix = prefix.parent

    def path(self) -> bytes:
        """All its tokens from the beginning of the prompt, little-endian u32."""
        return b"".join(reversed([prefix.tokens for prefix in self.blocks()]))


def _root(salt: str, adapter: str) -> bytes:
    # The length separates salt and adapter, which may contain any character.
    return hashlib.blake2b(f"{len(salt)}/{salt}{adapter}".encode(), digest_size=_HASH_BYTES).digest()


class Stored(NamedTuple):
    """A run of blocks, each the parent of the next, becomes reusable."""

    run: tuple[Prefix, ...]


class Removed(NamedTuple):
    """One copy of a block is evicted; ``windowed`` as of ``Block``."""

    prefix: Prefix
    windowed: bool = False


class Cleared(NamedTuple):
    """The cache is reset."""


CacheEvent = Stored | Removed | Cleared


@dataclass(slots=True, eq=False)
class Block:
    """One block of the cache.

    Attributes:
        number: Which one.
        prefix: The prefix that ends here; None while the block is not full or was evicted.
        users: Sequences that hold it.
        windowed: Whether the layers with a sliding window keep it as well.
    """

    number: int
    prefix: Prefix | None = None
    users: int = 0
    windowed: bool = False


@dataclass(slots=True, eq=False)
class SequenceBlocks:
    """The tokens of one sequence and the blocks that hold them.

    Attributes:
        tokens: Little-endian u32 ids, prompt first.
        salt: Cache salt, empty for none.
        adapter: LoRA adapter, empty for none.
        life: The cache's epoch (counted resets) in which it was made.
        prefixes: One for each full block.
        blocks: Empty until the sequence is begun and after it ended.
        cached_tokens: Prompt tokens that were found in the cache.
    """

    tokens: bytearray
    salt: str
    adapter: str
    life: int
    prefixes: list[Prefix] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    cached_tokens: int = 0

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.tokens) // TOKEN_BYTES


class BlockCache:
    """A pool of blocks and the prefixes that they hold.

    Args:
        blocks: Size of the pool; block 0 is the engine's own.
        block_size: Tokens per block.
        caching: Whether prefixes are kept for reuse at all.
        unique: Keep equal blocks computed twice once, as SGLang does. vLLM keeps both, and evicts each copy separately.
        window: Blocks that layers with a sliding window keep of the end of a sequence, and need at the end of a hit; 0
            without such layers.
        journal: Whether to record events, for ``take_events``.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        *,
        caching: bool = True,
        unique: bool = False,
        window: int = 0,
        journal: bool = False,
    ) -> None:
        self.block_size = block_size
        self.usable_blocks = blocks - 1
        self.caching = caching
        self._unique = unique
        self._window = window
        self._journal: list[CacheEvent] | None = [] if journal else None
        self._life = 0
        # Blocks are allocated in this order: free ones without a prefix, those never used, the others. A pool is large
        # and often hardly used, so a block is made when it is first allocated.
        self._blank: list[Block] = []
        self._made = 0
        self._free: OrderedDict[int, Block] = OrderedDict()
        self._cached: dict[bytes, dict[int, Block]] = {}

    @property
    def free_blocks(self) -> int:
        """Free blocks, including those with a cached prefix."""
        return len(self._blank) + self.usable_blocks - self._made + len(self._free)

    @property
    def cached_blocks(self) -> int:
        """Blocks that a new sequence could reuse, copies counted."""
        return sum(map(len, self._cached.values()))

    @property
    def changed(self) -> bool:
        """Whether ``take_events`` returns anything."""
        return bool(self._journal)

    def content(self) -> Iterator[tuple[Prefix, int]]:
        """Every cached prefix with the number of its copies."""
        for copies in self._cached.values():
            prefix = next(iter(copies.values())).prefix
            assert prefix is not None
            yield prefix, len(copies)

    def take_events(self) -> list[CacheEvent]:
        """The events since the last call, in order."""
        events, self._journal = self._journal or [], None if self._journal is None else []
        return events

    def table(self, tokens: bytes, salt: str = "", adapter: str = "") -> SequenceBlocks:
        """A table for a sequence that starts with these tokens. Different salts or adapters never share a block."""
        table = SequenceBlocks(tokens=bytearray(tokens), salt=salt, adapter=adapter, life=self._life)
        self._name_full_blocks(table)
        return table

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens take up."""
        return -(-tokens // self.block_size)

    def begin(self, table: SequenceBlocks, *, reuse: bool = True, spare: int = 0) -> bool:
        """Take the blocks of a new sequence, from the cache as far as it goes.

        Others can hit its full blocks at once, before their content is computed: the engine computes
        in the order of allocation.

        Args:
            table: The sequence, not begun yet.
            reuse: Whether to reuse a cached prefix.
            spare: Blocks that must stay free after this.

        Returns:
            False, with nothing changed, when too few blocks are free.
        """
        hits = self._find(table) if reuse else []
        missing = self.blocks_for(table.length) - len(hits)
        if missing + sum(not block.users for block in hits) + spare > self.free_blocks:
            return False
        for block in hits:
            self._hold(block)
        table.life = self._life
        table.cached_tokens = len(hits) * self.block_size
        table.blocks = hits + [self._allocate() for _ in range(missing)]
        self._publish(table, len(hits))
        return True

    def append(self, table: SequenceBlocks, token: int) -> None:
        """Add a decoded token to a begun sequence. Its block can be hit as soon as it is full.

        Raises:
            RuntimeError: No block is free. The caller of ``begin`` has to spare enough.
        """
        if table.length % self.block_size == 0:
            if not self.free_blocks:
                raise RuntimeError("no free block for a decoded token")
            table.blocks.append(self._allocate())
        table.tokens += token.to_bytes(TOKEN_BYTES, "little")
        if self._name_full_blocks(table):
            self._publish(table, len(table.prefixes) - 1)

    def end(self, table: SequenceBlocks) -> None:
        """Release the blocks of a sequence; their content stays cached until they are allocated again."""
        for block in reversed(table.blocks):
            self._release(block)
        table.blocks = []

    def reset(self) -> bool:
        """Drop every cached prefix. Returns False, with nothing changed, while a sequence holds blocks."""
        if self.free_blocks != self.usable_blocks:
            return False
        self._forget()
        if self.caching:
            self._note(Cleared())
        return True

    def restart(self) -> None:
        """Become empty as after a start, without recorded events. Running sequences keep their blocks, and leave
        nothing that could be reused."""
        self._life += 1
        self._forget()
        self.take_events()

    def _forget(self) -> None:
        for copies in self._cached.values():
            for block in copies.values():
                block.prefix = None
        self._cached.clear()

    def _name_full_blocks(self, table: SequenceBlocks) -> bool:
        """Hash the blocks that have become full. Returns whether there was one."""
        size = self.block_size * TOKEN_BYTES
        before = len(table.prefixes)
        parent = table.prefixes[-1] if table.prefixes else None
        for end in range((before + 1) * size, len(table.tokens) + 1, size):
            parent = Prefix.of(parent, bytes(table.tokens[end - size : end]), table.salt, table.adapter)
            table.prefixes.append(parent)
        return len(table.prefixes) > before

    def _find(self, table: SequenceBlocks) -> list[Block]:
        """The longest cached prefix. The last token is always computed, so its block is never a hit."""
        hits: list[Block] = []
        for prefix in table.prefixes[: (table.length - 1) // self.block_size]:
            copies = self._cached.get(prefix.hash)
            if not copies:
                break
            hits.append(max(copies.values(), key=lambda block: block.windowed))
        while self._window and not all(block.windowed for block in hits[-self._window :]):
            hits.pop()
        return hits

    def _hold(self, block: Block) -> None:
        if not block.users:
            del self._free[block.number]
        block.users += 1

    def _release(self, block: Block) -> None:
        block.users -= 1
        if block.users:
            return
        if block.prefix is None:
            self._blank.append(block)
        else:
            self._free[block.number] = block

    def _allocate(self) -> Block:
        if self._blank:
            block = self._blank.pop()
        elif self._made < self.usable_blocks:
            self._made += 1
            block = Block(self._made)
        else:
            _, block = self._free.popitem(last=False)
        if (prefix := block.prefix) is not None:
            copies = self._cached[prefix.hash]
            del copies[block.number]
            if not copies:
                del self._cached[prefix.hash]
            block.prefix = None
            self._note(Removed(prefix, block.windowed))
        block.users = 1
        return block

    def _publish(self, table: SequenceBlocks, first: int) -> None:
        """Make the full blocks of a sequence from the ``first`` on available to others."""
        if not self.caching or table.life != self._life:
            return
        run: list[Prefix] = []
        for index in range(first, len(table.prefixes)):
            prefix = table.prefixes[index]
            copies = self._cached.setdefault(prefix.hash, {})
            if copies and self._unique:
                self._share(table, index, next(iter(copies.values())))
                self._note_run(run)
                run = []
                continue
            block = table.blocks[index]
            block.prefix = prefix
            block.windowed = index >= len(table.prefixes) - self._window
            copies[block.number] = block
            run.append(prefix)
        self._note_run(run)

    def _share(self, table: SequenceBlocks, index: int, block: Block) -> None:
        """Let a sequence use a cached block instead of its own, which is released."""
        self._hold(block)
        self._release(table.blocks[index])
        table.blocks[index] = block

    def _note_run(self, run: list[Prefix]) -> None:
        if run:
            self._note(Stored(tuple(run)))

    def _note(self, event: CacheEvent) -> None:
        if self._journal is not None:
            self._journal.append(event)
