"""Makes the ``RequestRecord`` of an answered request, which the explain worker gets."""

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
from gateway.core.prompt import TOKEN_BYTES, MediaItem, TokenizedPrompt, TokenSource
from gateway.core.request import LONG_BODY_BYTES, ChatRequest
from gateway.core.settlement import Settlement
from gateway.core.space import SpaceGrant
from gateway.explain.reconcile import bypasses_cache

_MAX_TOKENS = 524_288
"""Longer prompts are explained without text and tokens: comparing a million tokens takes so long that the explain
worker would count as hanging."""

_MAX_MESSAGES = 4096
"""Of longer conversations only the tokens are compared: with the texts of 20,000 messages the explain worker would be
busy for so long that it counts as hanging and is replaced."""

_STAGE_AFTER_ANSWER = "settle"
"""The stage after the answer."""


def finished(context: RequestContext, settled: Settlement, *, with_text: bool) -> RequestRecord:
    """The record of an answered request.

    Args:
        context: The request; a replica has computed its prompt.
        settled: Its settlement.
        with_text: Whether the record holds text and tokens.
    """
    replica, decision = context.replica, context.decision
    assert replica is not None
    assert decision is not None
    request, prompt = context.request, context.prompt
    with_text = with_text and sum(map(len, prompt.parts)) <= _MAX_TOKENS * TOKEN_BYTES
    uncached = replica.facts.prefix_caching is False
    return RequestRecord(
        request_id=settled.request_id,
        at=time.time(),
        model=settled.model,
        endpoint=settled.endpoint,
        tenant=request.caller.tenant.id,
        tenant_label=request.caller.tenant.label,
        source=context.source,
        # A key sent as session id must not be shown.
        session=redacted(request.session or ""),
        where=_space_key(context.space, settled.model, prompt.variant),
        life=settled.space,
        body=request.body if with_text and not _is_long(request) else b"",
        parts=_comparable(prompt) if with_text else (),
        replies=tuple(context.replies) if with_text else (),
        token_source=settled.token_source,
        block_size=context.sent_chains[0].block_size if context.sent_chains else 0,
        prompt_tokens=settled.prompt_tokens,
        own_tokens=prompt.tokens,
        predicted_tokens=settled.predicted_tokens,
        cached_tokens=_reported_cached_tokens(context),
        completion_tokens=settled.completion_tokens,
        replica=decision.replica,
        rank=decision.target.rank,
        decision=decision.kind,
        policy=decision.policy,
        holders=(*map(_candidate, decision.candidates), *context.excluded),
        bypasses_cache=uncached or bypasses_cache(request),
        is_blind=prompt.source is TokenSource.TEXT or not context.indexed,
        template_tells_time=context.model.template_tells_time,
        tools_first=context.model.tools_first,
        status=settled.status,
        ending=settled.ending or "",
        streamed=settled.streamed,
        ttft_seconds=settled.ttft_seconds,
        seconds=settled.seconds,
        failed_attempts=settled.failed_attempts,
        prefill_seconds_per_token=replica.speed.rates.prefill_seconds_per_token,
        sent_after_seconds=context.dispatched_at - request.received_at,
        stages=_stages_before_dispatch(settled),
        warming=settled.warming,
        canonical=_canonical(context, with_text=with_text),
    )


def _is_long(request: ChatRequest) -> bool:
    messages = request.fields.get("messages")
    return len(request.body) > LONG_BODY_BYTES or (isinstance(messages, list) and len(messages) > _MAX_MESSAGES)


def _stages_before_dispatch(settled: Settlement) -> tuple[tuple[str, float], ...]:
    """Seconds by stage; the attempts of a retried request are summed."""
    spent: dict[str, float] = {}
    for stage, seconds in settled.stages:
        if stage != _STAGE_AFTER_ANSWER:
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


def _canonical(context: RequestContext, *, with_text: bool) -> Canonicalized:
    """What canonicalization did; with the original body only if the record holds the sent one."""
    if context.canonical is None:
        return Canonicalized()
    record = context.canonical.record
    asked = (
        record.asked if with_text and len(record.asked) <= LONG_BODY_BYTES and not _is_long(context.request) else b""
    )
    return msgspec.structs.replace(record, asked=asked)


def _reported_cached_tokens(context: RequestContext) -> int | None:
    """Cached tokens as the engine reported them; None if unknown: of several prompts only the last one is reported."""
    usage, replica = context.outcome.usage if context.outcome else None, context.replica
    if usage is None or len(context.prompt.parts) > 1:
        return None
    if context.sequences > 1 and usage.cached_tokens is not None and context.decision is not None:
        # Reported for the last choice, which finds cached what the first one has just computed.
        return min(usage.cached_tokens, context.decision.held_tokens)
    if usage.cached_tokens is None and replica is not None and replica.usage_details:
        # The engine reports usage details, but omits a zero.
        return 0 if replica.facts.kind is EngineKind.SGLANG else None
    return usage.cached_tokens


def _space_key(space: SpaceGrant, model: str, variant: str) -> SpaceKey:
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
    """Token ids for comparing prompts: placeholders of images are replaced by a hash of the image."""
    if not prompt.media:
        return prompt.parts
    return tuple(_with_media(part, items) for part, items in zip(prompt.parts, prompt.media, strict=True))


def _with_media(part: bytes, items: Sequence[MediaItem]) -> bytes:
    ids = bytearray(part)
    for item in items:
        digest = hashlib.blake2b(item.identifier.encode(), digest_size=TOKEN_BYTES).digest() * item.length
        start = item.offset * TOKEN_BYTES
        ids[start : start + len(digest)] = digest
    return bytes(ids[: len(part)])
