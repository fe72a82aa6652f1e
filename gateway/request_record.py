"""What is handed over of an answered request so that it can be explained."""

import hashlib
import time
from collections.abc import Sequence

import msgspec

from gateway.context import RequestContext
from gateway.core.api_keys import redacted
from gateway.core.canonical import Canonicalized
from gateway.core.decision import Candidate
from gateway.core.engine_facts import EngineKind
from gateway.core.explanation import ReplicaPrefix, RequestRecord, SpaceKey
from gateway.core.media import MediaItem
from gateway.core.prompt import TOKEN_BYTES, TokenizedPrompt, TokenSource
from gateway.core.request import LONG_BODY_BYTES, ChatRequest
from gateway.core.settlement import Settlement
from gateway.core.space import SpaceGrant
from gateway.explain.reconcile import bypasses_cache

_MOST_TOKENS = 524_288
"""Prompts of more tokens are explained without their text and tokens: comparing a million tokens takes so long that the
process that explains counts as hanging."""

_MOST_MESSAGES = 4096
"""Of conversations with more messages only the tokens are compared: with the texts of 20,000 messages the process that
explains is busy for so long that it counts as hanging and is replaced."""

_AFTERWARDS = "settle"
"""The room that a request comes to when its answer is out."""


def finished(trip: RequestContext, settled: Settlement, *, with_text: bool) -> RequestRecord:
    """An answered request, as far as its explanation needs it.

    Args:
        trip: The request; a replica has computed its prompt.
        settled: What is known of it.
        with_text: Whether its text and tokens are to go along.
    """
    replica, decision = trip.replica, trip.decision
    assert replica is not None
    assert decision is not None
    request, prompt = trip.request, trip.prompt
    with_text = with_text and sum(map(len, prompt.parts)) <= _MOST_TOKENS * TOKEN_BYTES
    uncached = replica.facts.prefix_caching is False
    return RequestRecord(
        request_id=settled.request_id,
        at=time.time(),
        model=settled.model,
        endpoint=settled.endpoint,
        tenant=request.caller.tenant.id,
        tenant_label=request.caller.tenant.label,
        source=trip.source,
        # Keys sent in the wrong place are not to be shown either.
        session=redacted(request.session or ""),
        where=_where(trip.space, settled.model, prompt.variant),
        life=settled.space,
        body=request.body if with_text and not _is_long(request) else b"",
        parts=_comparable(prompt) if with_text else (),
        replies=tuple(trip.replies) if with_text else (),
        token_source=settled.token_source,
        block_size=trip.sent_chains[0].block_size if trip.sent_chains else 0,
        prompt_tokens=settled.prompt_tokens,
        own_tokens=prompt.tokens,
        predicted_tokens=settled.predicted_tokens,
        cached_tokens=_reported(trip),
        completion_tokens=settled.completion_tokens,
        replica=decision.replica,
        rank=decision.target.rank,
        decision=decision.kind,
        policy=decision.policy,
        holders=(*map(_candidate, decision.candidates), *trip.barred),
        bypasses_cache=uncached or bypasses_cache(request),
        is_blind=prompt.source is TokenSource.TEXT or not trip.indexed,
        template_tells_time=trip.model.template_tells_time,
        tools_first=trip.model.tools_first,
        status=settled.status,
        ending=settled.ending or "",
        streamed=settled.streamed,
        ttft_seconds=settled.ttft_seconds,
        seconds=settled.seconds,
        failed_attempts=settled.failed_attempts,
        prefill_seconds_per_token=replica.speed.rates.prefill_seconds_per_token,
        sent_after_seconds=trip.dispatched_at - request.received_at,
        stages=_until_sent(settled),
        warming=settled.warming,
        canonical=_canonical(trip, with_text=with_text),
    )


def _is_long(request: ChatRequest) -> bool:
    messages = request.fields.get("messages")
    return len(request.body) > LONG_BODY_BYTES or (isinstance(messages, list) and len(messages) > _MOST_MESSAGES)


def _until_sent(settled: Settlement) -> tuple[tuple[str, float], ...]:
    """Seconds by room; of a request that had to be placed again, all times in a room together."""
    spent: dict[str, float] = {}
    for stage, seconds in settled.stages:
        if stage != _AFTERWARDS:
            spent[stage] = spent.get(stage, 0.0) + seconds
    return tuple(spent.items())


def _candidate(candidate: Candidate) -> ReplicaPrefix:
    return ReplicaPrefix(
        candidate.target.replica,
        candidate.target.rank,
        candidate.held_tokens,
        candidate.queue_seconds,
        candidate.prefill_seconds,
        candidate.cost_seconds,
    )


def _canonical(trip: RequestContext, *, with_text: bool) -> Canonicalized:
    """What canonicalization has to do with it; the body as it was asked only along with the one that was sent."""
    if trip.canonical is None:
        return Canonicalized()
    told = trip.canonical.told
    asked = told.asked if with_text and len(told.asked) <= LONG_BODY_BYTES and not _is_long(trip.request) else b""
    return msgspec.structs.replace(told, asked=asked)


def _reported(trip: RequestContext) -> int | None:
    """What the engine said was cached; None if that says nothing: of several prompts it tells of the last one only."""
    usage, replica = trip.outcome.usage if trip.outcome else None, trip.replica
    if usage is None or len(trip.prompt.parts) > 1:
        return None
    if trip.sequences > 1 and usage.cached_tokens is not None and trip.decision is not None:
        # Told of the last choice, which finds in the cache what the first one has just computed.
        return min(usage.cached_tokens, trip.decision.held_tokens)
    if usage.cached_tokens is None and replica is not None and replica.usage_details:
        # It does tell, but for a zero.
        return 0 if replica.facts.kind is EngineKind.SGLANG else None
    return usage.cached_tokens


def _where(space: SpaceGrant, model: str, variant: str) -> SpaceKey:
    parts = space.space
    if parts is None:
        return SpaceKey(model, variant=variant)
    return SpaceKey(
        model=parts.model_id,
        tokenizer=parts.tokenizer_id,
        template=parts.template_version,
        owner=parts.tenant,
        scope=parts.scope,
        adapter=parts.adapter,
        context_limit=parts.context_limit,
        region=parts.region,
        narrowed=space.narrowed,
        variant=variant,
    )


def _comparable(prompt: TokenizedPrompt) -> tuple[bytes, ...]:
    """Token ids by which prompts can be compared: placeholders of images are replaced by what stands for the image."""
    if not prompt.media:
        return prompt.parts
    return tuple(_with_media(part, items) for part, items in zip(prompt.parts, prompt.media, strict=True))


def _with_media(part: bytes, items: Sequence[MediaItem]) -> bytes:
    ids = bytearray(part)
    for item in items:
        stand_in = hashlib.blake2b(item.identifier.encode(), digest_size=TOKEN_BYTES).digest() * item.length
        start = item.offset * TOKEN_BYTES
        ids[start : start + len(stand_in)] = stand_in
    return bytes(ids[: len(part)])
