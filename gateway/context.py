"""The state of one request: what each stage of the flow has added to it so far."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from gateway.canon.token_counts import TokenCounts
from gateway.core.block_chain import BlockChain
from gateway.core.canonical import RuleName
from gateway.core.decision import Decision
from gateway.core.errors import DeadlineExceeded, GatewayError, NoReplica, ShuttingDown, UpstreamFailed, UpstreamTimeout
from gateway.core.explanation import ReplicaPrefix, ReplyChoice
from gateway.core.ids import ModelId, ReplicaId, Target
from gateway.core.numbers import MAX_SEQUENCES, choices
from gateway.core.outcome import Ending, FailureStage, Outcome
from gateway.core.ports import CanonicalRequest, Grant, Lease, Trace
from gateway.core.prompt import TOKEN_BYTES, TokenizedPrompt, TokenSource
from gateway.core.request import LONG_BODY_BYTES, ChatRequest
from gateway.core.space import NO_SPACE, ModelVersion, SpaceGrant
from gateway.fleet.replica import Replica
from gateway.proxy.request_body import engine_body
from gateway.proxy.resume import ResumableStream
from gateway.tokenize.encoder import Encoder
from gateway.turns import Turns

CLIENT_GONE_STATUS = 499
"""Recorded for a client that disconnects before it gets a status (nginx uses the same number)."""

_STATUS_OF = {
    Ending.NOT_CONNECTED: NoReplica.status,
    Ending.BROKEN: UpstreamFailed.status,
    Ending.TIMED_OUT: UpstreamTimeout.status,
    Ending.EXPIRED: DeadlineExceeded.status,
    Ending.INTERRUPTED: ShuttingDown.status,
    Ending.CLIENT_GONE: CLIENT_GONE_STATUS,
}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A served model: its encoder, and its present version.

    Attributes:
        id: Its id.
        encoder: Its tokenizer.
        roots: Maps a cache salt (empty for none) and a prompt variant to the root hash of the chains.
        version: Returns the present version: tokenizer, template, adapter, context limit.
        token_counts: Counts tokens of texts; None where only the engine can tokenize.
        template_tells_time: Whether its chat template prints the current time.
        tools_first: Whether its chat template prints tools in front of the system message.
    """

    id: ModelId
    encoder: Encoder
    roots: Callable[[str, str], int]
    version: Callable[[], ModelVersion]
    token_counts: TokenCounts | None = None
    template_tells_time: bool = False
    tools_first: bool = False


@dataclass(slots=True, eq=False)
class RequestContext:
    """Everything known of a request so far; each stage adds its result."""

    request: ChatRequest
    """As sent to engines: personal data masked, prompt canonicalized."""
    asked: ChatRequest
    """As the client sent it."""
    model: ServedModel
    grant: Grant
    source: str = ""
    """The client family, from the request's headers."""
    trace: Trace | None = None
    """Its trace; None if tracing is off."""
    space: SpaceGrant = NO_SPACE
    """The prefix space it belongs to."""
    canonical: CanonicalRequest | None = None
    """What canonicalization did; None before that stage."""
    prompt: TokenizedPrompt = field(default_factory=lambda: TokenizedPrompt((), TokenSource.TEXT))
    chains: dict[int, list[BlockChain]] = field(default_factory=dict)
    """The prompts' block chains, by block size: replicas of a model may differ in block size."""
    indexed: bool = True
    """False after the index failed for this request."""
    tried: set[ReplicaId] = field(default_factory=set)
    """Replicas whose attempt failed."""
    failures: list[FailureStage] = field(default_factory=list)
    """The stage at which each failed attempt failed."""
    deadline: float = math.inf
    """The request times out then; monotonic seconds."""
    ahead: Mapping[Target, int] = field(default_factory=dict)
    """Prompt tokens of requests queued in front of it, by their expected target."""
    excluded: Sequence[ReplicaPrefix] = ()
    """Targets of the model that were no candidates, and the prefix they held."""
    decision: Decision | None = None
    replica: Replica | None = None
    stream: ResumableStream | None = None
    """Wraps the sink if the stream can be continued at another replica."""
    sent_chains: Sequence[BlockChain] = ()
    """The ``chains`` with the replica's block size at dispatch."""
    lease: Lease | None = None
    dispatched_at: float = 0.0
    prefill_ahead: int = 0
    """Uncached tokens in flight at the target at dispatch."""
    outcome: Outcome | None = None
    replies: Sequence[ReplyChoice] = ()
    """The answer's choices, as far as they are known."""
    stages: list[tuple[str, float]] = field(default_factory=list)
    _stage_began_at: float = field(default_factory=time.perf_counter)
    _engine_body: tuple[ChatRequest, bytes] | None = None

    def end_stage(self, stage: str) -> None:
        """Record the duration of the stage that ends now."""
        now = time.perf_counter()
        self.stages.append((stage, now - self._stage_began_at))
        self._stage_began_at = now
        if self.trace is not None:
            self.trace.end_stage(stage)

    def resume_clock(self) -> None:
        """Restart the stage clock: the time before (waiting for the replica) belongs to no stage."""
        self._stage_began_at = time.perf_counter()
        if self.trace is not None:
            self.trace.resume()

    async def engine_body(self, request: ChatRequest, turns: Turns) -> bytes:
        """The body to send for ``request`` (this one or its continuation); retries reuse it."""
        if self._engine_body is None or self._engine_body[0] is not request:
            self._engine_body = (
                request,
                await turns.run(engine_body(request, self.space.salt), request.caller.tenant.id),
            )
        return self._engine_body[1]

    def drop_content(self) -> None:
        """Free the parsed body and what no later stage reads: a stream may last for hours.

        Called at the first event of a stream. Does nothing while another replica could still continue it.
        """
        if self.stream is not None:
            return
        self._engine_body = None
        freed = self.asked.drop_content()
        if freed and self.asked.dropped is not None:
            self.asked.dropped(freed)
        if self.request is not self.asked:
            self.request.drop_content()  # a copy made by the gateway: not part of ``held_bytes``
        if self.canonical is not None and len(self.canonical.record.asked) > LONG_BODY_BYTES:
            record = msgspec.structs.replace(self.canonical.record, asked=b"")
            self.canonical = dataclasses.replace(self.canonical, request=self.request, record=record)

    @property
    def begun(self) -> bool:
        """Whether the client has the beginning of a stream that another replica continues."""
        return self.stream is not None and self.stream.begun

    @property
    def root(self) -> int:
        """Root hash of the prompts' chains."""
        salt = self.space.salt if self.space.salt is not None else self.request.fields.get("cache_salt")
        return self.model.roots(salt if isinstance(salt, str) else "", self.prompt.variant)

    @property
    def affinity(self) -> str | None:
        """The session that the client names, or a hint from the prompt; None without either."""
        return self.request.session or (self.canonical.affinity if self.canonical is not None else None)

    @property
    def applied_rules(self) -> Sequence[RuleName]:
        """The canonicalization rules that changed it, in the order of ``RuleName``."""
        return [rule for rule in RuleName if self.canonical is not None and rule in self.canonical.edits]

    @property
    def sequences(self) -> int:
        """Sequences that an engine computes for it: one per choice and prompt."""
        return min(max(len(self.prompt.parts), 1) * choices(self.request.fields), MAX_SEQUENCES)

    @property
    def beginning(self) -> int | bytes:
        """Identifies the prompt's beginning: the hash of its first block, or the tokens of a prompt without a block."""
        for chains in self.chains.values():
            if chains and chains[0].hashes:
                return chains[0].hashes[0]
        return self.prompt.parts[0][: 64 * TOKEN_BYTES] if self.prompt.parts else b""

    @property
    def status(self) -> int:
        """The HTTP status that the client got."""
        outcome = self.outcome
        assert outcome is not None
        if outcome.status is not None and (outcome.started or outcome.ending is Ending.COMPLETE):
            return outcome.status
        return _STATUS_OF.get(outcome.ending, UpstreamFailed.status)

    @property
    def prefilled(self) -> bool:
        """Whether the replica certainly computed the prompt."""
        outcome = self.outcome
        return (
            outcome is not None
            and outcome.status == 200
            and (outcome.ending is Ending.COMPLETE or outcome.ttft_seconds is not None)
        )

    @property
    def declined(self) -> bool:
        """Whether the prompt was certainly not computed: no connection was made, or the replica refused the request.

        After a disconnect of the client or of the replica, the prompt may have been computed.
        """
        outcome = self.outcome
        return outcome is not None and (
            outcome.ending is Ending.NOT_CONNECTED or (outcome.ending is Ending.COMPLETE and outcome.status != 200)
        )

    def failure(self) -> GatewayError | None:
        """The error to send, if the client has got nothing yet; None otherwise.

        No replica could be connected to, a timeout expired, or the replica failed before it answered.
        """
        outcome = self.outcome
        assert outcome is not None
        if outcome.started or outcome.ending in (Ending.COMPLETE, Ending.CLIENT_GONE):
            return None
        if outcome.ending is Ending.NOT_CONNECTED:
            return NoReplica(
                f"No replica of model {self.model.id!r} can be connected to. Try again in a moment.", code="no_replica"
            )
        if outcome.ending is Ending.INTERRUPTED:
            return shutting_down()
        if outcome.ending is Ending.EXPIRED:
            return expired()
        if outcome.ending is Ending.TIMED_OUT:
            message = "The replica did not answer in time. Send the request again."
            return UpstreamTimeout(message, code="replica_timeout")
        return UpstreamFailed(
            "The replica broke off, or what it sent is no answer. Send the request again.", code="replica_disconnected"
        )


def expired() -> DeadlineExceeded:
    """The error for a request whose timeout expires before its answer begins."""
    return DeadlineExceeded(
        "The request took longer than it may take (`x-request-timeout`, or else `relay.total_timeout_seconds`).",
        code="deadline_exceeded",
    )


def shutting_down() -> ShuttingDown:
    """The error for a request whose answer has not begun at shutdown."""
    return ShuttingDown("The gateway is shutting down. Send the request again.", code="shutting_down")
