"""Records the stages and attempts of a request, and the attributes of their spans.

Attributes contain ids, counts and decisions, never prompt text or keys. Their names are those of OpenTelemetry's
semantic conventions (GenAI, HTTP, server) where they exist, else ``gateway.…``.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.core.decision import Decision
from gateway.core.outcome import Ending, Outcome
from gateway.core.request import Endpoint
from gateway.core.settlement import Refusal, Settlement
from gateway.telemetry.tracing.trace_context import Header, new_span_id, trace_headers

Attributes = dict[str, str | int | float | bool]


def of_settlement(settlement: Settlement, operation: str) -> Attributes:
    """Attributes of a request that reached a model."""
    s = settlement
    attributes: dict[str, str | int | float | bool | None] = {
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
        "gateway.dialect": s.dialect or None,
        "gateway.tenant.id": s.caller.tenant.id,
        "gateway.space.id": s.space or None,
        "gateway.replica": s.decision.replica if s.decision else None,
        "gateway.decision": str(s.decision.kind) if s.decision else None,
        "gateway.prefix.predicted_tokens": s.predicted_tokens if s.decision else None,
        "gateway.prefix.confirmed_tokens": s.cached_tokens,
        "gateway.tokens.source": str(s.token_source),
        "gateway.failed_attempts": s.failed_attempts,
        "gateway.ending": str(s.ending) if s.ending else "unrouted",
    }
    return _known(attributes)


def of_refusal(refusal: Refusal, operation: str) -> Attributes:
    """Attributes of a request that was refused before it reached a model."""
    caller = refusal.caller
    return _known(
        {
            "http.request.method": "POST",
            "url.path": str(refusal.endpoint),
            "http.response.status_code": refusal.status,
            "error.type": refusal.code or str(refusal.status),
            "gen_ai.operation.name": operation,
            "gateway.request.id": refusal.request_id,
            "gateway.dialect": refusal.dialect or None,
            "gateway.tenant.id": caller.tenant.id if caller else None,
            "gateway.ending": "refused",
        }
    )


def of_call(decision: Decision, host: str, port: int, resent: int) -> Attributes:
    """Attributes of an attempt at a replica when it starts; ``resent``: number of earlier attempts."""
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
    """Attributes of an attempt at a replica when it has ended."""
    return _known(
        {
            "http.response.status_code": outcome.status,
            "gateway.ending": str(outcome.ending),
            "gateway.ttft_seconds": outcome.ttft_seconds,
        }
    )


def _known(attributes: dict[str, str | int | float | bool | None]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


_NEXT_STAGE: Mapping[str, str] = {
    "": "admission",
    "admission": "parse",
    "parse": "canon",
    "canon": "encode",
    # Hashing refuses nothing; a missing replica is detected before it.
    "encode": "place",
    "hash": "place",
    "place": "queue",
}
"""The stage that refused a request, by the last completed stage."""

_OPERATIONS = {str(Endpoint.CHAT): "chat", str(Endpoint.COMPLETIONS): "text_completion", "/v1/embeddings": "embeddings"}
"""GenAI semantic conventions, ``gen_ai.operation.name``."""


@dataclass(slots=True, eq=False)
class Span:
    """One span. Times are Unix nanoseconds.

    Attributes:
        name: Name of the span.
        began: Start time.
        ended: End time.
        id: Span id.
        attributes: Its attributes.
        failure: Error type; empty if it succeeded.
        first_byte: Time of the first byte of the replica's answer; None if unknown.
    """

    name: str
    began: int
    ended: int
    id: int = field(default_factory=new_span_id)
    attributes: Attributes = field(default_factory=dict)
    failure: str = ""
    first_byte: int | None = None


class RequestTrace:
    """The trace of one request. Never raises and never waits.

    Args:
        write: Takes the trace when the request has ended.
        trace_id: Trace id.
        parent_id: Id of the client's span; None if it named none.
        flags: Trace flags, for the engine.
        state: The client's ``tracestate``.

    Attributes:
        trace_id: As above.
        parent_id: As above.
        state: As above.
        request: The whole request.
        stages: Its stages.
        calls: Its attempts at replicas.
    """

    __slots__ = (
        "_call",
        "_ending",
        "_flags",
        "_last_stage",
        "_offset",
        "_stage_began",
        "_write",
        "calls",
        "parent_id",
        "request",
        "stages",
        "state",
        "trace_id",
    )

    def __init__(
        self, write: Callable[["RequestTrace"], None], trace_id: int, parent_id: int | None, flags: int, state: str
    ) -> None:
        now = time.time_ns()
        self._write = write
        self.trace_id = trace_id
        self.parent_id = parent_id
        self._flags = flags
        self.state = state
        # Within a request only the monotonic clock is read.
        self._offset = now - time.perf_counter_ns()
        self._stage_began = now
        self._last_stage = ""
        self.request = Span("request", now, now)
        self.stages: list[Span] = []
        self.calls: list[Span] = []
        self._call: Span | None = None
        self._ending = ""

    def end_stage(self, stage: str) -> None:
        """A stage of the request ended; it began where the one before ended."""
        now = self._now()
        self.stages.append(Span(stage, self._stage_began, now))
        self._stage_began = now
        self._last_stage = stage

    def resume(self) -> None:
        """The time since the last stage belongs to no stage."""
        self._stage_began = self._now()

    def relay(self, decision: Decision, host: str, port: int) -> Sequence[Header] | None:
        """An attempt at a replica begins.

        Returns:
            Headers that replace the client's ``traceparent`` and ``tracestate`` at the replica; None leaves those
            unchanged.
        """
        now = self._now()
        self._call = Span("relay", now, now, attributes=of_call(decision, host, port, len(self.calls)))
        self.calls.append(self._call)
        return trace_headers(self.trace_id, self._call.id, self._flags, self.state)

    def relayed(self, outcome: Outcome) -> None:
        """The attempt is over."""
        call, self._call = self._call, None
        if call is None:
            return
        call.ended = self._now()
        call.attributes.update(of_outcome(outcome))
        if outcome.ttft_seconds is not None:
            call.first_byte = call.began + round(outcome.ttft_seconds * 1e9)
        if outcome.ending is not Ending.COMPLETE:
            call.failure = "" if outcome.ending is Ending.CLIENT_GONE else str(outcome.ending)
        elif outcome.status is not None and outcome.status >= 400:
            call.failure = str(outcome.status)

    def settled(self, settlement: Settlement) -> None:
        """The request is over; ``settlement`` describes it."""
        operation = _OPERATIONS.get(settlement.endpoint, settlement.endpoint)
        self.request.name = f"{operation} {settlement.model}"
        self.request.attributes = of_settlement(settlement, operation)
        self._answered(settlement.status, settlement.code, routed=settlement.ending is not None)

    def refused(self, refusal: Refusal) -> None:
        """The request was refused before the flow."""
        # The model is unknown or unchecked client input.
        self.request.name = operation = _OPERATIONS.get(refusal.endpoint, refusal.endpoint)
        self.request.attributes = of_refusal(refusal, operation)
        self._answered(refusal.status, refusal.code, routed=False)

    def end(self) -> None:
        """End the trace, whether or not the request was answered. Call once."""
        now = self._now()
        self.request.ended = now
        if self._call is not None:
            self._call.ended = now
            self._call.failure = "aborted"
        if not self.request.attributes:
            # The client disconnected while sending, or the gateway shuts down.
            self.request.attributes = {"gateway.ending": "abandoned"}
        self._write(self)

    def _answered(self, status: int, code: str | None, *, routed: bool) -> None:
        if status >= 400 and not routed and not self.calls and (stage := _NEXT_STAGE.get(self._last_stage)) is not None:
            self.stages.append(Span(stage, self._stage_began, self._now(), failure=code or str(status)))
        if status >= 500:
            self.request.failure = code or str(status)

    def _now(self) -> int:
        return time.perf_counter_ns() + self._offset


class Unrecorded:
    """A trace that is not recorded; its headers report that to the engine.

    Args:
        headers: The headers that ``relay`` returns.
    """

    __slots__ = ("_headers",)

    def __init__(self, headers: Sequence[Header] | None) -> None:
        self._headers = headers

    def end_stage(self, stage: str) -> None:
        """See ``RequestTrace``."""

    def resume(self) -> None:
        """See ``RequestTrace``."""

    def relay(self, decision: Decision, host: str, port: int) -> Sequence[Header] | None:  # noqa: ARG002
        """See ``RequestTrace``."""
        return self._headers

    def relayed(self, outcome: Outcome) -> None:
        """See ``RequestTrace``."""

    def settled(self, settlement: Settlement) -> None:
        """See ``RequestTrace``."""

    def refused(self, refusal: Refusal) -> None:
        """See ``RequestTrace``."""

    def end(self) -> None:
        """See ``RequestTrace``."""


Trace = RequestTrace | Unrecorded
"""What ``Tracing.begin`` returns."""
