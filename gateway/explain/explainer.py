"""Explains requests: divides the prompt tokens of each into hits and missed tokens with reasons. Does no I/O.

Lengths are in the gateway's tokens until they become rungs. If the engine counts differently (no tokenizer available,
another template), they are scaled to the engine's count.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.canon.document_places import DocumentPlace
from gateway.core.bounded_cache import BoundedCache
from gateway.core.client_places import ClientPlaces
from gateway.core.diagnosis import NOT_FOUND, UNAVAILABLE, PromptDiagnosis
from gateway.core.experiment_group import HeldOut
from gateway.core.explanation import (
    Attribution,
    CacheEvent,
    Explanation,
    ReferenceShown,
    ReplicaPrefix,
    RequestRecord,
    VaryingSlot,
)
from gateway.core.ids import requests_named
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.reasons import REASONS, Reason, Rung
from gateway.core.text_memo import forget_texts
from gateway.explain.answered_differences import AnsweredDifferences
from gateway.explain.bodies import Bodies
from gateway.explain.comparison import Compared, compare, diagnosed
from gateway.explain.diff.learned import SlotTurns
from gateway.explain.ladder import RUNGS, Ladder
from gateway.explain.reference import REPLIES, Families, KeptRequest, ReferenceMatch, References
from gateway.explain.seen import LossCauses, Lost, PromptHashes, Seen, SeenPrompts, SeenPublisher
from gateway.explain.seen.seen_prompts import changed

_EXCLUDED = {
    "": Reason.LOAD_BALANCED,
    "failed": Reason.FAILOVER,
    "unavailable": Reason.REPLICA_UNAVAILABLE,
    "pinned": Reason.PINNED,
}

_SENT_ONCE = 32
"""Requests like no other that are counted for their client families when these are asked for."""

_FORGETS_PER_TTL = 60

_NAMED = 10_000
"""Requests that clients can name, also those whose texts are not kept any more."""


class Explainer:
    """Explains requests in the order of their replies.

    Args:
        hashes: Hashes prompts.
        references: Earlier prompts to compare with.
        families: Counts the leading messages of client families.
        seen_blocks: Capacity of the memory of computed blocks.
        publisher: Collects computed prompts for other gateways; None without others.
        bodies: Parses bodies.
    """

    def __init__(
        self,
        hashes: PromptHashes,
        references: References,
        families: Families,
        seen_blocks: int,
        publisher: SeenPublisher | None = None,
        *,
        bodies: Bodies | None = None,
    ) -> None:
        self._bodies = bodies or Bodies()
        self._causes = LossCauses()
        self._hashes = hashes
        self._memory = SeenPrompts(hashes, self._causes, seen_blocks, publisher)
        self._references = references
        self._families = families
        self._numbers: BoundedCache[tuple[str, str], int] = BoundedCache(_NAMED)
        self._variants: BoundedCache[int, int] = BoundedCache(_NAMED)
        self._sent_once: dict[int, bool] = {}
        self._turns = SlotTurns()
        self._forgot_at = 0.0
        self._places: Sequence[DocumentPlace] = ()
        self._answered = AnsweredDifferences()

    def declare_documents(self, places: Sequence[DocumentPlace]) -> None:
        """Use the operator's declarations of documents from now on."""
        self._places = places
        self._answered.clear()

    def record_event(self, event: CacheEvent) -> None:
        """Record a cache event that followed all requests so far."""
        self._causes.take(event)

    def add_peer_prompts(self, data: bytes, now: float) -> None:
        """Record prompts computed for another gateway; ``data`` is from its ``SeenPublisher``, ``now`` Unix seconds.

        Raises:
            Exception: The data is no such message; nothing is recorded.
        """
        self._memory.add_peer_prompts(data, now)

    def expire(self, now: float) -> None:
        """Drop requests older than the TTL; ``now`` is Unix seconds."""
        self._references.expire(now)
        self._forget_texts(now)

    def forget_session(self, tenant: str, session: str) -> None:
        """Compare no request with those of a session any more."""
        self._references.forget_session(tenant, session)
        self._forget_texts(self._forgot_at, is_due=True)

    def explain(self, record: RequestRecord) -> Explanation:
        """Explains a request, and keeps it for comparison with later ones."""
        self._numbers.put((record.tenant, record.request_id), -1)
        if not record.parts or record.block_size < 1:
            return _counted(record)
        self._forget_texts(record.at)
        kept = self._kept(record)
        held = max((holder.held_tokens for holder in record.holders), default=0)
        if len(record.parts) > 1 or record.own_tokens != record.prompt_tokens:
            held = 0
        seen = [self._memory.seen(record, part, held) for part in record.parts]
        found = self._references.find(kept, record.at)
        explanation, slot = self._explained(record, kept, seen, found)
        turn_before = found.reference if found and found.same_conversation else None
        conversation = record.session or (turn_before.conversation if turn_before else record.request_id)
        if record.held_out is not HeldOut.SALTED:
            self._remember(record, msgspec.structs.replace(kept, conversation=conversation), found)
        before = turn_before.request_id if turn_before else None
        slot = self._turns.take(record.tenant, record.request_id, before, slot)
        return msgspec.structs.replace(explanation, slot=slot, conversation=conversation)

    def take_untried(self, tenant: str, request_id: str) -> RequestRecord | None:
        """A request that is kept for comparison; None if there is none, and from the second time on."""
        number = self._numbers.peek((tenant, request_id))
        return None if number is None else self._references.take_untried(number)

    def diagnose(self, record: RequestRecord, named: str, client: ClientPlaces) -> PromptDiagnosis:
        """Compares a request that is about to be computed with an earlier one, and remembers nothing of it."""
        numbers = [self._numbers.peek((record.tenant, each)) for each in requests_named(named)]
        if (number := next((each for each in numbers if each is not None), None)) is None:
            return NOT_FOUND
        if self._bodies.text(record.endpoint, record.body) is None or len(record.parts) != 1 or record.block_size < 1:
            return UNAVAILABLE
        kept = self._kept(record)
        found = self._references.numbered(number, kept)
        if found is None or found.reference.where.variant != record.where.variant:
            return UNAVAILABLE
        held = max((holder.held_tokens for holder in record.holders), default=0)
        seen = self._memory.seen(record, record.parts[0], held)
        explanation, _ = self._explained(record, kept, [seen], found)
        return diagnosed(record, kept, found, explanation, client=client, places=self._places)

    def repeat(self, record: RequestRecord, earlier: RequestRecord) -> None:
        """Take note of a request with the prompt of an explained one: it can be named and counted as well."""
        number = self._numbers.peek((earlier.tenant, earlier.request_id))
        self._numbers.put((record.tenant, record.request_id), -1 if number is None else number)
        variant = None if number is None else self._variants.peek(number)
        if variant is not None:
            self._families.count(record.tenant, record.model, record.source, variant, record.at)

    def families_shown(self, now: float, model: str | None = None, tenant: str | None = None) -> list[dict[str, Any]]:
        """As ``Families.shown``, of all requests but those like no other that were sent long ago."""
        for number, tools_first in self._sent_once.items():
            self._note(number, tools_first=tools_first)
        self._sent_once.clear()
        return self._families.shown(now, model, tenant)

    def _count(self, number: int, record: RequestRecord, found: ReferenceMatch | None) -> None:
        """Count a request for its client family, but only later if it is like no other: reading the leading messages
        of every prompt would take longer than all else, and what is sent once is typical of no family."""
        if found is None:
            self._sent_once[number] = record.tools_first
            if len(self._sent_once) > _SENT_ONCE:
                del self._sent_once[next(iter(self._sent_once))]
            return
        before = found.number
        if self._variants.peek(before) is None:
            self._sent_once.pop(before, None)
            self._note(before, tools_first=record.tools_first)
        variant = self._variants.peek(before) if found.is_turn else None
        # A turn that begins with the whole one before has its leading messages.
        if variant is not None and self._families.count(record.tenant, record.model, record.source, variant, record.at):
            self._variants.put(number, variant)
        else:
            self._note(number, tools_first=record.tools_first)

    def _note(self, number: int, *, tools_first: bool) -> None:
        kept = self._references.kept(number)
        if kept is not None:
            self._variants.put(number, self._families.note(kept, kept.at, tools_first=tools_first))

    def _explained(
        self, record: RequestRecord, kept: KeptRequest, seen: Sequence[Seen], found: ReferenceMatch | None
    ) -> tuple[Explanation, VaryingSlot | None]:
        """The explanation of a request, and where a value that differs is found."""
        size = record.block_size
        own = len(kept.ids) // TOKEN_BYTES
        lengths = [len(part) // TOKEN_BYTES for part in record.parts]
        scale = _scale(record)
        start = here = sum(part.here_blocks for part in seen) * size
        other = sum(part.blocks for part in seen) * size
        ladder = _begun(record, seen_tokens=round(here * scale))
        known = max(other, round(ladder.at / scale))
        compared = compare(record, kept, found, known, answered=self._answered, places=self._places)
        otherwise = Reason.RESET
        equal = compared.equal if compared else 0
        if compared is not None and len(lengths) == 1:
            # The reference was computed as well, even if its blocks are remembered no more.
            whole = max(min(equal, own - 1), 0) // size * size
            if here == other and compared.found.reference.where == record.where:
                here = max(here, whole)
            other = max(other, whole)
            otherwise = changed(compared.found.reference.where, record.where) or otherwise
        ladder.climb_by(round(here * scale), _ends([part.here for part in seen], size, scale, Reason.EVICTED))
        elsewhere = _ends([part.anywhere for part in seen], size, scale, otherwise, start)
        ladder.climb_by(round(other * scale), elsewhere)
        behind = compared.behind if compared else 0
        if all(length < size for length in lengths):
            ladder.climb(ladder.prompt_tokens, Reason.TOO_SHORT)
        elif len(lengths) == 1:
            rounded = compared.rounded if compared else 0
            ladder.climb(round((max(other, equal) + rounded) * scale), Reason.BLOCK_BOUNDARY)
        else:
            rounded = min(_ends_of_known(lengths, seen, size), behind)
            ladder.climb(ladder.at + round(rounded * scale), Reason.BLOCK_BOUNDARY)
            behind -= rounded
        reason = compared.difference.reason if compared and compared.difference else Reason.UNCLASSIFIED
        dropped = ladder.at + round(compared.dropped * scale) if compared else 0
        ladder.climb_by(ladder.at + round(behind * scale), [(dropped, Reason.TEMPLATE_DROPPED), (0, reason)])
        is_new = compared is None and not other
        ladder.climb(ladder.prompt_tokens, Reason.FIRST_SEEN if is_new else Reason.NEW_CONTENT)
        explanation = _explanation(record, ladder, compared, turn=record.turn, was_skipped=False)
        return explanation, compared.slot if compared is not None and compared.behind else None

    def _kept(self, record: RequestRecord) -> KeptRequest:
        is_single = len(record.parts) == 1
        ids = record.parts[0] if is_single else b"".join(record.parts)
        replies = record.replies if is_single else ()
        chains = [self._hashes.of(record, ids, each.ids) for each in replies[:REPLIES] if each.ids]
        return KeptRequest(
            request_id=record.request_id,
            at=record.at,
            tenant=record.tenant,
            model=record.model,
            source=record.source,
            session=record.session if record.identity.is_exact else "",
            where=record.where,
            endpoint=record.endpoint,
            body=record.body,
            ids=ids,
            bodies=self._bodies,
            chains=tuple(chains) or (self._hashes.of(record, ids),),
            block_size=record.block_size,
            opening=record.opening,
            turn=record.turn,
            replies=replies,
            agent=record.identity.agent,
            record=_to_be_tried(record) if is_single else None,
        )

    def _forget_texts(self, now: float, *, is_due: bool = False) -> None:
        """Drop what is remembered of texts besides the references, at times, or now.

        A text is read late, and so may stay for a part of the TTL longer than its request.
        """
        if is_due or now - self._forgot_at >= self._references.ttl_seconds / _FORGETS_PER_TTL:
            self._forgot_at = now
            self._bodies.forget()
            self._references.forget_readings()
            self._families.forget_texts()
            self._answered.clear()
            forget_texts()

    def _remember(self, record: RequestRecord, kept: KeptRequest, found: ReferenceMatch | None) -> None:
        replies = [reply.ids for reply in record.replies if reply.ids] if len(record.parts) == 1 else []
        for ids in replies:
            self._memory.remember(record, record.parts[0], ids)
        for part in () if replies else record.parts:
            self._memory.remember(record, part)
        if record.is_reported:
            number = self._references.keep(kept, record.at)
            self._numbers.put((record.tenant, record.request_id), number)
            if number >= 0:
                self._count(number, record, found)


def _counted(record: RequestRecord) -> Explanation:
    """The explanation of a request without its text: all tokens above the predicted rungs are unclassified."""
    ladder = _begun(record, seen_tokens=0)
    while len(ladder.rungs) < len(RUNGS) - 1:
        ladder.climb(ladder.at, Reason.UNCLASSIFIED)
    ladder.climb(ladder.prompt_tokens, Reason.UNCLASSIFIED)
    return _explanation(record, ladder, None, turn=0, was_skipped=True)


def _to_be_tried(record: RequestRecord) -> RequestRecord | None:
    """What rules need of a request besides its body, ids and replies; None if it is tried at once."""
    canonical = record.canonical
    if canonical.asked or not canonical.modes or not record.body:
        return None
    canonical = msgspec.structs.replace(canonical, blocks=())
    return msgspec.structs.replace(record, body=b"", parts=(), replies=(), holders=(), canonical=canonical)


def _begun(record: RequestRecord, seen_tokens: int) -> Ladder:
    """The ladder up to the longest prefix predicted on any replica."""
    scale = _scale(record)
    reported = record.cached_tokens
    if reported is None:
        # Without a report the prediction counts, unless the request bypasses the cache.
        reported = 0 if record.bypasses_cache else round(record.predicted_tokens * scale)
    ladder = Ladder(record.prompt_tokens, reported)
    chosen = round(record.predicted_tokens * scale)
    best = max(record.holders, key=_by_worth, default=None)
    if record.held_out is HeldOut.SALTED:
        ladder.climb(max(chosen, seen_tokens), Reason.HELD_OUT)
    elif record.bypasses_cache or record.is_blind:
        # Cached blocks could not be used, or the index could not be searched.
        chosen = max(chosen, seen_tokens, round(best.held_tokens * scale) if best else 0)
        ladder.climb(chosen, Reason.CACHE_BYPASSED if record.bypasses_cache else Reason.INDEX_BLIND)
    else:
        ladder.climb(chosen, Reason.STALE_INDEX)
    reason = Reason.HELD_OUT if record.held_out else _EXCLUDED[best.barred] if best else Reason.LOAD_BALANCED
    ladder.climb(round(best.held_tokens * scale) if best else 0, reason)
    return ladder


def _by_worth(holder: ReplicaPrefix) -> tuple[int, bool]:
    """Sort key: held tokens; on a tie, replicas that could have taken the request rank higher."""
    return holder.held_tokens, not holder.barred


def _ends(
    parts: Sequence[Sequence[Lost]], size: int, scale: float, otherwise: Reason, start: int = 0
) -> list[tuple[int, Reason]]:
    """The end of each run of blocks with its reason; for several prompts only the most frequent reason."""
    if len(parts) > 1:
        blocks: Counter[Reason] = Counter()
        for lost in itertools.chain.from_iterable(parts):
            blocks[lost.reason] += lost.blocks
        return [(0, max(blocks, key=blocks.__getitem__, default=otherwise))]
    ends: list[tuple[int, Reason]] = []
    for reason, count in parts[0]:
        start += count * size
        ends.append((round(start * scale), reason))
    return ends or [(0, otherwise)]


def _ends_of_known(lengths: Sequence[int], seen: Sequence[Seen], size: int) -> int:
    """Tokens in the incomplete last blocks of those prompts whose complete blocks were all computed before."""
    known = [part.blocks * size for part in seen]
    return sum(
        length - blocks for length, blocks in zip(lengths, known, strict=True) if blocks and length - blocks <= size
    )


def _scale(record: RequestRecord) -> float:
    """Tokens counted by the engine per token counted by the gateway."""
    own, counted = record.own_tokens, record.prompt_tokens
    return counted / own if own > 0 and counted > 0 else 1.0


def _note(record: RequestRecord, reason: Reason) -> str:
    """Details of a reason; empty if there are none."""
    rung = REASONS[reason].rung
    if rung is Rung.CHOSEN:
        reported = "nothing" if record.cached_tokens is None else str(record.cached_tokens)
        return f"{record.predicted_tokens} tokens predicted, {reported} reported"
    best = max(record.holders, key=_by_worth, default=None) if rung is Rung.ANYWHERE else None
    if best is None:
        return ""
    note = f"{best.replica} held {best.held_tokens} tokens"
    chosen = [holder for holder in record.holders if (holder.replica, holder.rank) == (record.replica, record.rank)]
    if reason is Reason.LOAD_BALANCED and chosen:
        # The costs that the routing decision compared.
        note += f", at a cost of {best.cost_seconds:.3f} s against {chosen[0].cost_seconds:.3f} s"
    return note


def _explanation(
    record: RequestRecord, ladder: Ladder, compared: Compared | None, *, turn: int, was_skipped: bool
) -> Explanation:
    confirmed = record.cached_tokens is not None
    missed = sorted(ladder.missed.items(), key=lambda item: -item[1])
    difference = compared.difference if compared and compared.behind else None
    tokens = compared.tokens if compared and difference else None
    reference = None
    if compared is not None:
        kept = compared.found.reference
        reference = ReferenceShown(kept.request_id, kept.at, kept.source, compared.found.chosen_by, compared.equal)
    return Explanation(
        prompt_tokens=ladder.prompt_tokens,
        hits=ladder.hits,
        hits_confirmed=confirmed,
        rungs=ladder.rungs,
        missed=tuple(Attribution(reason, tokens, confirmed, _note(record, reason)) for reason, tokens in missed),
        reference=reference,
        difference=difference,
        turn=turn,
        was_skipped=was_skipped,
        tokens=tokens,
    )
