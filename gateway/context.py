"""The state of one request on its way through the house."""

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
from gateway.core.numbers import MOST_SEQUENCES, choices
from gateway.core.outcome import Ending, FailureStage, Outcome
from gateway.core.ports import CanonicalRequest, Grant, Lease, Trace
from gateway.core.prompt import TOKEN_BYTES, TokenizedPrompt, TokenSource
from gateway.core.request import LONG_BODY_BYTES, ChatRequest
from gateway.core.space import NO_SPACE, ModelVersion, SpaceGrant
from gateway.fleet.replica import Replica
from gateway.proxy.request_body import engine_body
from gateway.proxy.resume import ResumableStream
from gateway.tokenize import Encoder
from gateway.turns import Turns

CLIENT_GONE_STATUS = 499
"""What is counted for a client that left before it got a status (nginx's number for it)."""

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
    """A model as the flow needs it.

    Attributes:
        id: Its id.
        encoder: Its tokenizer.
        roots: From a request's cache salt (empty for none) and its prompt's variant to the hash that its chains start
            from.
        version: What it is at present: tokenizer, template, adapter, context limit.
        token_counts: Counts tokens of texts; None where only the engine can.
        template_tells_time: Whether its chat template prints the time.
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
    """Everything known of a request so far; each room's result is added as it comes."""

    request: ChatRequest
    """As it goes on: what was to be masked in it is masked, and its prompt canonicalized."""
    asked: ChatRequest
    """As the client sent it."""
    model: ServedModel
    grant: Grant
    source: str = ""
    """The client family it came from."""
    trace: Trace | None = None
    """Where it is told to whoever collects traces; None if nobody does."""
    space: SpaceGrant = NO_SPACE
    """The prefix space it was led into."""
    canonical: CanonicalRequest | None = None
    """What canonicalization did; None before it had its turn."""
    prompt: TokenizedPrompt = field(default_factory=lambda: TokenizedPrompt((), TokenSource.TEXT))
    chains: dict[int, list[BlockChain]] = field(default_factory=dict)
    """The prompt's block chains, by block size: replicas of a model may differ in theirs."""
    indexed: bool = True
    """False once the index failed for this request."""
    tried: set[ReplicaId] = field(default_factory=set)
    """Replicas that failed it."""
    failures: list[FailureStage] = field(default_factory=list)
    """What failed, attempt by attempt."""
    deadline: float = math.inf
    """When the client stops waiting, in monotonic seconds."""
    ahead: Mapping[Target, int] = field(default_factory=dict)
    """Tokens of requests that wait in the gateway and will be sent before it, by where they are expected to go."""
    barred: Sequence[ReplicaPrefix] = ()
    """Targets of the model that were no candidates, and what they held."""
    decision: Decision | None = None
    replica: Replica | None = None
    stream: ResumableStream | None = None
    """Where its answer goes if it can be continued at another replica."""
    sent_chains: Sequence[BlockChain] = ()
    """Those of ``chains`` with the replica's block size, as it was at dispatch."""
    lease: Lease | None = None
    dispatched_at: float = 0.0
    prefill_ahead: int = 0
    """Uncached tokens in flight at the target when the request was sent there."""
    outcome: Outcome | None = None
    replies: Sequence[ReplyChoice] = ()
    """The answer's choices, as far as they are known."""
    stages: list[tuple[str, float]] = field(default_factory=list)
    _lap_at: float = field(default_factory=time.perf_counter)
    _engine_body: tuple[ChatRequest, bytes] | None = None

    def lap(self, stage: str) -> None:
        """A room is done: note how long it took."""
        now = time.perf_counter()
        self.stages.append((stage, now - self._lap_at))
        self._lap_at = now
        if self.trace is not None:
            self.trace.lap(stage)

    def resume_clock(self) -> None:
        """What went before (waiting for the replica) belongs to no room."""
        self._lap_at = time.perf_counter()
        if self.trace is not None:
            self.trace.resume()

    async def engine_body(self, request: ChatRequest, turns: Turns) -> bytes:
        """The body with which ``request`` (this one or its continuation) is sent; attempts share it."""
        if self._engine_body is None or self._engine_body[0] is not request:
            self._engine_body = (
                request,
                await turns.run(engine_body(request, self.space.salt), request.caller.tenant.id),
            )
        return self._engine_body[1]

    def drop_content(self) -> None:
        """The client gets the first event of a stream: unless another replica can continue it, nothing is sent again.

        What no later stage reads is freed, for a stream may last for hours.
        """
        if self.stream is not None:
            return
        self._engine_body = None
        freed = self.asked.drop_content()
        if freed and self.asked.dropped is not None:
            self.asked.dropped(freed)
        if self.request is not self.asked:
            self.request.drop_content()  # made here, and not counted
        if self.canonical is not None and len(self.canonical.told.asked) > LONG_BODY_BYTES:
            told = msgspec.structs.replace(self.canonical.told, asked=b"")
            self.canonical = dataclasses.replace(self.canonical, request=self.request, told=told)

    @property
    def begun(self) -> bool:
        """Whether it goes to another replica although its client has got the beginning of an answer."""
        return self.stream is not None and self.stream.begun

    @property
    def root(self) -> int:
        """Hash that the prompts' chains start from."""
        salt = self.space.salt if self.space.salt is not None else self.request.fields.get("cache_salt")
        return self.model.roots(salt if isinstance(salt, str) else "", self.prompt.variant)

    @property
    def affinity(self) -> str | None:
        """What the client says that it belongs together with."""
        return self.request.session or (self.canonical.affinity if self.canonical is not None else None)

    @property
    def applied_rules(self) -> Sequence[RuleName]:
        """The canonicalization rules that changed it, in their order."""
        return [rule for rule in RuleName if self.canonical is not None and rule in self.canonical.edits]

    @property
    def sequences(self) -> int:
        """What an engine counts the request as: every choice of every prompt is computed as a request of its own."""
        return min(max(len(self.prompt.parts), 1) * choices(self.request.fields), MOST_SEQUENCES)

    @property
    def beginning(self) -> int | bytes:
        """What stands for the prompt's beginning: its first block, or all of a prompt that has none."""
        for chains in self.chains.values():
            if chains and chains[0].hashes:
                return chains[0].hashes[0]
        return self.prompt.parts[0][: 64 * TOKEN_BYTES] if self.prompt.parts else b""

    @property
    def status(self) -> int:
        """Status the client got."""
        outcome = self.outcome
        assert outcome is not None
        if outcome.status is not None and (outcome.started or outcome.ending is Ending.COMPLETE):
            return outcome.status
        return _STATUS_OF.get(outcome.ending, UpstreamFailed.status)

    @property
    def prefilled(self) -> bool:
        """Whether the replica is known to have computed the prompt."""
        outcome = self.outcome
        return (
            outcome is not None
            and outcome.status == 200
            and (outcome.ending is Ending.COMPLETE or outcome.ttft_seconds is not None)
        )

    @property
    def declined(self) -> bool:
        """Whether the prompt was certainly not computed: nobody could be connected to, or the replica refused it.

        One that the client hung up on, or that broke off, may well have been.
        """
        outcome = self.outcome
        return outcome is not None and (
            outcome.ending is Ending.NOT_CONNECTED or (outcome.ending is Ending.COMPLETE and outcome.status != 200)
        )

    def failure(self) -> GatewayError | None:
        """What the client should be told, if it was told nothing yet.

        No connection could be made, the gateway could not wait any longer, or the replica failed before it answered.
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
            told = "The replica did not answer in time. Send the request again."
            return UpstreamTimeout(told, code="replica_timeout")
        return UpstreamFailed(
            "The replica broke off, or what it sent is no answer. Send the request again.", code="replica_disconnected"
        )


def expired() -> DeadlineExceeded:
    """What a client is told whose answer had not begun when its time was over."""
    return DeadlineExceeded(
        "The request took longer than it may take (`x-request-timeout`, or else `relay.total_timeout_seconds`).",
        code="deadline_exceeded",
    )


def shutting_down() -> ShuttingDown:
    """What a client is told whose answer had not begun when the gateway had to stop."""
    return ShuttingDown("The gateway is shutting down. Send the request again.", code="shutting_down")
