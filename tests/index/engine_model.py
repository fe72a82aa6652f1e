"""A small model of vLLM's block pool: physical blocks, copies, the free queue, and the events it would publish.

Rules as in vLLM 0.32 (``vllm/v1/core/block_pool.py`` and ``kv_cache_manager.py``), kept as plain as possible: nothing
is shared with the gateway's own code but the types of the events.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gateway.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from gateway.core.prompt import MediaItem
from gateway.engines import media_extra


def packed(tokens: Sequence[int]) -> bytes:
    return array("I", tokens).tobytes()


@dataclass(frozen=True)
class Prompt:
    """A request as the engine sees it."""

    tokens: tuple[int, ...]
    salt: str = ""
    adapter: str = ""
    media: tuple[MediaItem, ...] = ()

    def items(self, start: int, end: int) -> list[tuple[str, int]]:
        """Media items with a placeholder among the tokens ``start`` to ``end``, with their offset to ``start``."""
        return [
            (item.identifier, item.offset - start)
            for item in self.media
            if item.offset < end and item.offset + item.length > start
        ]

    def names(self, block_size: int) -> list[int]:
        """The engine's hashes of its full blocks."""
        found: list[int] = []
        name = 0
        for end in range(block_size, len(self.tokens) + 1, block_size):
            start = end - block_size
            keys = (name, self.tokens[start:end], self.adapter, self.items(start, end), "" if start else self.salt)
            name = int.from_bytes(hashlib.sha256(repr(keys).encode()).digest()[:8], "big")
            found.append(name)
        return found

    def extras(self, block_size: int, first: int, last: int) -> list[bytes | None] | None:
        """What events say besides tokens about the blocks ``first`` to ``last``."""
        found = [self.items(block * block_size, (block + 1) * block_size) for block in range(first, last)]
        return [media_extra(items) if items else None for items in found] if any(found) else None


@dataclass(eq=False)
class Running:
    """A request being computed."""

    prompt: Prompt
    blocks: list[int]
    cached: int = field(default=0)


class Engine:
    """The pool. Block 0 is the engine's own."""

    def __init__(self, blocks: int, block_size: int, group: int = 0) -> None:
        self.block_size = block_size
        self.usable = blocks - 1
        self.running: list[Running] = []
        self.described: dict[int, tuple[Prompt, int]] = {}
        self._group = group
        self._free = list(range(1, blocks))
        self._users = Counter[int]()
        self._name_of: dict[int, int] = {}
        self._blocks_of: dict[int, list[int]] = {}
        self._events: list[KvEvent] = []

    def take_events(self) -> list[KvEvent]:
        """What a scheduler step would publish."""
        events, self._events = self._events, []
        return events

    def copies(self) -> Counter[int]:
        """How many blocks hold each name."""
        return Counter(self._name_of.values())

    def hit(self, prompt: Prompt) -> int:
        """Blocks a request would take from the cache."""
        names = prompt.names(self.block_size)[: max(len(prompt.tokens) - 1, 0) // self.block_size]
        return next((n for n, name in enumerate(names) if name not in self._blocks_of), len(names))

    def begin(self, prompt: Prompt) -> bool:
        """Schedule a request; False when no blocks are free."""
        names = prompt.names(self.block_size)
        hits = [self._blocks_of[name][0] for name in names[: self.hit(prompt)]]
        missing = -(-len(prompt.tokens) // self.block_size) - len(hits)
        if missing + sum(block in self._free for block in hits) > len(self._free):
            return False
        for block in hits:
            if not self._users[block]:
                self._free.remove(block)
            self._users[block] += 1
        request = Running(prompt, hits + [self._allocate() for _ in range(missing)], cached=len(hits))
        self._publish(request)
        self.running.append(request)
        return True

    def decode(self, request: Running, token: int) -> bool:
        """One more token; False when no block is free."""
        if len(request.prompt.tokens) % self.block_size == 0:
            if not self._free:
                return False
            request.blocks.append(self._allocate())
        old = request.prompt
        request.prompt = Prompt((*old.tokens, token), old.salt, old.adapter, old.media)
        self._publish(request)
        return True

    def end(self, request: Running) -> None:
        """A request is over: its last block is reused first, and what holds no name before all others."""
        self.running.remove(request)
        for block in reversed(request.blocks):
            self._users[block] -= 1
            if not self._users[block]:
                if block in self._name_of:
                    self._free.append(block)
                else:
                    self._free.insert(0, block)

    def invalidate(self, block: int) -> None:
        """Forget what a block holds, wherever it stands, as connectors do with blocks that failed to load."""
        name = self._name_of.pop(block, None)
        if name is not None:
            self._blocks_of[name].remove(block)
            if not self._blocks_of[name]:
                del self._blocks_of[name]
            self._events.append(BlockRemoved([name], group=self._group))

    def reset(self) -> bool:
        """Forget all; only while nothing runs."""
        if self.running:
            return False
        self._name_of.clear()
        self._blocks_of.clear()
        self._events.append(AllBlocksCleared())
        return True

    def restart(self) -> None:
        """A new process: empty, and nothing was published."""
        self.running.clear()
        self._users.clear()
        self._name_of.clear()
        self._blocks_of.clear()
        self._events.clear()
        self._free = list(range(1, self.usable + 1))

    def named_blocks(self) -> Iterator[int]:
        """Blocks that hold a name."""
        return iter(sorted(self._name_of))

    def _allocate(self) -> int:
        block = self._free.pop(0)
        self.invalidate(block)
        self._users[block] = 1
        return block

    def _publish(self, request: Running) -> None:
        prompt, size = request.prompt, self.block_size
        names = prompt.names(size)
        first = request.cached
        if first == len(names):
            return
        for index in range(first, len(names)):
            self._name_of[request.blocks[index]] = names[index]
            self._blocks_of.setdefault(names[index], []).append(request.blocks[index])
            self.described.setdefault(names[index], (prompt, index + 1))
        request.cached = len(names)
        self._events.append(
            BlockStored(
                names[first:],
                names[first - 1] if first else None,
                packed(prompt.tokens[first * size : len(names) * size]),
                size,
                group=self._group,
                sparse=False,
                adapter=prompt.adapter,
                salt=prompt.salt if not first else "",
                extras=prompt.extras(size, first, len(names)),
            )
        )
