"""Blocks whose place is not known: the engine named a parent that was never described to us.

They wait here until the parent appears. They are never taken for the beginning of a prompt, which would promise them to
requests that begin otherwise.
"""

from dataclasses import dataclass

LIMIT = 32768
"""Blocks that wait at most, per target; the oldest go first. About 17 MiB with blocks of 16 tokens. Forgetting one
costs nothing but the knowledge that the engine has it."""


@dataclass(slots=True)
class WaitingBlock:
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


class Aside:
    """All blocks of one target that wait."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        # By name, oldest first, and by the parent that is waited for.
        self._blocks: dict[int, WaitingBlock] = {}
        self._children: dict[int, dict[int, WaitingBlock]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, name: int) -> WaitingBlock | None:
        """The waiting block of that name."""
        return self._blocks.get(name)

    def put(self, block: WaitingBlock) -> None:
        """Let a block wait; its name must not be waiting yet."""
        if len(self._blocks) >= self._limit:
            self.drop(next(iter(self._blocks)))
        self._blocks[block.name] = block
        self._children.setdefault(block.parent, {})[block.name] = block

    def drop(self, name: int) -> None:
        """Forget a block. Those that wait for it go on waiting."""
        block = self._blocks.pop(name)
        siblings = self._children[block.parent]
        del siblings[name]
        if not siblings:
            del self._children[block.parent]

    def take_children(self, parent: int) -> list[WaitingBlock]:
        """Take out the blocks that waited for a name."""
        children = list(self._children.pop(parent, {}).values())
        for block in children:
            del self._blocks[block.name]
        return children
