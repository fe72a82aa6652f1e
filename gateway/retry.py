"""Attempts of a request at replicas, and retries: a failed attempt is repeated at another replica as long as the client
has got no content of the answer.

``Attempts.attempt`` sends the request. A whole answer with status 200 ends it; for all else ``decide`` says whether the
attempt is retried.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import msgspec
import structlog

from gateway.context import Encoded, Placed, RequestContext, Served
from gateway.core.decision import Decision
from gateway.core.diagnosis import EXPLAINED
from gateway.core.engine_facts import EngineKind
from gateway.core.ids import ModelId, ReplicaId
from gateway.core.outcome import Ending, FailureStage, Outcome
from gateway.core.ports import Lease, PrefixIndex, Sink
from gateway.fleet.failures import failure_stage, record_answer, record_outcome
from gateway.fleet.fleet import Fleet
from gateway.fleet.rank_load import Ticket
from gateway.fleet.replica import Replica
from gateway.proxy import Forwarder, RetryBudget
from gateway.proxy.endings import broken_off
from gateway.proxy.resume import ResumableStream, is_resumable
from gateway.proxy.resume.joined_stream import reopened

_log = structlog.get_logger("gateway.flow")

# Looking up a member of an enum takes as long as five calls.
_OK = int(HTTPStatus.OK)
_COMPLETE = Ending.COMPLETE


_COLD_SHARE = 0.4
"""Share of the time without the cached prefix that a first token may take in any case."""


@dataclass(frozen=True, slots=True)
class RetryChances:
    """What decides, besides its stage, whether a failed attempt is retried.

    Attributes:
        is_slow: Whether it timed out although its replica works: another one would take as long.
        can_continue: Whether another replica can continue the stream that has begun.
        tries_left: How many further attempts the request may have.
        was_busy: Whether a replica was too busy for it before.
        other_replica: Whether another replica can take it.
        budget_left: Whether the retry budget allows one more retry.
    """

    is_slow: bool
    can_continue: bool
    tries_left: int
    was_busy: bool
    other_replica: bool
    budget_left: bool


@dataclass(frozen=True, slots=True)
class Retry:
    """The request is sent to another replica.

    Attributes:
        takes_budget: Whether the retry counts against the budget.
    """

    takes_budget: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """The attempt was the last one: the client gets the end of its answer, or an error."""


FINISH = Finish()


def decide(stage: FailureStage, chances: RetryChances) -> Retry | Finish:
    """Whether an attempt that failed is retried.

    Args:
        stage: The stage at which its replica failed.
        chances: The other conditions.
    """
    if chances.is_slow or chances.tries_left <= 0 or not chances.other_replica:
        return FINISH
    if stage is FailureStage.STREAM and not chances.can_continue:
        return FINISH
    if stage is FailureStage.BUSY and chances.was_busy:
        return FINISH  # a second replica was busy: assume that all are
    takes_budget = stage not in (FailureStage.CONNECT, FailureStage.REFUSED)  # nothing was computed
    return Retry(takes_budget) if chances.budget_left or not takes_budget else FINISH


class Attempt:
    """One attempt in flight: its share of the replica's load, and its lease in the index. A ``ForwardedAttempt``.

    Args:
        context: The request.
        placed: Its placement.
        index: Records which blocks the replica is about to compute.
        waiting: The models for which requests wait.
        on_capacity: Called when a replica of a model for which requests wait has less work.

    Attributes:
        placed: The same.
        dispatched_at: When it was sent, in monotonic seconds.
        prefill_ahead: Uncached tokens left to compute at the target then.
        expected_seconds: See ``InflightRequest``.
        lease: Its lease; None if it has none any more.
    """

    __slots__ = (
        "_context",
        "_index",
        "_on_capacity",
        "_prefill_timer",
        "_ticket",
        "_waiting",
        "begun",
        "body",
        "deadline",
        "dispatched_at",
        "expected_seconds",
        "is_retry",
        "lease",
        "own_headers",
        "placed",
        "prefill_ahead",
        "salt",
        "seam",
        "trace_headers",
    )

    def __init__(
        self,
        context: RequestContext,
        placed: Placed,
        index: PrefixIndex,
        waiting: Collection[ModelId],
        on_capacity: Callable[[ModelId], None],
    ) -> None:
        encoded, decision, replica = context.encoded, placed.decision, placed.replica
        self._context = context
        self._index = index
        self._waiting = waiting
        self._on_capacity = on_capacity
        self.placed = placed
        self.dispatched_at = context.dispatched_at = now = time.monotonic()
        self._ticket: Ticket = replica.dispatch(
            decision.target.rank, encoded.tokens - decision.held_tokens, now, encoded.sequences
        )
        self.prefill_ahead = self._ticket.prefill_ahead
        self.expected_seconds = _expected_seconds(encoded, decision, replica, self.prefill_ahead)
        self.lease: Lease | None = index.begin(placed.chains, decision.target, now) if placed.indexed else None
        self.body = context.body
        self.salt = encoded.space.salt
        self.own_headers: Sequence[tuple[bytes, bytes]] = _own_headers(context, decision, now)
        trace, origin = context.trace, replica.origin
        self.trace_headers = None if trace is None else trace.relay(decision, origin.host, origin.port)
        self.deadline = context.deadline
        self.begun = context.begun
        self.seam = context.seam
        self.is_retry = bool(context.tried)
        self._prefill_timer: asyncio.TimerHandle | None = None
        if not encoded.request.stream:
            # The first byte arrives with the last one, and does not show when the prompt is computed.
            seconds = decision.queue_seconds + decision.prefill_seconds
            self._prefill_timer = asyncio.get_running_loop().call_later(seconds, self._prefill_done)

    def retry_after_seconds(self) -> int:
        """See ``ForwardedAttempt``: until the first replica is expected to have worked off its queue."""
        return max(math.ceil(min(candidate.queue_seconds for candidate in self.placed.decision.candidates)), 1)

    def on_content(self) -> None:
        """See ``ForwardedAttempt``."""
        self._prefill_done()
        if self.lease is not None:
            self._index.computed(self.lease)
        self._context.drop_content()

    def done(self) -> None:
        """The attempt is over: it is no load any more."""
        if self._prefill_timer is not None:
            self._prefill_timer.cancel()
        self._ticket.done(time.monotonic())
        if self._waiting:
            self._on_capacity(self._context.encoded.model.id)

    def abandon(self) -> None:
        """Withdraw what the index expected of the replica's cache."""
        if self.lease is not None:
            self._index.abandon(self.lease)
            self.lease = None

    def _prefill_done(self) -> None:
        """The prompt is computed, or should be by now."""
        self._ticket.prefill_done(time.monotonic())
        if self._waiting:
            self._on_capacity(self._context.encoded.model.id)


class Attempts:
    """Sends a request to a replica, and retries it if that fails.

    Args:
        fleet: The replicas.
        forwarder: Sends one attempt.
        index: Records which blocks the replica is about to compute.
        budget: Limits retries to a share of requests.
        retries: Maximum retries of one request.
        waiting: The models for which requests wait.
        on_capacity: Called when a replica of a model for which requests wait has less work.
        resume: Whether a plain text stream that its replica breaks off is continued at another replica.

    Attributes:
        begin: To be called for each request: counts it for the budget, given monotonic seconds.
    """

    def __init__(
        self,
        fleet: Fleet,
        forwarder: Forwarder,
        index: PrefixIndex,
        budget: RetryBudget,
        *,
        retries: int,
        waiting: Collection[ModelId],
        on_capacity: Callable[[ModelId], None],
        resume: bool = False,
    ) -> None:
        self.begin = budget.request
        self._fleet = fleet
        self._forwarder = forwarder
        self._index = index
        self._budget = budget
        self._retries = retries
        self._waiting = waiting
        self._on_capacity = on_capacity
        self._resume = resume

    async def attempt(self, context: RequestContext, placed: Placed, sink: Sink) -> Served | None:
        """Send the request to one replica.

        Args:
            context: The request.
            placed: Its placement.
            sink: Receives the answer.

        Returns:
            The result. None: the attempt failed, the client has no content of it that another replica could not go on
            from, and the request is to be placed again at another replica.
        """
        encoded, replica = context.encoded, placed.replica
        stream = self._stream(context, sink) if self._resume else None
        attempt = Attempt(context, placed, self._index, self._waiting, self._on_capacity)
        if stream is None:
            request = encoded.request
        else:
            stream.attempt(attempt.dispatched_at)
            request, sink = stream.request, stream
            if stream.has_content:
                _log.info("stream_continued", request_id=request.request_id, replica=replica.id)
        try:
            relay = await self._forwarder.forward(request, sink, attempt, replica, placed.decision.target.rank)
            context.head_sent = context.head_sent or relay.started
            answered = stream is None and relay.status == _OK and relay.ending is _COMPLETE
            retried = not answered and self._is_retried(context, attempt, relay.outcome())
            outcome = relay.outcome() if retried else await relay.finish()
        except BaseException:
            attempt.abandon()
            raise
        finally:
            attempt.done()
        if stream is not None:
            outcome = stream.note(outcome)
        if context.trace is not None:
            context.trace.relayed(outcome)
        shown = not context.encoded.request.path.endswith("tokenize")  # which engines answer without computing
        if outcome.status == _OK and outcome.ending is _COMPLETE and shown:
            record_answer(replica, attempt.dispatched_at, time.monotonic())
        else:
            self._record_outcome(context, attempt, outcome)
        if retried:
            if stream is None and context.begun and context.seam is None:
                context.seam = reopened(b"".join(outcome.answer))
            attempt.abandon()
            context.resume_clock()
            return None
        resumed = False
        if stream is not None:
            outcome, resumed = _joined(context, attempt, stream, outcome), stream.pieced
        if attempt.begun and not outcome.started:
            outcome = _of_begun(outcome)
        return Served(placed, outcome, context.dispatched_at, attempt.prefill_ahead, attempt.lease, resumed)

    def give_up(self, context: RequestContext, placed: Placed, sink: Sink) -> Served:
        """End a stream that has begun with an error event: no replica is left to continue it.

        Args:
            context: The request.
            placed: The placement of its last attempt.
            sink: Receives the error event.
        """
        stream = context.stream
        ending = Ending.CLIENT_GONE if sink.gone else Ending.BROKEN
        sink.write(broken_off(Ending.BROKEN), more=False)
        outcome = _of_begun(Outcome(ending, None, False, None, 0.0, None, streamed=True))
        if stream is not None:
            outcome = stream.outcome(outcome)
        return Served(placed, outcome, context.dispatched_at, 0, None, stream is not None and stream.pieced)

    def _stream(self, context: RequestContext, sink: Sink) -> ResumableStream | None:
        """The request's stream if another replica can continue it."""
        encoded = context.encoded
        if context.stream is None and is_resumable(encoded.request):
            known = None if encoded.is_text else encoded.tokens
            context.stream = ResumableStream(encoded.request, sink, encoded.model.encoder.local, known)
        return context.stream

    def _is_retried(self, context: RequestContext, attempt: Attempt, outcome: Outcome) -> bool:
        """Decide whether an attempt is retried; a retry is counted."""
        if context.stream is not None:
            outcome = context.stream.note(outcome)  # if the engine's first event is an error, the client has no content
        ending = outcome.ending
        stage = failure_stage(ending, outcome.status, started=outcome.has_content)
        if stage is None:
            return False
        now, failed = time.monotonic(), attempt.placed.replica
        verdict = decide(
            stage,
            RetryChances(
                is_slow=_is_slow_answer(attempt, ending, streamed=context.encoded.request.stream),
                can_continue=stage is FailureStage.STREAM and self._can_continue(context),
                tries_left=self._retries - len(context.tried),
                was_busy=FailureStage.BUSY in context.failures,
                other_replica=self._has_other_replica(context.encoded, {*context.tried, failed.id}, now),
                budget_left=self._budget.is_left(now),
            ),
        )
        if isinstance(verdict, Finish):
            return False
        context.tried.add(failed.id)
        if verdict.takes_budget:
            self._budget.take(now)
        return True

    def _record_outcome(self, context: RequestContext, attempt: Attempt, outcome: Outcome) -> None:
        """Record the outcome of an attempt with its replica, and log a failure."""
        replica, request = attempt.placed.replica, context.encoded.request
        stage = failure_stage(outcome.ending, outcome.status, started=outcome.has_content)
        # A replica that refuses a path, or answers it by 500, may serve all others.
        is_of_path = bool(request.path) and stage in (None, FailureStage.REFUSED)
        if not is_of_path and not _is_slow_answer(attempt, outcome.ending, streamed=request.stream):
            record_outcome(replica, outcome, attempt.dispatched_at, time.monotonic())
        if stage is None:
            return
        context.failures.append(stage)
        _log.warning(
            "attempt_failed",
            request_id=request.request_id,
            replica=replica.id,
            stage=str(stage),
            ending=str(outcome.ending),
            status=outcome.status,
            problem=outcome.problem,
        )

    def _can_continue(self, context: RequestContext) -> bool:
        """Whether a stream that broke off can be continued; verified with vLLM only."""
        kinds = {
            replica.facts.kind
            for replica in self._fleet.of(context.encoded.model.id)
            if replica.up and replica.serves()
        }
        return context.stream is not None and kinds == {EngineKind.VLLM} and context.stream.can_go_on()

    def _has_other_replica(self, encoded: Encoded, tried: set[ReplicaId], now: float) -> bool:
        """Whether a replica that was not tried can take the request."""
        request = encoded.request
        return request.warmup_target is None and bool(
            self._fleet.routable(encoded.model.id, now, tried, request.caller.tenant.regions, request.path)
        )


def _joined(context: RequestContext, attempt: Attempt, stream: ResumableStream, outcome: Outcome) -> Outcome:
    """The outcome of a stream that several replicas may have contributed to; the last attempt's is given."""
    if stream.resumed and not outcome.has_content:
        attempt.abandon()  # it is unknown what the last replica computed
    if stream.pieced:
        context.dispatched_at = stream.began_at
    return stream.outcome(outcome)


def _of_begun(outcome: Outcome) -> Outcome:
    """The outcome of a stream of which the client has the beginning, from that of a last attempt that added nothing."""
    failed = outcome.ending in (Ending.COMPLETE, Ending.NOT_CONNECTED, Ending.REFUSED)
    ending = Ending.BROKEN if failed else outcome.ending
    return msgspec.structs.replace(outcome, ending=ending, status=_OK, started=True)


def _is_slow_answer(attempt: Attempt, ending: Ending, *, streamed: bool) -> bool:
    """Whether an attempt timed out although its replica works.

    Without streaming nothing arrives before the whole answer. A replica that answered other requests meanwhile is not
    stuck, and another replica would take as long.
    """
    return ending is Ending.TIMED_OUT and not streamed and attempt.placed.replica.answered_at >= attempt.dispatched_at


def _expected_seconds(encoded: Encoded, decision: Decision, replica: Replica, prefill_ahead: int) -> float:
    """Expected time from now to the first content; see ``InflightRequest``."""
    if encoded.request.path:
        return math.inf
    speed = replica.speed
    computed = prefill_ahead + encoded.tokens - decision.held_tokens
    seconds = speed.longest_first_content(computed, streamed=encoded.request.stream)
    # With the wait for a slot. A silence there is part of the cost, but it is not work.
    seconds = max(seconds, decision.queue_seconds - replica.silence.seconds)
    # The cached prefix may be gone.
    return max(seconds, _COLD_SHARE * (seconds + decision.held_tokens * speed.rates.prefill_seconds_per_token))


def _own_headers(context: RequestContext, decision: Decision, now: float) -> list[tuple[bytes, bytes]]:
    """The gateway's response headers: its decision, token counts and rate limits as of ``now`` (monotonic seconds)."""
    encoded = context.encoded
    headers = [
        (b"x-request-id", encoded.request.request_id.encode()),
        (b"x-gateway-replica", decision.target.replica.encode()),
    ]
    if encoded.request.path:
        return [*headers, *context.grant.headers(now)]
    headers += [
        (b"x-gateway-decision", decision.kind.encode()),
        (b"x-gateway-prompt-tokens", b"%d" % encoded.tokens),
        (b"x-gateway-prefix-tokens", b"%d" % decision.held_tokens),
        *context.grant.headers(now),
    ]
    if encoded.asked.assignment is not None:
        headers.append((b"x-gateway-group", encoded.asked.assignment.group.encode()))
    if encoded.rules:
        headers.append((b"x-gateway-canonical", ",".join(encoded.rules).encode()))
    if encoded.cut_messages:
        headers.append((b"x-gateway-cut-messages", str(encoded.cut_messages).encode()))
    if encoded.answer_limit:
        headers.append((b"x-gateway-warning", b"max_tokens lowered to %d" % encoded.answer_limit))
    if context.diagnosis is not None:
        headers.append((EXPLAINED, context.diagnosis.header()))
    if encoded.is_text:
        # The counts above are estimates from the text, not the model's tokens.
        headers.append((b"x-gateway-tokens", b"estimated"))
    return headers
