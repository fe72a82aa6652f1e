"""What was computed before: in the same prefix space, and in any; for this gateway, and for those that tell it.

Every prompt is hashed again, behind a root that all spaces have in common. Its blocks are remembered by these hashes
together with what stands for its space without the life, with what stands for its owner, and by themselves. The first
tell what was computed here, in which life and by which replica; the others where else, and an owner's own is told
before that of others. So the hashes alone are all that another gateway needs to know to remember the same.

What happened to replicas, and to the lives of prefix spaces.
"""

from typing import NamedTuple, Protocol

import numpy as np

from gateway.core.block_chain import BlockChain
from gateway.core.explanation import CacheEvent, CacheHistory, RequestRecord, SpaceKey
from gateway.core.ids import ModelId
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.reasons import Reason
from gateway.core.space import ResetCause
from gateway.explain.seen.block_table import BlockTable, Hashes
from gateway.explain.seen.seen_messages import SeenPublisher, read_told

_ENDS_KEPT = 20_000
_REPLICAS_KEPT = 10_000
"""Where pods get new names, every roll-out brings new replicas, and those before them never come back."""

_OF_TIME = frozenset({ResetCause.IDLE_TTL, ResetCause.MAX_AGE, ResetCause.CROWDED_OUT})


class LossCauses:
    """Takes what happened, and says what became of a block that was computed before.

    Events come in the order in which they happened, and before the requests that came after them.
    """

    def __init__(self) -> None:
        self._restarted: dict[str, float] = {}
        self._left: dict[str, float] = {}
        self._ends: dict[str, ResetCause] = {}

    def take(self, event: CacheEvent) -> None:
        """Something happened."""
        match event.what:
            case CacheHistory.RESTARTED:
                _keep(self._restarted, event)
            case CacheHistory.LEFT:
                _keep(self._left, event)
            case CacheHistory.RETURNED:
                self._left.pop(event.name, None)
            case CacheHistory.LIFE_ENDED:
                if len(self._ends) >= _ENDS_KEPT:
                    del self._ends[next(iter(self._ends))]
                self._ends[event.name] = ResetCause(event.cause)

    def of_replica(self, replica: str, at: float) -> Reason:
        """Why a block that a replica computed at a time is held by nobody any more."""
        if replica in self._left:
            return Reason.REPLICA_LEFT
        return Reason.REPLICA_RESTARTED if self._restarted.get(replica, 0.0) > at else Reason.EVICTED

    def of_life(self, life: str) -> Reason:
        """Why what was computed in a life that is over cannot be reached any more."""
        cause = self._ends.get(life)
        if cause is None or cause in _OF_TIME:
            # One that is not known was forgotten for its age.
            return Reason.EXPIRED
        if cause is ResetCause.TEMPLATE_CHANGED:
            return Reason.TEMPLATE_CHANGED
        return Reason.MODEL_CHANGED if cause is ResetCause.MODEL_UPDATE else Reason.RESET


def _keep(times: dict[str, float], event: CacheEvent) -> None:
    """Note when it happened to a replica; the one to which it happened longest ago is forgotten."""
    times.pop(event.name, None)
    if len(times) >= _REPLICAS_KEPT:
        del times[next(iter(times))]
    times[event.name] = event.at


_PLACES_KEPT = 50_000

_TOLD_SECONDS = 60.0
"""What is computed again and again at the same place is told once in such a time: others know it is there."""

_Pieces = list[tuple[Hashes, int, float]]
"""Blocks, the number of their place, and when they were computed."""


class PromptChains(Protocol):
    """Hashes prompts."""

    def root(self, model: ModelId, adapter: str, salt: str) -> int:
        """Where chains begin."""
        ...

    def chain(self, root: int, tokens: bytes, block_size: int) -> BlockChain:
        """The chain of a prompt."""
        ...


class Seen(NamedTuple):
    """How much of a prompt was computed before, and why it cannot be had any more, block by block.

    Attributes:
        here: For each block from the first on that was computed in this space, and not before a reset: why nobody
            holds it, should nobody hold it.
        anywhere: For each block behind those that was computed in any space: why that does not help.
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
        fates: Knows what became of replicas and lives.
        blocks: How many blocks are remembered, in each of two tables of 16 bytes a block.
        teller: Gathers what other gateways are told; None if there are none.
    """

    def __init__(
        self, chains: PromptChains, fates: LossCauses, blocks: int, teller: SeenPublisher | None = None
    ) -> None:
        self._teller = teller
        self._chains = chains
        self._fates = fates
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

    def seen(self, finished: RequestRecord, tokens: bytes, held_tokens: int = 0) -> Seen:
        """What was computed before of one prompt of a request.

        Args:
            finished: The request.
            tokens: The prompt's token ids, little-endian u32.
            held_tokens: How many from the first on are held by somebody, so that nobody asks what became of them.
        """
        chain = self._chain(finished, tokens)
        limit = chain.reusable_blocks
        hashes = np.array(chain.hashes[:limit], np.uint64)
        here: list[Reason] = []
        anywhere: list[Reason] = []
        # Once a block was reached only before a reset, those behind it were, too, or are not reached at all.
        held = min(held_tokens // finished.block_size, limit)
        if held:
            here = [Reason.EVICTED] * held
        for record in self._here.beginning(hashes[held:] ^ self._space_key(finished.where)):
            place = self._places[record.place]
            if anywhere or (reason := self._why_here(place, record.at, finished.life)) is None:
                anywhere.append(self._fates.of_life(place.life))
            else:
                here.append(reason)
        known = len(here) + len(anywhere)
        if known < limit:
            for key in self._common_keys(finished.where):
                records = self._anywhere.beginning(hashes ^ key)[known:]
                anywhere.extend(_why_not(self._wheres[record.place], finished.where) for record in records)
                known += len(records)
        return Seen(tuple(here), tuple(anywhere))

    def remember(self, finished: RequestRecord, tokens: bytes) -> None:
        """A prompt, perhaps with what was generated behind it, was computed.

        Args:
            finished: The request.
            tokens: All token ids that were computed.
        """
        if len(tokens) < finished.block_size * TOKEN_BYTES:
            return
        self._make_room(1)
        hashes = np.array(self._chain(finished, tokens).hashes, np.uint64)
        place, where, at = self._numbers(finished.where, finished.life, finished.replica, finished.at)
        since = at // _TOLD_SECONDS * _TOLD_SECONDS
        known = self._here.put(hashes ^ self._space_key(finished.where), place, at, since)
        for key in self._common_keys(finished.where):
            self._anywhere.put(hashes ^ key, where, at)
        if self._teller is not None:
            self._teller.add(finished.where, finished.life, finished.replica, finished.at, hashes[known:])

    def hear(self, data: bytes, now: float) -> None:
        """Remember what another gateway tells that was computed for it.

        Args:
            data: What its ``SeenPublisher`` gave.
            now: Unix seconds; its clock may be ahead.

        Raises:
            Exception: it is something else; nothing is remembered of it.
        """
        told = read_told(data)
        if self._teller is not None and told.teller == self._teller.name:
            return
        self._make_room(len(told.prompts))
        here: _Pieces = []
        anywhere: _Pieces = []
        for prompt in told.prompts:
            where, hashes = told.wheres[prompt.where], prompt.blocks()
            place, number, at = self._numbers(where, prompt.life, prompt.replica, min(prompt.at, now))
            here.append((hashes ^ self._space_key(where), place, at))
            anywhere.extend((hashes ^ key, number, at) for key in self._common_keys(where))
        self._here.put_all(here)
        self._anywhere.put_all(anywhere)

    def _chain(self, finished: RequestRecord, tokens: bytes) -> BlockChain:
        root = self._chains.root(ModelId(""), "", finished.where.variant)
        return self._chains.chain(root, tokens, finished.block_size)

    def _numbers(self, where: SpaceKey, life: str, replica: str, at: float) -> tuple[int, int, float]:
        """Of a place and of its space, and how long after the tables' beginning it was."""
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
        """Why nobody holds a block of this space; None if that was before a reset."""
        if place.life == life:
            return self._fates.of_replica(place.replica, at + (self._began_at or 0.0))
        reason = self._fates.of_life(place.life)
        return reason if reason is Reason.EXPIRED else None

    def _space_key(self, where: SpaceKey) -> np.uint64:
        """Makes of a block's hash that of a block in this space; all its bits are as good as random."""
        parts = "\0".join(map(str, _parts(where)))
        return np.uint64(self._chains.root(ModelId(where.model), where.adapter, parts))

    def _common_keys(self, where: SpaceKey) -> list[np.uint64]:
        """As before, of the owner's spaces, and of everybody's; one alone where nobody is told apart."""
        everybodys = np.uint64(0)
        return [np.uint64(self._chains.root(ModelId(""), where.owner, "")), everybodys] if where.owner else [everybodys]

    def _make_room(self, prompts: int) -> None:
        """Have room for the places and spaces of so many prompts."""
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
    """By what two spaces differ, as far as it makes for other tokens or other keys and values; None if by nothing."""
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
    """Why what was computed in some space does not help in another one."""
    if (reason := changed(then, now)) is not None:
        return reason
    if then.owner != now.owner:
        return Reason.TENANT_ISOLATED
    # Of the same space it is known only where the other table has forgotten it.
    return Reason.SCOPE_ISOLATED if then != now else Reason.EVICTED
