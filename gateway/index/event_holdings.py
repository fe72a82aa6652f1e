"""The index that KV events feed: what every target holds, and the look-up over all of them."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.core.block_chain import BlockChain
from gateway.core.ids import ModelId, ReplicaId, Target
from gateway.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent, Medium
from gateway.core.ports import BlockHasher, Holding
from gateway.index.engine_blocks import EngineBlocks
from gateway.index.holders import Holders
from gateway.index.holdings import HeldBlocks

_PURGE_SLOTS = 32
_PURGE_SLOTS_PER_BLOCK = 2
_TIDY_SLOTS = 2048
"""Slots of a forgotten part that are taken off the shelf with each event, with each block of an event, and from time to
time. A part that is cleared is forgotten at once and purged in portions, because a million blocks at once would hold up
every request. More is purged than an event can add, so that parts which are filled and cleared in turn do not pile up.
"""


@dataclass(slots=True, eq=False)
class _Leaving:
    """Blocks that count no more and are still on a shelf.

    Attributes:
        blocks: The blocks.
        shelf: Where they are.
        bit: Under which bit; it is given back once they are all gone.
        start: The slot at which purging goes on.
    """

    blocks: EngineBlocks
    shelf: Holders
    bit: int
    start: int = 0


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
        self._shelves: list[Holders] = []
        self._parts: dict[Target, HeldBlocks] = {}
        self._leaving: deque[_Leaving] = deque()

    @property
    def nbytes(self) -> int:
        """Memory of all arrays."""
        leaving = sum(each.blocks.nbytes for each in self._leaving)
        return (
            sum(part.nbytes for part in self._parts.values()) + leaving + sum(shelf.nbytes for shelf in self._shelves)
        )

    def part(self, target: Target) -> HeldBlocks | None:
        """What is known of one target."""
        return self._parts.get(target)

    def apply(self, target: Target, event: KvEvent) -> None:
        """See ``EventIndex``."""
        if self._leaving:
            names = len(event.names) if isinstance(event, BlockStored | BlockRemoved) else 0
            self.purge(_PURGE_SLOTS + _PURGE_SLOTS_PER_BLOCK * names)
        while self.advance(target):
            pass
        if isinstance(event, BlockStored):
            (self._parts.get(target) or self._start(target)).store(event)
        elif isinstance(event, BlockRemoved):
            part = self._parts.get(target)
            if part is not None:
                part.remove(event)
        elif isinstance(event, AllBlocksCleared):
            self.clear(target)
        self.advance(target)

    def advance(self, target: Target) -> bool:
        """See ``EventIndex``."""
        part = self._parts.get(target)
        return part is not None and part.advance()

    def clear(self, target: Target) -> None:
        """See ``EventIndex``."""
        part = self._parts.pop(target, None)
        if part is not None:
            self._leaving.append(_Leaving(part.blocks, part.shelf, part.bit))

    def tidy(self) -> None:
        """See ``EventIndex``."""
        self.purge(_TIDY_SLOTS)

    def purge(self, slots: int) -> bool:
        """Clean away some of what was cleared. Returns whether there is more."""
        if self._leaving:
            leaving = self._leaving[0]
            leaving.start = leaving.blocks.purge(leaving.start, slots)
            if not leaving.start:
                self._leaving.popleft()
                leaving.shelf.give_back(leaving.bit)
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
        shelf, bit = self._take_bit()

        def replace(blocks: EngineBlocks) -> tuple[Holders, int]:
            self._leaving.append(_Leaving(blocks, part.shelf, part.bit))
            return self._take_bit()

        part = HeldBlocks(
            shelf,
            bit,
            self._hasher,
            self._model_of(target.replica),
            on_lost=lambda chain: self._on_lost(target, chain),
            replace=replace,
        )
        self._parts[target] = part
        return part

    def _take_bit(self) -> tuple[Holders, int]:
        for shelf in self._shelves:
            bit = shelf.take_bit()
            if bit is not None:
                return shelf, bit
        shelf = Holders()
        self._shelves.append(shelf)
        bit = shelf.take_bit()
        assert bit is not None
        return shelf, bit
