"""The index that KV events feed: what every target holds, and the look-up over all of them."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from gateway.index.held import HeldBlocks
from gateway.index.shelf import Shelf
from gateway.values.blocks import BlockChain
from gateway.values.ids import ModelId, ReplicaId, Target
from gateway.values.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent, Medium
from gateway.values.ports import BlockHasher, Holding

_PURGE_SLOTS = 32
_TIDY_SLOTS = 2048
"""Slots of a forgotten part that are taken off the shelf with each event that comes in, and from time to time. A part
that is cleared is forgotten at once and cleaned away little by little, because a million blocks at once would hold up
every request."""


class EventHoldings:
    """Holdings by KV events.

    Args:
        hasher: From tokens to chain hashes.
        model_of: The model each replica serves.
        worth: What a token on each medium is worth, 1 for one on the GPU.
        on_lost: Told the target and chain hash of every block that is gone.
    """

    def __init__(
        self,
        hasher: BlockHasher,
        model_of: Callable[[ReplicaId], ModelId],
        worth: Mapping[Medium, float],
        on_lost: Callable[[Target, int], None],
    ) -> None:
        self._hasher = hasher
        self._model_of = model_of
        self._worth = worth
        self._on_lost = on_lost
        self._shelves: list[Shelf] = []
        self._parts: dict[Target, HeldBlocks] = {}
        self._leaving: deque[tuple[HeldBlocks, int]] = deque()

    @property
    def nbytes(self) -> int:
        """Memory of all arrays."""
        parts = [*self._parts.values(), *(part for part, _ in self._leaving)]
        return sum(part.nbytes for part in parts) + sum(shelf.nbytes for shelf in self._shelves)

    def part(self, target: Target) -> HeldBlocks | None:
        """What is known of one target."""
        return self._parts.get(target)

    def apply(self, target: Target, event: KvEvent) -> None:
        """See ``EventIndex``."""
        if self._leaving:
            self.purge(_PURGE_SLOTS)
        if isinstance(event, BlockStored):
            (self._parts.get(target) or self._start(target)).store(event)
        elif isinstance(event, BlockRemoved):
            part = self._parts.get(target)
            if part is not None:
                part.remove(event)
        elif isinstance(event, AllBlocksCleared):
            self.clear(target)

    def clear(self, target: Target) -> None:
        """See ``EventIndex``."""
        part = self._parts.pop(target, None)
        if part is not None:
            self._leaving.append((part, 0))

    def tidy(self) -> None:
        """See ``EventIndex``."""
        self.purge(_TIDY_SLOTS)

    def purge(self, slots: int) -> bool:
        """Clean away some of what was cleared. Returns whether there is more."""
        if self._leaving:
            part, start = self._leaving.popleft()
            start = part.blocks.purge(start, slots)
            if start:
                self._leaving.appendleft((part, start))
            else:
                part.shelf.give_back(part.bit)
        return bool(self._leaving)

    def depths(self, chain: BlockChain, limit: int, targets: Sequence[Target]) -> list[int]:
        """How many of the first ``limit`` blocks of a chain each target holds, without a gap."""
        parts = [self._parts.get(target) for target in targets]
        found: dict[tuple[int, int], int] = {}
        for number, shelf in enumerate(self._shelves):
            wanted = 0
            for part in parts:
                if part is not None and part.shelf is shelf:
                    wanted |= part.bit
            for depth, holders in shelf.depths(chain.hashes, limit, wanted) if wanted else ():
                bits = holders
                while bits:
                    found[number, bits & -bits] = depth
                    bits &= bits - 1
        depths = []
        for part in parts:
            if part is None or part.block_size != chain.block_size:
                depths.append(0)
                continue
            depth = found.get((self._shelves.index(part.shelf), part.bit), 0)
            if depth and part.blocks.gaps:
                depth = part.shelf.depth(chain.hashes, limit, part.bit)
            depths.append(depth)
        return depths

    def holding(self, chain: BlockChain, depth: int, target: Target) -> Holding:
        """The first ``depth`` blocks of a chain at a target, by what they are worth."""
        tokens = depth * chain.block_size
        part = self._parts.get(target)
        if part is None or not part.shelf.has_media:
            return Holding(tokens, tokens)
        worth = float(tokens)
        for medium, blocks in part.shelf.count_below(chain.hashes, depth, part.bit).items():
            worth -= blocks * chain.block_size * (1 - self._worth[medium])
        return Holding(tokens, worth)

    def _start(self, target: Target) -> HeldBlocks:
        bit = None
        for shelf in self._shelves:
            bit = shelf.take_bit()
            if bit is not None:
                break
        else:
            shelf = Shelf()
            self._shelves.append(shelf)
            bit = shelf.take_bit()
        assert bit is not None
        part = HeldBlocks(
            shelf, bit, self._hasher, self._model_of(target.replica), lambda chain: self._on_lost(target, chain)
        )
        self._parts[target] = part
        return part
