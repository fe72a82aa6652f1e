"""What spans say: ids, counts, decisions; never text of prompts, and no keys.

Names are those of OpenTelemetry's semantic conventions (GenAI, HTTP, server) where there are any, else ``gateway.…``.
"""

from gateway.core.decision import Decision
from gateway.core.outcome import Outcome
from gateway.core.settlement import Refusal, Settlement

Attributes = dict[str, str | int | float | bool]


def of_settlement(settlement: Settlement, operation: str) -> Attributes:
    """Of a request that got as far as a model."""
    s = settlement
    told: dict[str, str | int | float | bool | None] = {
        "http.request.method": "POST",
        "url.path": str(s.endpoint),
        "http.response.status_code": s.status,
        "error.type": (s.code or str(s.status)) if s.status >= 400 else None,
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": s.model,
        "gen_ai.request.stream": s.streamed,
        "gen_ai.response.time_to_first_chunk": s.ttft_seconds,
        "gen_ai.usage.input_tokens": s.prompt_tokens or None,
        "gen_ai.usage.output_tokens": s.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": s.cached_tokens,
        "gateway.request.id": s.request_id,
        "gateway.tenant.id": s.caller.tenant.id,
        "gateway.space.id": s.space or None,
        "gateway.replica": s.decision.replica if s.decision else None,
        "gateway.decision": str(s.decision.kind) if s.decision else None,
        "gateway.prefix.predicted_tokens": s.predicted_tokens if s.decision else None,
        "gateway.prefix.confirmed_tokens": s.cached_tokens,
        "gateway.tokens.source": str(s.token_source),
        "gateway.failed_attempts": s.failed_attempts,
        "gateway.server.forced_end": str(s.ending) if s.ending else "unrouted",
    }
    return _known(told)


def of_refusal(refusal: Refusal, operation: str) -> Attributes:
    """Of a request that was refused before it got to a model."""
    caller = refusal.caller
    return _known(
        {
            "http.request.method": "POST",
            "url.path": str(refusal.endpoint),
            "http.response.status_code": refusal.status,
            "error.type": refusal.code or str(refusal.status),
            "gen_ai.operation.name": operation,
            "gateway.request.id": refusal.request_id,
            "gateway.tenant.id": caller.tenant.id if caller else None,
            "gateway.server.forced_end": "refused",
        }
    )


def of_call(decision: Decision, host: str, port: int, resent: int) -> Attributes:
    """Of an attempt at a replica, when it begins; ``resent`` counts the attempts before."""
    return {
        "http.request.method": "POST",
        "server.address": host,
        "server.port": port,
        "http.request.resend_count": resent,
        "gateway.replica": decision.replica,
        "gateway.rank": decision.target.rank,
        "gateway.decision": str(decision.kind),
        "gateway.prefix.predicted_tokens": decision.held_tokens,
    }


def of_outcome(outcome: Outcome) -> Attributes:
    """Of an attempt at a replica, when it is over."""
    return _known(
        {
            "http.response.status_code": outcome.status,
            "gateway.server.forced_end": str(outcome.ending),
            "gateway.ttft_seconds": outcome.ttft_seconds,
        }
    )


def _known(told: dict[str, str | int | float | bool | None]) -> Attributes:
    return {name: value for name, value in told.items() if value is not None}
