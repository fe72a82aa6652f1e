"""Remembers computed prompts, in the same prefix space and in any, for this gateway and for others.

Every prompt is hashed again from a root common to all spaces. Each block is stored under its hash combined with a key
of its space (without the epoch), with a key of its owner, and under the plain hash. The first entry answers whether the
block was computed in this space, in which epoch and by which replica; the others, in which other space, preferring the
owner's own. So another gateway needs only the hashes to store the same entries.

``LossCauses`` records what happened to replicas and to epochs of prefix spaces.
"""

from typing import NamedTuple, Protocol

import numpy as np

from gateway.core.block_chain import BlockChain
from gateway.core.bounded_cache import BoundedCache
from gateway.core.explanation import CacheEvent, CacheHistory, RequestRecord, SpaceKey
from gateway.core.ids import ModelId
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.reasons import Reason
from gateway.core.space import ResetCause
from gateway.explain.seen.block_table import BlockTable, Hashes
from gateway.explain.seen.seen_messages import SeenPublisher, decode_seen

_ENDS_KEPT = 20_000
_REPLICAS_KEPT = 10_000
"""A bound is needed where pods get new names: every roll-out brings new replicas, and the old ones never return."""

_OF_TIME = frozenset({ResetCause.IDLE_TTL, ResetCause.MAX_AGE, ResetCause.CROWDED_OUT})


class LossCauses:
    """Records cache events, and gives the reason why a computed block was lost.

    Events arrive in their order, and before the requests that followed them.
    """

    def __init__(self) -> None:
        self._restarted: BoundedCache[str, float] = BoundedCache(_REPLICAS_KEPT)
        self._left: BoundedCache[str, float] = BoundedCache(_REPLICAS_KEPT)
        self._ends: BoundedCache[str, ResetCause] = BoundedCache(_ENDS_KEPT)

    def take(self, event: CacheEvent) -> None:
        """Record an event."""
        match event.what:
            case CacheHistory.RESTARTED:
                self._restarted.put(event.name, event.at)
            case CacheHistory.LEFT:
                self._left.put(event.name, event.at)
            case CacheHistory.RETURNED:
                self._left.pop(event.name)
            case CacheHistory.LIFE_ENDED:
                self._ends.put(event.name, ResetCause(event.cause))

    def of_replica(self, replica: str, at: float) -> Reason:
        """Why no replica holds a block any more that ``replica`` computed at ``at``."""
        if replica in self._left:
            return Reason.REPLICA_LEFT
        return Reason.REPLICA_RESTARTED if (self._restarted.peek(replica) or 0.0) > at else Reason.EVICTED

    def of_epoch(self, epoch: str) -> Reason:
        """Why blocks computed in an ended epoch cannot be reused."""
        cause = self._ends.peek(epoch)
        if cause is None or cause in _OF_TIME:
            # The end of an unknown epoch was evicted for its age.
            return Reason.EXPIRED
        if cause is ResetCause.TEMPLATE_CHANGED:
            return Reason.TEMPLATE_CHANGED
        return Reason.MODEL_CHANGED if cause is ResetCause.MODEL_UPDATE else Reason.RESET


_PLACES_KEPT = 50_000

_REPORT_SECONDS = 60.0
"""Blocks computed repeatedly at the same place are reported to other gateways at most once in this time."""

_Chains = list[tuple[Hashes, int, float]]
"""Blocks, the number of their place, and the time of their computation."""


class PromptChains(Protocol):
    """Hashes prompts."""

    def root(self, model: ModelId, adapter: str, salt: str) -> int:
        """The root hash of chains."""
        ...

    def chain(self, root: int, tokens: bytes, block_size: int) -> BlockChain:
        """The chain of a prompt."""
        ...


class Seen(NamedTuple):
    """The blocks of a prompt that were computed before, with a reason each for a miss.

    Attributes:
        here: For each leading block computed in this space since its last reset: the reason if no replica holds it.
        anywhere: For each following block computed in any space: the reason why it cannot be reused.
    """

    here: tuple[Reason, ...]
    anywhere: tuple[Reason, ...]


class _SeenWhere(NamedTuple):
    life: str
    replica: str


class SeenPrompts:
    """Remembers which blocks were computed, and where.

    Args:
        chains: Hashes prompts.
        causes: Events of replicas and epochs.
        blocks: Capacity of each of two tables, at 16 bytes per block.
        publisher: Collects prompts for other gateways; None without others.
    """

    def __init__(
        self, chains: PromptChains, causes: LossCauses, blocks: int, publisher: SeenPublisher | None = None
    ) -> None:
        self._publisher = publisher
        self._chains = chains
        self._causes = causes
        self._here = BlockTable(blocks)
        self._anywhere = BlockTable(blocks)
        self._places: list[_SeenWhere] = []
        self._place_numbers: dict[_SeenWhere, int] = {}
        self._wheres: list[SpaceKey] = []
        self._where_numbers: dict[tuple[object, ...], int] = {}
        self._began_at: float | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the tables."""
        return self._here.nbytes + self._anywhere.nbytes

    def seen(self, record: RequestRecord, tokens: bytes, held_tokens: int = 0) -> Seen:
        """The blocks of a prompt that were computed before.

        Args:
            record: The request.
            tokens: The prompt's token ids, little-endian u32.
            held_tokens: Leading tokens that some replica holds, which need no lookup.
        """
        chain = self._chain(record, tokens)
        limit = chain.reusable_blocks
        hashes = np.array(chain.hashes[:limit], np.uint64)
        here: list[Reason] = []
        anywhere: list[Reason] = []
        # If a block was computed only before a reset, so were all after it.
        held = min(held_tokens // record.block_size, limit)
        if held:
            here = [Reason.EVICTED] * held
        for block in self._here.beginning(hashes[held:] ^ self._space_key(record.where)):
            place = self._places[block.place]
            if anywhere or (reason := self._why_here(place, block.at, record.life)) is None:
                anywhere.append(self._causes.of_epoch(place.life))
            else:
                here.append(reason)
        known = len(here) + len(anywhere)
        if known < limit:
            for key in self._common_keys(record.where):
                blocks = self._anywhere.beginning(hashes ^ key)[known:]
                anywhere.extend(_why_not(self._wheres[block.place], record.where) for block in blocks)
                known += len(blocks)
        return Seen(tuple(here), tuple(anywhere))

    def remember(self, record: RequestRecord, tokens: bytes) -> None:
        """Record a computed prompt, possibly with its reply.

        Args:
            record: The request.
            tokens: All computed token ids.
        """
        if len(tokens) < record.block_size * TOKEN_BYTES:
            return
        self._limit_places(1)
        hashes = np.array(self._chain(record, tokens).hashes, np.uint64)
        place, where, at = self._numbers(record.where, record.life, record.replica, record.at)
        since = at // _REPORT_SECONDS * _REPORT_SECONDS
        known = self._here.put(hashes ^ self._space_key(record.where), place, at, since)
        for key in self._common_keys(record.where):
            self._anywhere.put(hashes ^ key, where, at)
        if self._publisher is not None:
            self._publisher.add(record.where, record.life, record.replica, record.at, hashes[known:])

    def add_peer_prompts(self, data: bytes, now: float) -> None:
        """Record prompts computed for another gateway.

        Args:
            data: Message of its ``SeenPublisher``.
            now: Unix seconds; its clock may be ahead.

        Raises:
            Exception: The data is no such message; nothing is recorded.
        """
        message = decode_seen(data)
        if self._publisher is not None and message.sender == self._publisher.name:
            return
        self._limit_places(len(message.prompts))
        here: _Chains = []
        anywhere: _Chains = []
        for prompt in message.prompts:
            where, hashes = message.wheres[prompt.where], prompt.blocks()
            place, number, at = self._numbers(where, prompt.life, prompt.replica, min(prompt.at, now))
            here.append((hashes ^ self._space_key(where), place, at))
            anywhere.extend((hashes ^ key, number, at) for key in self._common_keys(where))
        self._here.put_all(here)
        self._anywhere.put_all(anywhere)

    def _chain(self, record: RequestRecord, tokens: bytes) -> BlockChain:
        root = self._chains.root(ModelId(""), "", record.where.variant)
        return self._chains.chain(root, tokens, record.block_size)

    def _numbers(self, where: SpaceKey, life: str, replica: str, at: float) -> tuple[int, int, float]:
        """Numbers of a place and of its space, and the time in seconds since the tables' start."""
        if self._began_at is None:
            self._began_at = at
        place = _SeenWhere(life, replica)
        key = _parts(where)
        number = self._where_numbers.get(key)
        if number is None:
            number = self._where_numbers[key] = len(self._wheres)
            self._wheres.append(where)
        return _number(place, self._place_numbers, self._places), number, max(at - self._began_at, 0.0)

    def _why_here(self, place: _SeenWhere, at: float, life: str) -> Reason | None:
        """Why no replica holds a block of this space; None if it was computed before a reset."""
        if place.life == life:
            return self._causes.of_replica(place.replica, at + (self._began_at or 0.0))
        reason = self._causes.of_epoch(place.life)
        return reason if reason is Reason.EXPIRED else None

    def _space_key(self, where: SpaceKey) -> np.uint64:
        """Key of a space: XOR with a block's hash gives the hash of that block in this space."""
        parts = "\0".join(map(str, _parts(where)))
        return np.uint64(self._chains.root(ModelId(where.model), where.adapter, parts))

    def _common_keys(self, where: SpaceKey) -> list[np.uint64]:
        """Keys of the owner's spaces, if it has an owner, and of all spaces."""
        common = np.uint64(0)
        return [np.uint64(self._chains.root(ModelId(""), where.owner, "")), common] if where.owner else [common]

    def _limit_places(self, prompts: int) -> None:
        """Clear everything if this many prompts could exceed the bound of places and spaces."""
        if max(len(self._places), len(self._wheres)) + prompts > _PLACES_KEPT:
            self._forget_all()

    def _forget_all(self) -> None:
        self._here.clear()
        self._anywhere.clear()
        for each in (self._places, self._place_numbers, self._wheres, self._where_numbers):
            each.clear()


def _number(place: _SeenWhere, numbers: dict[_SeenWhere, int], places: list[_SeenWhere]) -> int:
    number = numbers.get(place)
    if number is None:
        number = numbers[place] = len(places)
        places.append(place)
    return number


def _parts(where: SpaceKey) -> tuple[object, ...]:
    return tuple(getattr(where, name) for name in where.__struct_fields__)


def changed(then: SpaceKey, now: SpaceKey) -> Reason | None:
    """The difference of two spaces that changes tokens or KV cache contents; None for none."""
    if then.tokenizer != now.tokenizer:
        return Reason.TOKENIZER_CHANGED
    if then.adapter != now.adapter:
        return Reason.ADAPTER_CHANGED
    if then.model != now.model:
        return Reason.MODEL_CHANGED
    if then.template != now.template:
        return Reason.TEMPLATE_CHANGED
    return Reason.MODEL_CHANGED if then.context_limit != now.context_limit else None


def _why_not(then: SpaceKey, now: SpaceKey) -> Reason:
    """Why blocks computed in one space cannot be reused in another."""
    if (reason := changed(then, now)) is not None:
        return reason
    if then.owner != now.owner:
        return Reason.TENANT_ISOLATED
    # A block of the same space is found here only if the other table has evicted it.
    return Reason.SCOPE_ISOLATED if then != now else Reason.EVICTED
