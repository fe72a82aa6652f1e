"""One request in the flow: the results of its stages, and what changes while it is worked on.

``Encoded``, ``Placed`` and ``Served`` are the results. Each stage gets those of the stages before it. The stages before
placement fill in one ``Encoded``, because a request that one of them refuses is recorded with what there is.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gateway.canon.token_counts import TokenCounts
from gateway.core.block_chain import BlockChain
from gateway.core.canonical import Canonicalized, RuleName
from gateway.core.decision import Decision
from gateway.core.diagnosis import PromptDiagnosis
from gateway.core.errors import DeadlineExceeded, GatewayError, NoReplica, ShuttingDown, UpstreamFailed, UpstreamTimeout
from gateway.core.explanation import ReplicaPrefix
from gateway.core.ids import ModelId, ReplicaId, Target
from gateway.core.numbers import CHOICES, MAX_SEQUENCES, choices
from gateway.core.outcome import Ending, FailureStage, Outcome
from gateway.core.ports import CanonicalRequest, Grant, Lease
from gateway.core.prompt import TokenizedPrompt, TokenSource
from gateway.core.request import LONG_BODY_BYTES, ChatRequest
from gateway.core.space import NO_SPACE, ModelVersion, SpaceGrant
from gateway.fleet.failures import REFUSALS, not_served
from gateway.fleet.prompt_rules import PromptRules
from gateway.fleet.replica import Replica
from gateway.proxy.request_body import EngineBody
from gateway.proxy.resume import ResumableStream
from gateway.proxy.resume.joined_stream import ReopenedStream
from gateway.telemetry import Trace
from gateway.tokenize.encoder import Encoder

CLIENT_GONE_STATUS = 499
"""Recorded for a client that disconnects before it gets a status (nginx uses the same number)."""

_STATUS_OF = {
    Ending.NOT_CONNECTED: NoReplica.status,
    Ending.BROKEN: UpstreamFailed.status,
    Ending.REFUSED: UpstreamFailed.status,
    Ending.TIMED_OUT: UpstreamTimeout.status,
    Ending.EXPIRED: DeadlineExceeded.status,
    Ending.INTERRUPTED: ShuttingDown.status,
    Ending.CLIENT_GONE: CLIENT_GONE_STATUS,
}

# Looking up a member of an enum takes as long as several other look-ups.
_COMPLETE = Ending.COMPLETE
_TEXT = TokenSource.TEXT

_CHOICES = frozenset(CHOICES)
_NO_PROMPT = TokenizedPrompt((), TokenSource.TEXT)
_UNCHANGED = Canonicalized()


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A served model: its encoder, and its present version.

    Attributes:
        id: Its id.
        encoder: Its tokenizer.
        version: Returns the present version: tokenizer, template, adapter, context limit.
        token_counts: Counts tokens of texts; None where only the engine can tokenize.
        template_tells_time: Whether its chat template prints the current time.
        tools_first: Whether its chat template prints tools in front of the system message.
        rules: What its replicas make of chat requests.
    """

    id: ModelId
    encoder: Encoder
    version: Callable[[], ModelVersion]
    token_counts: TokenCounts | None = None
    template_tells_time: bool = False
    tools_first: bool = False
    rules: PromptRules | None = None


class Encoded(msgspec.Struct, eq=False):
    """A request whose prompt is encoded. The stages before placement fill it in; later ones only read it.

    A request that is refused before is recorded with what there is: the fields after ``source`` have the values of a
    request without a space and a prompt until their stage has ended.

    Attributes:
        asked: The request as the client sent it.
        request: As sent to engines: personal data masked, prompt canonicalized.
        model: Its model.
        source: The client family, from the request's headers.
        space: The prefix space it belongs to.
        canonical: The part of the request record about canonicalization; without the body of a long request.
        rules: The canonicalization rules that changed it, in the order of ``RuleName``.
        cut_messages: Messages left out of a conversation that became too long.
        affinity: What the client keeps together, such as a session, qualified by its tenant; None for nothing.
        prompt: Its tokens.
        tokens: Their number.
        least_tokens: Lower bound of it, of the request as it was sent; 0 where tokens are not limited.
        sequences: Sequences that an engine computes for it: one per choice and prompt.
        answer_limit: What ``max_tokens`` was lowered to; 0 if it was not.
        is_text: Whether the prompt was not tokenized: its tokens are pieces of its text.
        root: Root hash of the prompt's chains.
    """

    asked: ChatRequest
    request: ChatRequest
    model: ServedModel
    source: str = ""
    space: SpaceGrant = NO_SPACE
    canonical: Canonicalized = _UNCHANGED
    rules: Sequence[RuleName] = ()
    cut_messages: int = 0
    affinity: str | None = None
    prompt: TokenizedPrompt = _NO_PROMPT
    tokens: int = 0
    least_tokens: int = 0
    sequences: int = 1
    answer_limit: int = 0
    is_text: bool = True
    root: int = 0


class Placed(msgspec.Struct, frozen=True, eq=False):
    """The placement of a request.

    Attributes:
        decision: The decision.
        replica: The replica of the chosen target.
        targets: The candidates.
        chains: The prompts' block chains with the replica's block size.
        excluded: Targets of the model that were no candidates, and the prefix they hold.
        indexed: Whether the index was searched; False after it failed for this request.
    """

    decision: Decision
    replica: Replica
    targets: Mapping[Target, Replica]
    chains: Sequence[BlockChain]
    excluded: Sequence[ReplicaPrefix]
    indexed: bool


class Served(msgspec.Struct, frozen=True, eq=False):
    """The end of a request that was sent to a replica.

    Attributes:
        placed: The placement of the last attempt.
        outcome: The outcome. Of a stream that several replicas contributed to, the outcome of the whole stream.
        dispatched_at: Monotonic seconds when the attempt was sent that began the answer.
        prefill_ahead: Uncached tokens left to compute at the target when the last attempt was sent.
        lease: Its lease in the index; None if it has none any more.
        resumed: Whether more than one replica contributed to the answer.
    """

    placed: Placed
    outcome: Outcome
    dispatched_at: float
    prefill_ahead: int
    lease: Lease | None
    resumed: bool = False


class RequestContext(msgspec.Struct, eq=False):
    """What changes while a request is worked on."""

    encoded: Encoded
    """The result of the stages before placement, as far as they have ended."""
    grant: Grant
    body: EngineBody
    """The body to send to replicas."""
    trace: Trace | None = None
    """Its trace; None if tracing is off."""
    deadline: float = math.inf
    """The request times out then; monotonic seconds."""
    chains: dict[int, list[BlockChain]] = {}
    """The prompts' block chains, by block size: replicas of a model may differ in block size."""
    indexed: bool = True
    """False after the index failed for this request."""
    placed: Placed | None = None
    """The last placement; None while the request waits in the queue."""
    tried: set[ReplicaId] = set()
    """Replicas whose attempt failed."""
    failures: list[FailureStage] = []
    """The stage at which each failed attempt failed."""
    dispatched_at: float = 0.0
    """When the last attempt was sent; monotonic seconds."""
    head_sent: bool = False
    """Whether the client has the head of the answer, and perhaps events without content."""
    seam: ReopenedStream | None = None
    """Joins the next replica's stream to these events; None if there are none."""
    stream: ResumableStream | None = None
    """Wraps the sink if the stream can be continued at another replica."""
    diagnosis: PromptDiagnosis | None = None
    """The comparison with the earlier request that the client names; None if it names none, or if it is not ready."""
    stages: list[tuple[str, float]] = []
    """Stages that have ended, and their seconds."""
    _stage_began_at: float = msgspec.field(default_factory=time.perf_counter)

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

    def drop_content(self) -> None:
        """Free the parsed body and what no later stage reads: a stream may last for hours.

        Called at the first content of a stream. Does nothing while another replica could still continue it.
        """
        if self.stream is not None:
            return
        self.body.drop()
        asked, request = self.encoded.asked, self.encoded.request
        freed = asked.drop_content()
        if freed and asked.dropped is not None:
            asked.dropped(freed)
        if request is not asked:
            request.drop_content()  # a copy made by the gateway: not part of ``held_bytes``

    @property
    def begun(self) -> bool:
        """Whether the client has the beginning of a stream: another replica's goes on in the same answer."""
        return self.head_sent if self.stream is None else self.stream.begun


def set_canonical(encoded: Encoded, canonical: CanonicalRequest) -> None:
    """Fill in the result of canonicalization."""
    request, record = canonical.request, canonical.record
    if len(record.asked) > LONG_BODY_BYTES:
        record = msgspec.structs.replace(record, asked=b"")  # request records omit it
    encoded.request, encoded.canonical = request, record
    if request.identity.affinity:
        encoded.affinity = request.qualified(request.identity.affinity)
    if canonical.edits:
        encoded.rules = [rule for rule in RuleName if rule in canonical.edits]
        encoded.cut_messages = canonical.cut_messages


def set_prompt(encoded: Encoded, prompt: TokenizedPrompt, root: int) -> None:
    """Fill in the prompt.

    Args:
        encoded: The request; canonicalized.
        prompt: Its tokens.
        root: Root hash of their chains.
    """
    encoded.prompt, encoded.root = prompt, root
    encoded.tokens = prompt.tokens
    encoded.is_text = prompt.source is _TEXT
    sequences, fields = len(prompt.parts) or 1, encoded.request.fields
    if not _CHOICES.isdisjoint(fields):
        sequences *= choices(fields)
    encoded.sequences = min(sequences, MAX_SEQUENCES)


def response_status(outcome: Outcome) -> int:
    """The HTTP status that the client got."""
    if outcome.status is not None and (outcome.started or outcome.ending is _COMPLETE):
        return outcome.status
    return _STATUS_OF.get(outcome.ending, UpstreamFailed.status)


def is_prefilled(outcome: Outcome) -> bool:
    """Whether the replica certainly computed the prompt."""
    return outcome.status == 200 and (outcome.ending is _COMPLETE or outcome.ttft_seconds is not None)


def is_declined(outcome: Outcome) -> bool:
    """Whether the prompt was certainly not computed: no connection was made, or the replica refused the request.

    After a disconnect of the client or of the replica, the prompt may have been computed.
    """
    if outcome.ending in (Ending.NOT_CONNECTED, Ending.REFUSED):
        return True
    return outcome.ending is Ending.COMPLETE and outcome.status != 200


def response_failure(outcome: Outcome, model: ModelId, path: str = "") -> GatewayError | None:
    """The error to send, if the client has got nothing yet; None otherwise.

    No replica could be connected to, a timeout expired, or the replica failed before it answered.
    """
    if outcome.started or outcome.ending in (Ending.COMPLETE, Ending.CLIENT_GONE):
        return None
    if outcome.ending is Ending.NOT_CONNECTED:
        return NoReplica(
            f"No replica of model {model!r} can be connected to. Try again in a moment.", code="no_replica"
        )
    if outcome.ending is Ending.REFUSED:
        if path and outcome.status in (404, 405):
            return not_served(path, model)
        return UpstreamFailed(
            f"No replica of model {model!r} takes the gateway's requests: {REFUSALS[outcome.status or 0][0]}. The"
            " gateway's log (`attempt_failed`) says what to correct.",
            code="replica_refused",
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
