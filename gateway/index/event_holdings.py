"""The index of KV events: the blocks that every target holds, and the look-up over all targets."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.core.block_chain import BlockChain
from gateway.core.ids import ModelId, ReplicaId, Target
from gateway.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent, Medium, Unmatched
from gateway.core.ports import BlockHasher, Holding
from gateway.index.engine_blocks import EngineBlocks
from gateway.index.holders import ALL_HOLDERS, Holders
from gateway.index.holdings import HeldBlocks, UnmatchedCounts

_PURGE_SLOTS = 32
_PURGE_SLOTS_PER_BLOCK = 2
_TIDY_SLOTS = 2048
"""Slots of cleared blocks that are purged with each event, with each block of an event, and periodically. Clearing
takes effect at once and purging is done in steps, because purging a million blocks at once would delay every request.
More is purged than an event can add, so cleared blocks do not accumulate.
"""


@dataclass(slots=True, eq=False)
class _PurgedBlocks:
    """Cleared blocks that are still in ``holders``.

    Attributes:
        blocks: The blocks.
        holders: The index that contains them.
        bit: Their bit; released once all are purged.
        start: The slot at which purging continues.
    """

    blocks: EngineBlocks
    holders: Holders
    bit: int
    start: int = 0


class EventHoldings:
    """What targets hold according to their KV events.

    Args:
        hasher: From tokens to chain hashes.
        model_of: The model each replica serves.
        worth: Weight of a cached token on each medium, 1 for the GPU.
        on_lost: Called with the target and chain hash of every block that was removed.
        on_block_size: Called when the block size of a target changes.
    """

    def __init__(
        self,
        hasher: BlockHasher,
        model_of: Callable[[ReplicaId], ModelId],
        worth: Mapping[Medium, float],
        on_lost: Callable[[Target, int], None],
        on_block_size: Callable[[], None] = lambda: None,
    ) -> None:
        self._hasher = hasher
        self._model_of = model_of
        self._worth = worth
        self._on_lost = on_lost
        self._on_block_size = on_block_size
        self._groups: list[Holders] = []
        self._parts: dict[Target, HeldBlocks] = {}
        self._unmatched: dict[Target, UnmatchedCounts] = {}
        # Targets whose events are ignored until their cache is cleared.
        self._problems: dict[Target, str] = {}
        self._purging: deque[_PurgedBlocks] = deque()

    @property
    def nbytes(self) -> int:
        """Memory of all arrays."""
        purged = sum(each.blocks.nbytes for each in self._purging)
        return (
            sum(part.nbytes for part in self._parts.values()) + purged + sum(holders.nbytes for holders in self._groups)
        )

    def part(self, target: Target) -> HeldBlocks | None:
        """The blocks of one target; None before its first event."""
        return self._parts.get(target)

    def has_groups(self, target: Target) -> bool:
        """Whether other groups of layers limit what the followed one holds."""
        part = self._parts.get(target)
        return part is not None and bool(part.others)

    def problem(self, target: Target) -> str:
        """See ``EventIndex``."""
        part = self._parts.get(target)
        only_sparse = part is not None and part.only_sparse
        return self._problems.get(target, "no group of layers keeps whole prefixes" if only_sparse else "")

    def apply(self, target: Target, event: KvEvent) -> None:
        """See ``EventIndex``."""
        if self._purging:
            names = len(event.names) if isinstance(event, BlockStored | BlockRemoved) else 0
            self.purge(_PURGE_SLOTS + _PURGE_SLOTS_PER_BLOCK * names)
        while self.advance(target):
            pass
        if target in self._problems and not isinstance(event, AllBlocksCleared):
            return
        if isinstance(event, BlockStored):
            held = self._parts.get(target) or self._start(target)
            before = held.block_size
            held.store(event)
            if held.problem:
                self.clear(target)
                self._problems[target] = held.problem
            elif held.block_size != before:
                self._on_block_size()
        elif isinstance(event, BlockRemoved):
            part = self._parts.get(target)
            if part is not None:
                part.remove(event)
            elif event.medium is Medium.GPU:
                self._counts(target).removed += len(event.names)
        elif isinstance(event, AllBlocksCleared):
            self.clear(target)
        self.advance(target)

    def advance(self, target: Target) -> bool:
        """See ``EventIndex``."""
        part = self._parts.get(target)
        return part is not None and part.advance()

    def clear(self, target: Target) -> None:
        """See ``EventIndex``."""
        self._problems.pop(target, None)
        part = self._parts.pop(target, None)
        if part is not None:
            self._purging.append(_PurgedBlocks(part.blocks, part.holders, part.bit))
            self._on_block_size()

    def unmatched(self, target: Target) -> Unmatched:
        """See ``EventIndex``."""
        counts = self._unmatched.get(target)
        return counts.total() if counts else Unmatched()

    def forget(self, target: Target) -> None:
        """A target has left: forget its blocks, and what was counted of its events."""
        self.clear(target)
        self._unmatched.pop(target, None)

    def tidy(self) -> None:
        """See ``EventIndex``."""
        self.purge(_TIDY_SLOTS)

    def purge(self, slots: int) -> bool:
        """Purge some of the cleared blocks. Returns whether there are more."""
        if self._purging:
            purged = self._purging[0]
            purged.start = purged.blocks.purge(purged.start, slots)
            if not purged.start:
                self._purging.popleft()
                purged.holders.give_back(purged.bit)
        return bool(self._purging)

    def depths(self, chain: BlockChain, limit: int, targets: Sequence[Target]) -> list[int]:
        """How many of the first ``limit`` blocks of a chain each target holds, without a gap."""
        hashes, block_size = chain.hashes, chain.block_size
        # Of all targets, also those that are not asked for: chains of other models and block sizes are not equal.
        found = {
            holders: _by_bit(held) for holders in self._groups if (held := holders.depths(hashes, limit, ALL_HOLDERS))
        }
        if not found:
            return [0] * len(targets)
        depths = []
        for target in targets:
            depth, part = 0, self._parts.get(target)
            if part is not None and part.block_size == block_size and part.holders in found:
                depth = found[part.holders].get(part.bit, 0)
                if depth and part.blocks.gaps:
                    depth = part.holders.depth(hashes, limit, part.bit)
                if depth and part.others:
                    depth = part.reusable(hashes, depth)
            depths.append(depth)
        return depths

    def holding(self, chain: BlockChain, depth: int, target: Target) -> Holding:
        """The first ``depth`` blocks of a chain at a target, weighted by medium."""
        tokens = depth * chain.block_size
        part = self._parts.get(target)
        if part is None or not part.holders.has_media:
            return Holding(tokens, tokens)
        worth = float(tokens)
        for medium, blocks in part.holders.count_below(chain.hashes, depth, part.bit).items():
            worth -= blocks * chain.block_size * (1 - self._worth[medium])
        return Holding(tokens, worth)

    def _start(self, target: Target) -> HeldBlocks:
        holders, bit = self._take_bit()
        part = HeldBlocks(
            holders,
            bit,
            self._hasher,
            self._model_of(target.replica),
            self._counts(target),
            on_lost=lambda chain: self._on_lost(target, chain),
        )
        self._parts[target] = part
        return part

    def _counts(self, target: Target) -> UnmatchedCounts:
        return self._unmatched.setdefault(target, UnmatchedCounts())

    def _take_bit(self) -> tuple[Holders, int]:
        for holders in self._groups:
            bit = holders.take_bit()
            if bit is not None:
                return holders, bit
        holders = Holders()
        self._groups.append(holders)
        bit = holders.take_bit()
        assert bit is not None
        return holders, bit


def _by_bit(depths: Sequence[tuple[int, int]]) -> dict[int, int]:
    """The depth of each holder, from depths and the bits of all holders with it."""
    found: dict[int, int] = {}
    for depth, holders in depths:
        bits = holders
        while bits:
            found[bits & -bits] = depth
            bits &= bits - 1
    return found
