"""Blocks whose parent is unknown: no event has stored it.

They wait here until the parent is stored. They are never treated as the beginning of a prompt, which would count them
as held for requests that begin differently.
"""

from collections import OrderedDict
from dataclasses import dataclass

LIMIT = 32768
"""Blocks that wait at most, per target; the oldest go first. About 17 MiB with blocks of 16 tokens. A
forgotten block only counts as not held."""

BYTES_LIMIT = 64 * 1024 * 1024
"""Tokens of these blocks in bytes, as the engine chooses the size of a block."""


@dataclass(slots=True)
class OrphanBlock:
    """One block that waits.

    Attributes:
        name: The engine's.
        parent: Name of the block it waits for.
        tokens: Its tokens, little-endian u32.
        extra: What else is part of its identity.
        copies: How many there are, packed as in ``blocks``.
    """

    name: int
    parent: int
    tokens: bytes
    extra: bytes | None
    copies: int

    @property
    def nbytes(self) -> int:
        """Bytes that vary from block to block."""
        return len(self.tokens) + len(self.extra or b"")


class OrphanBlocks:
    """All blocks of one target that wait."""

    def __init__(self, limit: int = LIMIT, bytes_limit: int = BYTES_LIMIT) -> None:
        self._limit = limit
        self._bytes_limit = bytes_limit
        self._bytes = 0
        # By name, oldest first, and by the parent that is waited for.
        self._blocks: OrderedDict[int, OrphanBlock] = OrderedDict()
        self._children: dict[int, dict[int, OrphanBlock]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, name: int) -> OrphanBlock | None:
        """The waiting block of that name."""
        return self._blocks.get(name)

    def put(self, block: OrphanBlock) -> None:
        """Let a block wait; its name must not be waiting yet."""
        self._bytes += block.nbytes
        while self._blocks and (len(self._blocks) >= self._limit or self._bytes > self._bytes_limit):
            self.drop(next(iter(self._blocks)))
        self._blocks[block.name] = block
        self._children.setdefault(block.parent, {})[block.name] = block

    def drop(self, name: int) -> None:
        """Forget a block. Its children keep waiting."""
        block = self._blocks.pop(name)
        self._bytes -= block.nbytes
        siblings = self._children[block.parent]
        del siblings[name]
        if not siblings:
            del self._children[block.parent]

    def waits_for(self, parent: int) -> bool:
        """Whether any block waits for a name."""
        return parent in self._children

    def take_child(self, parent: int) -> OrphanBlock | None:
        """Take out one of the blocks that wait for a name; None if none does."""
        siblings = self._children.get(parent)
        if not siblings:
            return None
        block = next(reversed(siblings.values()))
        self.drop(block.name)
        return block
