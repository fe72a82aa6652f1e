"""Summarizes a request from the results of its stages: the ``Settlement`` for metrics and logs, and the
``RequestRecord`` for the explain worker."""

import hashlib
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from xxhash import xxh32_intdigest

from gateway.context import Encoded, Placed, RequestContext, Served
from gateway.core.decision import Candidate
from gateway.core.engine_facts import EngineKind
from gateway.core.experiment_group import Assignment, HeldOut
from gateway.core.explanation import MEASUREMENT, ReplicaPrefix, ReplyChoice, RequestRecord, SpaceKey
from gateway.core.outcome import Ending, Outcome
from gateway.core.prompt import TOKEN_BYTES, MediaItem, TokenizedPrompt
from gateway.core.request import LONG_BODY_BYTES
from gateway.core.settlement import Settlement
from gateway.core.space import SpaceGrant
from gateway.explain.reconcile import EXACT_SOURCES, bypasses_cache

_MAX_TOKENS = 524_288
"""Longer prompts are explained without text and tokens: comparing a million tokens takes so long that the explain
worker would count as hanging."""

_MAX_MESSAGES = 4096
"""Of longer conversations only the tokens are compared: with the texts of 20,000 messages the explain worker would be
busy for so long that it counts as hanging and is replaced."""

_LEADING_ROLES = frozenset({"system", "developer"})
_HASHED_CHARACTERS, _HASHED_PARTS, _HASHED_IDS = 1_000, 100, 8

_STAGE_AFTER_ANSWER = "settle"
"""The stage after the answer."""


def settlement(context: RequestContext, served: Served | None, status: int, code: str | None, now: float) -> Settlement:
    """Summarizes a request that is over.

    Args:
        context: The request.
        served: Its end at a replica; None if no replica got it, or if the client left before.
        status: HTTP status sent to the client.
        code: Code of the gateway's error; None without one.
        now: Monotonic seconds.
    """
    encoded, placed = context.encoded, context.placed
    request, source = encoded.request, encoded.prompt.source
    outcome = usage = ttft = parity = None
    saved_prefill_seconds, per_token, resumed = 0.0, 0.0, False
    if served is not None:
        outcome, usage, resumed = served.outcome, served.outcome.usage, served.resumed
        per_token = served.placed.replica.speed.rates.prefill_seconds_per_token
        if outcome.ttft_seconds is not None:
            ttft = served.dispatched_at - request.received_at + outcome.ttft_seconds
        if usage is not None:
            saved_prefill_seconds = 0.0 if request.path else (usage.cached_tokens or 0) * per_token
            if source in EXACT_SOURCES and not resumed:
                parity = usage.prompt_tokens == encoded.tokens
    # By position, with the names where they do not show: by keyword, so many fields take 3 us, and 0.3 us so.
    return Settlement(
        request.request_id,
        request.model,
        request.path or request.endpoint,
        placed.decision if placed else None,
        outcome.ending if outcome else None,
        status,
        len(context.tried),  # failed_attempts
        tuple(context.failures),
        request.stream,
        source,
        usage.prompt_tokens if usage else encoded.tokens,
        placed.decision.held_tokens if placed else 0,  # predicted_tokens
        usage.cached_tokens if usage and not request.path else None,
        usage.completion_tokens if usage else None,
        parity,
        saved_prefill_seconds,
        ttft,
        now - request.received_at,  # seconds
        tuple(context.stages),
        code,
        request.caller,
        request.peer,
        encoded.space.id,
        request.warmup_target is not None,  # warming
        tuple(encoded.rules),  # canonical
        resumed,
        encoded.asked.assignment,
        per_token,
        now,  # ended_at
        request.dialect,
    )


def request_record(
    encoded: Encoded, served: Served, settled: Settlement, replies: Sequence[ReplyChoice], *, with_text: bool
) -> RequestRecord:
    """The record of an answered request.

    Args:
        encoded: The request.
        served: Its end; a replica has computed its prompt.
        settled: Its settlement.
        replies: The answer's choices, as far as they are known.
        with_text: Whether the record holds text and tokens.
    """
    placed, replica, decision = served.placed, served.placed.replica, served.placed.decision
    request, prompt, model = encoded.request, encoded.prompt, encoded.model
    with_text = with_text and encoded.tokens <= _MAX_TOKENS
    messages, canonical = request.fields.get("messages"), encoded.canonical
    is_long = len(request.body) > LONG_BODY_BYTES or (isinstance(messages, list) and len(messages) > _MAX_MESSAGES)
    with_body = with_text and not is_long
    if canonical.asked and not with_body:
        canonical = msgspec.structs.replace(canonical, asked=b"")
    # By position, as in ``settlement``.
    return RequestRecord(
        settled.request_id,
        time.time(),  # at
        settled.model,
        settled.endpoint,
        request.caller.tenant.id,  # tenant
        request.caller.tenant.label,  # tenant_label
        encoded.source,
        request.identity.session,
        _space_key(encoded.space, settled.model, prompt.variant),  # where
        settled.space,  # life
        request.body if with_body else b"",  # body
        _comparable(prompt) if with_text else (),  # parts
        tuple(replies) if with_text else (),  # replies
        settled.token_source,
        placed.chains[0].block_size if placed.chains else 0,  # block_size
        settled.prompt_tokens,
        encoded.tokens,  # own_tokens
        settled.predicted_tokens,
        _reported_cached_tokens(encoded, served),  # cached_tokens
        settled.completion_tokens,
        decision.target.replica,
        decision.target.rank,
        decision.kind,  # decision
        decision.policy,
        (*map(_candidate, decision.candidates), *placed.excluded),  # holders
        replica.facts.prefix_caching is False or bypasses_cache(request),  # bypasses_cache
        encoded.is_text or not placed.indexed,  # is_blind
        model.template_tells_time,
        model.tools_first,
        settled.status,
        settled.ending or "",  # ending
        settled.streamed,
        settled.ttft_seconds,
        settled.seconds,
        settled.failed_attempts,
        settled.prefill_seconds_per_token,
        served.dispatched_at - request.received_at,  # sent_after_seconds
        _stages_before_dispatch(settled),  # stages
        settled.warming,
        canonical,
        HeldOut.NO if settled.assignment is None else _held_out(settled.assignment),
        encoded.source == MEASUREMENT,  # measured
        request.caller.application.counted_as if request.caller.application is not None else "",  # prompt
        request.identity,
        request.dialect,
        *(opening_and_turn(request.fields) if with_text else (0, 0)),
    )


def conversation_hash(encoded: Encoded) -> int:
    """32 bits that the turns of a conversation share: of its session, else of how it opens; other ones for each
    tenant."""
    request = encoded.request
    named = request.identity.session if request.identity.is_exact else ""
    if not named:
        named = str(opening_and_turn(request.fields)[0])
    return xxh32_intdigest(f"{request.caller.tenant.id}\n{named}".encode("utf-8", "replace"))


def opening_and_turn(fields: Mapping[str, Any]) -> tuple[int, int]:
    """What a body shows of its conversation.

    Returns:
        32 bits of the beginning and the end of the first message behind the leading ones, or of the beginning of a
        prompt without messages; and the number of user messages.
    """
    messages, turn, first = fields.get("messages"), 0, None
    if not isinstance(messages, list):
        return zlib.crc32(_text(fields.get("prompt"))[:_HASHED_CHARACTERS].encode("utf-8", "replace")), 0
    for message in messages:
        # Of a completion they are not checked: engines ignore them.
        role = message.get("role") if isinstance(message, dict) else None
        turn += role == "user"
        if first is None and isinstance(role, str) and role not in _LEADING_ROLES:
            first = message
    content = None if first is None else first.get("content")
    text = content if isinstance(content, str) else _text(content)
    text = text[:_HASHED_CHARACTERS] + text[-_HASHED_CHARACTERS:]
    return zlib.crc32(text.encode("utf-8", "replace")), turn


def _text(value: object) -> str:
    """A text, or the first parts of a content, prompts or token ids, each up to a limit."""
    if not isinstance(value, list):
        return value if isinstance(value, str) else ""
    return " ".join(map(_part, value[:_HASHED_PARTS]))


def _part(part: object) -> str:
    if isinstance(part, dict):
        part = part.get("text")
    if isinstance(part, list):
        return " ".join([str(each) for each in part[:_HASHED_IDS] if isinstance(each, int)])
    return part[:_HASHED_CHARACTERS] if isinstance(part, str) else str(part) if isinstance(part, int) else ""


def placed_record(context: RequestContext, placed: Placed) -> RequestRecord:
    """The record of a request that is placed and not sent yet, with what is predicted."""
    now = time.monotonic()
    served = Served(placed, Outcome(Ending.COMPLETE, 200, False, None, 0.0, None), now, 0, None)
    return request_record(context.encoded, served, settlement(context, served, 200, None, now), (), with_text=True)


def _held_out(assignment: Assignment) -> HeldOut:
    if not assignment.is_held_out:
        return HeldOut.NO
    return HeldOut.SALTED if assignment.salted else HeldOut.UNROUTED


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


def _reported_cached_tokens(encoded: Encoded, served: Served) -> int | None:
    """Cached tokens as the engine reported them; None if unknown: of several prompts only the last one is reported."""
    usage, replica = served.outcome.usage, served.placed.replica
    if usage is None or len(encoded.prompt.parts) > 1:
        return None
    if encoded.sequences > 1 and usage.cached_tokens is not None:
        # Reported for the last choice, which finds cached what the first one has just computed.
        return min(usage.cached_tokens, served.placed.decision.held_tokens)
    if usage.cached_tokens is None and replica.usage_details:
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
        prompt=parts.prompt,
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
