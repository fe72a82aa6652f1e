"""Settlements of answered requests, and refusals: the input of metrics and logs."""

from dataclasses import dataclass

import msgspec

from gateway.core.canonical import RuleName
from gateway.core.decision import Decision
from gateway.core.experiment_group import Assignment
from gateway.core.ids import ModelId, RequestId
from gateway.core.outcome import Ending, FailureStage
from gateway.core.prompt import TokenSource
from gateway.core.request import Endpoint
from gateway.core.tenant import EVERYBODY, Caller


class Settlement(msgspec.Struct, frozen=True):
    """One finished request; what metrics and the log are made from. Holds no text of the prompt or the answer.

    Attributes:
        request_id: Its id.
        model: Model id.
        endpoint: Which API.
        decision: The placement; None if no replica could take it.
        ending: How it ended; None without a replica.
        status: HTTP status the client got; 499 if the client left before any.
        failed_attempts: Replicas that it was sent to before, and that failed it.
        failures: When replicas failed it, the last one included.
        streamed: Whether the client asked for a stream.
        token_source: Where the prompt's token ids came from.
        prompt_tokens: The engine's count, else the gateway's.
        predicted_tokens: Prompt tokens predicted to be cached at the chosen replica.
        cached_tokens: Prompt tokens the engine reported as cached; None if it reported nothing.
        completion_tokens: Generated tokens; None if unknown.
        parity: Whether the gateway's count equals the engine's; None if there is nothing to compare.
        saved_prefill_seconds: Prefill time the cached tokens would have taken, by the replica's learned rate.
        ttft_seconds: From the request's arrival to the first byte of a stream.
        seconds: From the request's arrival to the end of the answer.
        stages: Seconds by stage.
        code: Code of the error by which the gateway refused it; None if it did not.
        caller: The authenticated caller.
        peer: Address it came from.
        space: Short name of its prefix space; empty if it did not get that far.
        warming: Whether it was sent to fill a cache, and not by a client.
        canonical: The canonicalization rules that changed it, in their order.
        resumed: Whether its stream went on after its replica had failed; its usage is then the gateway's sum.
        assignment: Its group in the experiment; None outside of one.
        prefill_seconds_per_token: At the chosen replica, as learned; 0 without one.
        ended_at: When it ended; monotonic seconds.
        dialect: See ``ChatRequest``.
    """

    request_id: RequestId
    model: ModelId
    endpoint: Endpoint
    decision: Decision | None
    ending: Ending | None
    status: int
    failed_attempts: int
    failures: tuple[FailureStage, ...]
    streamed: bool
    token_source: TokenSource
    prompt_tokens: int
    predicted_tokens: int
    cached_tokens: int | None
    completion_tokens: int | None
    parity: bool | None
    saved_prefill_seconds: float
    ttft_seconds: float | None
    seconds: float
    stages: tuple[tuple[str, float], ...]
    code: str | None = None
    caller: Caller = EVERYBODY
    peer: str = ""
    space: str = ""
    warming: bool = False
    canonical: tuple[RuleName, ...] = ()
    resumed: bool = False
    assignment: Assignment | None = None
    prefill_seconds_per_token: float = 0.0
    ended_at: float = 0.0
    dialect: str = ""


OTHER_ENDPOINT = "other"
"""``Refusal.endpoint`` of requests whose path or method is not served."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that the gateway refused before the flow: invalid, not allowed, or an internal error.

    Attributes:
        request_id: Its id.
        endpoint: Path of the API, or ``OTHER_ENDPOINT``.
        status: HTTP status the client got.
        code: The error's code.
        peer: Address it came from.
        caller: The authenticated caller; None if unknown.
        method: With ``OTHER_ENDPOINT``: the method.
        path: With ``OTHER_ENDPOINT``: the path, shortened and safe to show. Never a label value: clients choose it.
        dialect: See ``ChatRequest``.
    """

    request_id: RequestId
    endpoint: str
    status: int
    code: str | None
    peer: str = ""
    caller: Caller | None = None
    method: str = ""
    path: str = ""
    dialect: str = ""
