"""Remembers computed prompts, in the same prefix space and in any, for this gateway and for others.

Every prompt is hashed again from a root common to all spaces. Its blocks are stored under a key of its space (without
the epoch), under a key of its owner, and under a key of its model. The first answers whether a block was computed in
this space, in which epoch and by which replica; the others, in which other space of the same model, preferring the
owner's own. So another gateway needs only the hashes to store the same.

What another model computed counts as never computed: a model's first request is no loss.

``LossCauses`` records what happened to replicas and to epochs of prefix spaces.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from gateway.core.application import prompt_id
from gateway.core.bounded_cache import BoundedCache
from gateway.core.explanation import CacheEvent, CacheHistory, RequestRecord, SpaceKey
from gateway.core.ids import ModelId
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.reasons import Reason
from gateway.core.space import ResetCause
from gateway.explain.seen.block_tree import NUMBERS, BlockTree, note, noted_at
from gateway.explain.seen.prompt_hashes import PromptHashes, space_name
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
        if cause is ResetCause.PROMPT_VERSION:
            return Reason.PROMPT_VERSION_CHANGED
        return Reason.MODEL_UPDATED if cause is ResetCause.MODEL_UPDATE else Reason.RESET


_PLACES_KEPT = 50_000
_SPACES_KEPT = 1000

_BLOCK_BYTES = 16

_REPORT_SECONDS = 60.0
"""Blocks computed repeatedly at the same place are reported to other gateways at most once in this time."""


class Lost(NamedTuple):
    """Successive blocks with the same reason for a miss."""

    reason: Reason
    blocks: int


class Seen(NamedTuple):
    """The blocks of a prompt that were computed before, with the reasons for a miss.

    Attributes:
        here: The leading blocks computed in this space since its last reset: the reasons if no replica holds them.
        anywhere: The following blocks computed in any space: the reasons why they cannot be reused.
        here_blocks: Number of blocks in ``here``.
        blocks: Number of all blocks.
    """

    here: tuple[Lost, ...]
    anywhere: tuple[Lost, ...]
    here_blocks: int
    blocks: int


class _SeenWhere(NamedTuple):
    life: str
    replica: str


class _Keys(NamedTuple):
    """Keys under which the blocks of a space are stored.

    Attributes:
        here: That of the space.
        anywhere: That of the owner's spaces of the model, if the space has an owner; and that of all spaces of the
            model.
    """

    here: int
    anywhere: tuple[int, ...]


class SeenPrompts:
    """Remembers which blocks were computed, and where.

    Args:
        hashes: Hashes prompts.
        causes: Events of replicas and epochs.
        blocks: Capacity for the blocks of each space, and for those of any, at 16 bytes per block: neither drives out
            the other.
        publisher: Collects prompts for other gateways; None without others.
    """

    def __init__(
        self, hashes: PromptHashes, causes: LossCauses, blocks: int, publisher: SeenPublisher | None = None
    ) -> None:
        self._publisher = publisher
        self._hashes = hashes
        self._causes = causes
        # Other gateways omit the beginning of a prompt that they reported a moment ago.
        whole = publisher is None
        self._here = BlockTree(_BLOCK_BYTES * blocks, whole_chains=whole)
        self._anywhere = BlockTree(_BLOCK_BYTES * blocks, whole_chains=whole)
        self._places: list[_SeenWhere] = []
        self._place_numbers: dict[_SeenWhere, int] = {}
        self._wheres: list[SpaceKey] = []
        self._where_numbers: dict[SpaceKey, int] = {}
        self._space_keys: BoundedCache[SpaceKey, _Keys] = BoundedCache(_SPACES_KEPT)
        self._began_at: float | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the blocks."""
        return self._here.nbytes + self._anywhere.nbytes

    def seen(self, record: RequestRecord, tokens: bytes, held_tokens: int = 0) -> Seen:
        """The blocks of a prompt that were computed before.

        Args:
            record: The request.
            tokens: The prompt's token ids, little-endian u32.
            held_tokens: Leading tokens that some replica holds, which need no lookup.
        """
        own_tokens = len(tokens) // TOKEN_BYTES
        # Engines always compute the last token.
        limit = max(own_tokens - 1, 0) // record.block_size
        held = min(held_tokens // record.block_size, limit)
        here = [Lost(Reason.EVICTED, held)] if held else []
        anywhere: list[Lost] = []
        known = known_here = held
        if held < limit:
            keys = self._keys(record.where)
            hashes = self._hashes.of(record, tokens)
            for noted, blocks in self._here.notes(keys.here, hashes, held, limit):
                place = self._places[noted & NUMBERS]
                # If a block was computed only before a reset, so were all after it.
                if anywhere or (reason := self._why_here(place, noted_at(noted), record.life)) is None:
                    anywhere.append(Lost(self._causes.of_epoch(place.life), blocks))
                else:
                    here.append(Lost(reason, blocks))
                    known_here += blocks
                known += blocks
            for key in keys.anywhere:
                if known < limit:
                    for noted, blocks in _behind(self._anywhere.notes(key, hashes, 0, limit), known):
                        anywhere.append(Lost(_why_not(self._wheres[noted & NUMBERS], record.where), blocks))
                        known += blocks
        return Seen(tuple(here), tuple(anywhere), known_here, known)

    def remember(self, record: RequestRecord, tokens: bytes, reply: bytes = b"") -> None:
        """Record a computed prompt, possibly with its reply.

        Args:
            record: The request.
            tokens: Token ids of the prompt.
            reply: Computed token ids of the reply.
        """
        if len(tokens) + len(reply) < record.block_size * TOKEN_BYTES:
            return
        self._limit_places(1)
        hashes = self._hashes.of(record, tokens, reply)
        place, where, at = self._numbers(record.where, record.life, record.replica, record.at)
        keys = self._keys(record.where)
        here, anywhere = note(at, place), note(at, where)
        before = self._here.write(keys.here, hashes, lambda _: here)
        for key in keys.anywhere:
            self._anywhere.write(key, hashes, lambda _: anywhere)
        if self._publisher is not None:
            reported = _reported(before, place, note(at // _REPORT_SECONDS * _REPORT_SECONDS, 0))
            self._publisher.add(record.where, record.life, record.replica, record.at, hashes[reported:])

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
        prompts = [(message.wheres[prompt.where], prompt.blocks(), prompt) for prompt in message.prompts]
        for where, hashes, prompt in prompts:
            place, number, at = self._numbers(where, prompt.life, prompt.replica, min(prompt.at, now))
            keys = self._keys(where)
            # It may be reported late: what is newer stays.
            here, anywhere = partial(max, note(at, place)), partial(max, note(at, number))
            self._here.write(keys.here, hashes, here)
            for key in keys.anywhere:
                self._anywhere.write(key, hashes, anywhere)

    def _numbers(self, where: SpaceKey, life: str, replica: str, at: float) -> tuple[int, int, float]:
        """Numbers of a place and of its space, and the time in seconds since the tables' start."""
        if self._began_at is None:
            self._began_at = at
        place = _SeenWhere(life, replica)
        number = self._where_numbers.get(where)
        if number is None:
            number = self._where_numbers[where] = len(self._wheres)
            self._wheres.append(where)
        return _number(place, self._place_numbers, self._places), number, max(at - self._began_at, 0.0)

    def _why_here(self, place: _SeenWhere, at: float, life: str) -> Reason | None:
        """Why no replica holds a block of this space; None if it was computed before a reset."""
        if place.life == life:
            return self._causes.of_replica(place.replica, at + (self._began_at or 0.0))
        reason = self._causes.of_epoch(place.life)
        return reason if reason is Reason.EXPIRED else None

    def _keys(self, where: SpaceKey) -> _Keys:
        keys = self._space_keys.get(where)
        if keys is None:
            root, model = self._hashes.root, ModelId(where.model)
            of_owner = (root(model, where.owner, ""),) if where.owner else ()
            keys = _Keys(root(model, where.adapter, space_name(where)), (*of_owner, root(model, "", "")))
            self._space_keys.put(where, keys)
        return keys

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


def _reported(before: list[tuple[int, int]], place: int, since: int) -> int:
    """Number of blocks from the first on that were computed at a place, not before a time."""
    reported = 0
    for noted, blocks in before:
        if noted < since or noted & NUMBERS != place:
            break
        reported += blocks
    return reported


def _behind(found: list[tuple[int, int]], known: int) -> Iterator[tuple[int, int]]:
    """The runs without the first ``known`` blocks."""
    for noted, blocks in found:
        if blocks > known:
            yield noted, blocks - known
        known = max(known - blocks, 0)


def changed(then: SpaceKey, now: SpaceKey) -> Reason | None:
    """The difference of two spaces that changes tokens or KV cache contents; None for none."""
    if then.adapter != now.adapter:
        return Reason.ADAPTER_CHANGED
    if then.model != now.model:
        # Another model has another tokenizer, template and context limit: these follow from the choice.
        return Reason.MODEL_CHANGED
    if then.tokenizer != now.tokenizer:
        return Reason.TOKENIZER_CHANGED
    if then.template != now.template:
        return Reason.TEMPLATE_CHANGED
    return Reason.MODEL_UPDATED if then.context_limit != now.context_limit else None


def of_other_version(then: SpaceKey, now: SpaceKey) -> bool:
    """Whether two spaces are of one application, and of different versions of its prompt."""
    return bool(now.prompt) and then.prompt != now.prompt and prompt_id(then.prompt) == prompt_id(now.prompt)


def _why_not(then: SpaceKey, now: SpaceKey) -> Reason:
    """Why blocks computed in one space cannot be reused in another."""
    if (reason := changed(then, now)) is not None:
        return reason
    if then.owner != now.owner:
        return Reason.TENANT_ISOLATED
    if of_other_version(then, now):
        return Reason.PROMPT_VERSION_CHANGED
    # A block of the same space is found here only if the other table has evicted it.
    return Reason.SCOPE_ISOLATED if then != now else Reason.EVICTED
