"""The prefix index of this gateway: combines KV events, in-flight requests and predictions for each target.

While a target's KV events are complete, they decide, together with the blocks of in-flight requests. Without events, or
while their stream is broken, the prediction from dispatched requests decides; while events are rebuilt, the larger of
both. Predictions are always kept up to date, so that they can take over at any time.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from gateway.core.block_chain import BlockChain
from gateway.core.ids import ModelId, ReplicaId, Target
from gateway.core.kv_events import AllBlocksCleared, FeedState, IndexSource, KvEvent, Medium, Unmatched
from gateway.core.ports import BlockHasher, Holding, IndexState, Lease
from gateway.index.event_holdings import EventHoldings
from gateway.index.predicted import PredictedIndex, PredictedLease

# Looking up a member of an enum takes as long as several other look-ups.
_LIVE = FeedState.LIVE
_REBUILDING = FeedState.REBUILDING

_LINGER_SECONDS = 2.0
"""How long blocks of a finished request count without an event that says so. Events follow within milliseconds; this
covers a slow network and a busy gateway."""


class InflightBlocks:
    """Blocks of in-flight and just finished requests: chain hashes by target, counted per request.

    An engine can reuse a block as soon as it is scheduled; the event arrives a step later. Without these blocks a burst
    of one new prefix would be spread over the fleet, and the next turn of a fast conversation would be a miss.

    Attributes:
        blocks: For each target that has any: how many requests have each block.
        leaving: Ended requests, by the time at which their blocks do not count any more.
    """

    def __init__(self) -> None:
        self.blocks: dict[Target, dict[int, int]] = {}
        self.leaving: deque[tuple[float, Target, Sequence[int]]] = deque()

    def add(self, target: Target, hashes: Sequence[int]) -> None:
        """Add the blocks of a request."""
        if not hashes:
            return
        counts = self.blocks.setdefault(target, {})
        for block in hashes:
            counts[block] = counts.get(block, 0) + 1

    def leave(self, target: Target, hashes: Sequence[int], now: float) -> None:
        """The request has ended: its blocks count ``_LINGER_SECONDS`` longer."""
        # A gateway that only receives requests of peers never looks anything up, so expire here as well.
        self.expire(now)
        if hashes:
            self.leaving.append((now + _LINGER_SECONDS, target, hashes))

    def remove(self, target: Target, hashes: Sequence[int]) -> None:
        """Remove the blocks of a request."""
        counts = self.blocks.get(target)
        if counts is None:
            return
        for block in hashes:
            count = counts.get(block, 0)
            if count > 1:
                counts[block] = count - 1
            elif count:
                del counts[block]
        if not counts:
            del self.blocks[target]

    def expire(self, now: float) -> None:
        """Remove blocks of requests that ended long enough ago."""
        while self.leaving and self.leaving[0][0] <= now:
            _, target, hashes = self.leaving.popleft()
            self.remove(target, hashes)

    def lost(self, target: Target, block: int) -> None:
        """A KV event removed a block: forget it for all requests."""
        counts = self.blocks.get(target)
        if counts:
            counts.pop(block, None)

    def clear(self, target: Target) -> None:
        """Forget all blocks of a target."""
        self.blocks.pop(target, None)

    def extend(self, target: Target, hashes: Sequence[int], depth: int, limit: int) -> int:
        """Depth of a chain that is held up to ``depth``, continued by in-flight blocks; at most ``limit``."""
        counts = self.blocks.get(target)
        if counts:
            while depth < limit and hashes[depth] in counts:
                depth += 1
        return depth


_ALL_BUT = 0.01
"""Share of an engine's blocks that may be unaccounted for in a part that counts as complete: blocks that are not full
are in no event. Unaccounted blocks are missing from the index and never count as held."""

_NOTHING = Holding(0, 0)


class _Lease(msgspec.Struct, eq=False):
    target: Target
    held_tokens: int
    predicted: PredictedLease
    fresh: list[int] = []


class ReplicaIndex:
    """A ``PrefixIndex`` and an ``EventIndex``.

    Args:
        hasher: From an engine's tokens to chain hashes.
        model_of: The model each replica serves.
        worth: Weight of a cached token on each medium, 1 for the GPU.
        default_blocks: Capacity of a target until its metrics report it.
        speculative_ttl_seconds: How long dispatched blocks of a target without events count before they are
            known to be computed.
        on_block_size: Called when the result of ``block_size`` changes for a target.
    """

    def __init__(
        self,
        hasher: BlockHasher,
        model_of: Callable[[ReplicaId], ModelId],
        worth: Mapping[Medium, float],
        default_blocks: int,
        speculative_ttl_seconds: float,
        *,
        on_block_size: Callable[[], None] = lambda: None,
    ) -> None:
        self._fresh = InflightBlocks()
        self._events = EventHoldings(hasher, model_of, worth, self._fresh.lost, on_block_size)
        self._predicted = PredictedIndex(default_blocks, speculative_ttl_seconds)
        self._feeds: dict[Target, FeedState] = {}
        # Targets of which events are looked up.
        self._followed: dict[Target, FeedState] = {}
        self._capacity: dict[Target, int | None] = {}
        self._default_blocks = default_blocks
        self._uncached: set[Target] = set()

    def holdings(self, chains: Sequence[BlockChain], targets: Sequence[Target], now: float) -> list[Holding]:
        """See ``PrefixIndex``."""
        if len(chains) != 1:
            sums = [_NOTHING] * len(targets)
            for chain in chains:
                own = self.holdings([chain], targets, now)
                sums = [Holding(a.tokens + b.tokens, a.worth + b.worth) for a, b in zip(sums, own, strict=True)]
            return sums
        leaving, chain = self._fresh.leaving, chains[0]
        if leaving and leaving[0][0] <= now:
            self._fresh.expire(now)
        limit = chain.reusable_blocks
        if not limit:
            return [_NOTHING] * len(targets)
        hashes, block_size, trees = chain.hashes, chain.block_size, self._predicted.trees
        followed, uncached, first = self._followed, self._uncached, chain.hashes[0]
        known = self._events.depths(chain, limit, targets) if followed else ()
        holdings = []
        for number, target in enumerate(targets):
            holding, feed = _NOTHING, followed.get(target) if followed else None
            if uncached and target in uncached:
                pass
            elif feed is _LIVE:
                depth = known[number]
                # Of a prompt in flight, sliding windows keep the end alone, which is of no use for its beginning.
                if target in self._fresh.blocks and not self._events.has_groups(target):
                    depth = self._fresh.extend(target, hashes, depth, limit)
                if depth:
                    holding = self._events.holding(chain, depth, target)
            else:
                tree = trees.get(target)
                depth = tree.find(hashes, limit, now)[0] if tree is not None and first in tree.beginnings else 0
                if feed is _REBUILDING and known[number] >= depth:
                    holding = self._events.holding(chain, known[number], target)
                elif depth:
                    holding = Holding(depth * block_size, depth * block_size)
            holdings.append(holding)
        return holdings

    def begin(self, chains: Sequence[BlockChain], target: Target, now: float) -> Lease:
        """See ``PrefixIndex``."""
        feed = self._followed.get(target)
        # Computed before the prediction includes the request's own blocks.
        held = self.holdings(chains, [target], now)[0].tokens if feed is _REBUILDING else 0
        predicted = self._predicted.begin(chains, target, now)
        if target in self._uncached:
            return _Lease(target, 0, predicted)
        if feed is not _LIVE:
            return _Lease(target, max(held, predicted.held_tokens), predicted)
        fresh: list[int] = []
        held = 0
        for chain in chains:
            limit = chain.reusable_blocks
            (depth,) = self._events.depths(chain, limit, [target])
            inflight = (
                depth if self._events.has_groups(target) else self._fresh.extend(target, chain.hashes, depth, limit)
            )
            held += inflight * chain.block_size
            fresh += chain.hashes[depth:]
        self._fresh.add(target, fresh)
        return _Lease(target, held, predicted, fresh)

    def computed(self, lease: Lease) -> None:
        """See ``PrefixIndex``."""
        assert isinstance(lease, _Lease)
        self._predicted.computed(lease.predicted)

    def complete(self, lease: Lease, cached_tokens: int | None, filled: Iterable[BlockChain], now: float) -> None:
        """See ``PrefixIndex``."""
        assert isinstance(lease, _Lease)
        filled = list(filled)
        self._predicted.complete(lease.predicted, cached_tokens, filled)
        if self._followed.get(lease.target) is _LIVE:
            generated = [
                block
                for chain in filled
                for prompt in lease.predicted.chains[:1]
                for block in chain.hashes[len(prompt.hashes) :]
            ]
            self._fresh.add(lease.target, generated)
            lease.fresh += generated
        if lease.fresh or self._fresh.leaving:
            self._fresh.leave(lease.target, lease.fresh, now)

    def abandon(self, lease: Lease) -> None:
        """See ``PrefixIndex``."""
        assert isinstance(lease, _Lease)
        self._predicted.abandon(lease.predicted)
        self._fresh.remove(lease.target, lease.fresh)

    def set_capacity(self, target: Target, blocks: int | None, *, caching: bool = True) -> None:
        """See ``PrefixIndex``."""
        if caching:
            self._uncached.discard(target)
        else:
            self._uncached.add(target)
        self._capacity[target] = blocks
        self._predicted.set_capacity(target, self._default_blocks if blocks is None else blocks)

    def remove(self, target: Target) -> None:
        """See ``PrefixIndex``. Blocks known from events stay until events remove them."""
        self._predicted.remove(target)
        if self._feeds.get(target, FeedState.OFF) is FeedState.OFF:
            self.clear(target)

    def forget(self, replica: ReplicaId) -> None:
        """A replica has left: forget all of it. Leases of requests still running there have no effect then."""
        for target in [target for target in {*self._feeds, *self._capacity} if target.replica == replica]:
            self.clear(target)
            self._events.forget(target)
            self._feeds.pop(target, None)
            self._followed.pop(target, None)
            self._capacity.pop(target, None)
            self._uncached.discard(target)
        self._predicted.forget(replica)

    def block_size(self, target: Target) -> int | None:
        """See ``PrefixIndex``."""
        part = self._events.part(target)
        return None if part is None else part.block_size

    def state(self, target: Target) -> IndexState:
        """See ``PrefixIndex``."""
        feed = self._followed.get(target)
        part = self._events.part(target)
        counted = feed is not None
        source = IndexSource.EVENTS if feed is FeedState.LIVE else IndexSource.PREDICTED
        known = part.blocks.held if counted and part else 0
        return IndexState(
            source=source,
            blocks=known if feed is FeedState.LIVE else max(known, self._predicted.blocks(target)),
            digest=(part.blocks.digest if part else 0) if counted else None,
        )

    def apply(self, target: Target, event: KvEvent) -> None:
        """See ``EventIndex``."""
        if isinstance(event, AllBlocksCleared):
            self.clear(target)
            self._predicted.remove(target)
        else:
            self._events.apply(target, event)
            if (target in self._followed) is bool(self._events.problem(target)):
                self._follow(target)

    def problem(self, target: Target) -> str:
        """See ``EventIndex``."""
        return self._events.problem(target)

    def advance(self, target: Target) -> bool:
        """See ``EventIndex``."""
        return self._events.advance(target)

    def clear(self, target: Target) -> None:
        """See ``EventIndex``."""
        self._events.clear(target)
        self._fresh.clear(target)
        self._follow(target)

    def set_feed(self, target: Target, state: FeedState) -> None:
        """See ``EventIndex``."""
        self._feeds[target] = state
        self._follow(target)

    def _follow(self, target: Target) -> None:
        """Look events up, or do not any more."""
        state = self._feeds.get(target)
        if state in (FeedState.LIVE, FeedState.REBUILDING) and not self._events.problem(target):
            self._followed[target] = state
        else:
            self._followed.pop(target, None)

    def is_complete(self, target: Target) -> bool:
        """See ``EventIndex``."""
        part, capacity = self._events.part(target), self._capacity.get(target)
        if part is None or not capacity or part.waiting:
            return False
        return part.accounted_blocks >= capacity * (1 - _ALL_BUT)

    def is_impossible(self, target: Target) -> bool:
        """See ``EventIndex``."""
        part, capacity = self._events.part(target), self._capacity.get(target)
        return part is not None and capacity is not None and part.accounted_blocks > capacity

    def unmatched(self, target: Target) -> Unmatched:
        """See ``EventIndex``."""
        return self._events.unmatched(target)

    def is_contradicted(self, target: Target, blocks: int) -> bool:
        """See ``EventIndex``."""
        part, capacity = self._events.part(target), self._capacity.get(target) or 0
        return blocks > capacity * _ALL_BUT * (part.names_per_block if part else 1)

    def tidy(self) -> None:
        """See ``EventIndex``."""
        self._events.tidy()
