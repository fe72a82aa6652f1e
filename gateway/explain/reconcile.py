"""Compares the prediction of a request with the engine's report. Does no I/O."""

from gateway.core.canonical import RuleName
from gateway.core.decision import Decision
from gateway.core.outcome import FailureStage, Outcome
from gateway.core.prompt import TokenizedPrompt, TokenSource
from gateway.core.replica_state import Rates
from gateway.core.request import ChatRequest, Endpoint
from gateway.core.settlement import Settlement

_EXACT = (TokenSource.LOCAL, TokenSource.ENGINE_RENDER, TokenSource.ENGINE_TOKENIZE)


def confirmed_tokens(request: ChatRequest, prompt: TokenizedPrompt, outcome: Outcome) -> int | None:
    """Hit tokens reported by the engine; None if the report cannot be compared with the prediction.

    That is so if the engine counts other prompt tokens than the gateway, if the request bypasses the cache, and for
    several prompts, of which engines report only the last one's hits.
    """
    usage = outcome.usage
    if usage is None or usage.cached_tokens is None or prompt.source not in _EXACT:
        return None
    if usage.prompt_tokens != prompt.tokens or len(prompt.parts) != 1 or bypasses_cache(request):
        return None
    return usage.cached_tokens


def bypasses_cache(request: ChatRequest) -> bool:
    """Whether the engine computes the whole prompt regardless of its cache.

    Source: vLLM 0.32.0, ``v1/request.py``: log probabilities of prompt tokens need every position computed.
    """
    fields = request.fields
    if fields.get("prompt_logprobs") is not None:
        return True
    return request.endpoint is Endpoint.COMPLETIONS and bool(fields.get("echo")) and fields.get("logprobs") is not None


def settlement(
    request: ChatRequest,
    prompt: TokenizedPrompt,
    decision: Decision | None,
    outcome: Outcome | None,
    *,
    rates: Rates | None,
    status: int,
    failed_attempts: int,
    failures: tuple[FailureStage, ...],
    dispatched_at: float,
    now: float,
    stages: tuple[tuple[str, float], ...],
    space: str,
    code: str | None,
    canonical: tuple[RuleName, ...] = (),
    resumed: bool = False,
) -> Settlement:
    """Summarizes a request; the arguments are as in ``Settlement``.

    Args:
        request: The request.
        prompt: Its tokens.
        decision: The routing decision; None if no replica could take it.
        outcome: The outcome at the replica; None if no replica could take it.
        rates: Learned rates of the replica.
        status: HTTP status sent to the client.
        failed_attempts: Number of replicas that failed it before.
        failures: Stages of all failures, the last one included.
        dispatched_at: Monotonic seconds when it was sent to the replica that answered.
        now: Monotonic seconds.
        stages: Seconds per stage.
        space: Short name of its prefix space.
        code: Code of the gateway's error; None without one.
        canonical: The canonicalization rules that changed it.
        resumed: Whether its stream was resumed on another replica.
    """
    usage = outcome.usage if outcome else None
    cached = usage.cached_tokens if usage else None
    ttft = None
    if outcome is not None and outcome.ttft_seconds is not None:
        ttft = dispatched_at - request.received_at + outcome.ttft_seconds
    return Settlement(
        request_id=request.request_id,
        model=request.model,
        endpoint=request.endpoint,
        decision=decision,
        ending=outcome.ending if outcome else None,
        status=status,
        failed_attempts=failed_attempts,
        failures=failures,
        streamed=request.stream,
        token_source=prompt.source,
        prompt_tokens=usage.prompt_tokens if usage else prompt.tokens,
        predicted_tokens=decision.held_tokens if decision else 0,
        cached_tokens=cached,
        completion_tokens=usage.completion_tokens if usage else None,
        parity=usage.prompt_tokens == prompt.tokens if usage and prompt.source in _EXACT and not resumed else None,
        saved_prefill_seconds=(cached or 0) * rates.prefill_seconds_per_token if rates else 0.0,
        ttft_seconds=ttft,
        seconds=now - request.received_at,
        stages=stages,
        code=code,
        caller=request.caller,
        peer=request.peer,
        space=space,
        warming=request.warms is not None,
        canonical=canonical,
        resumed=resumed,
    )
