"""Retries: picks the next replica after a failed attempt, until the first byte has been sent to the client."""

import asyncio
import math
import time
from collections.abc import Callable
from functools import partial

import structlog

from gateway.context import RequestContext
from gateway.core.decision import Decision
from gateway.core.engine_facts import EngineKind
from gateway.core.ids import ModelId, Target
from gateway.core.outcome import Ending, FailureStage, Outcome
from gateway.core.ports import PrefixIndex, Sink
from gateway.core.prompt import TokenSource
from gateway.core.request import ChatRequest
from gateway.fleet.failures import failure_stage, record_outcome
from gateway.fleet.fleet import Fleet
from gateway.fleet.rank_load import Ticket
from gateway.fleet.replica import Replica
from gateway.proxy import Forwarder, ForwardOptions, RetryBudget
from gateway.proxy.forward import ending_of_cancellation
from gateway.proxy.response import broken_off
from gateway.proxy.resume import ResumableStream, is_resumable
from gateway.turns import Turns

_log = structlog.get_logger("gateway.flow")


class Attempts:
    """Sends a request to a replica, and decides whether a failed attempt is retried.

    Args:
        fleet: The replicas.
        forwarder: Sends one attempt.
        index: Records which blocks the replica is about to compute.
        budget: Limits retries to a share of requests.
        turns: Runs long work in portions.
        retries: Maximum retries of one request.
        on_capacity: Called when a replica of a model has less work.
        resume: Whether a plain text stream that its replica breaks off is continued at another replica.
    """

    def __init__(
        self,
        fleet: Fleet,
        forwarder: Forwarder,
        index: PrefixIndex,
        budget: RetryBudget,
        turns: Turns,
        *,
        retries: int,
        on_capacity: Callable[[ModelId], None],
        resume: bool = False,
    ) -> None:
        self._fleet = fleet
        self._forwarder = forwarder
        self._index = index
        self._budget = budget
        self._turns = turns
        self._retries = retries
        self._on_capacity = on_capacity
        self._resume = resume

    def begin(self, now: float) -> None:
        """Count a new request for the retry budget; ``now`` is monotonic seconds."""
        self._budget.request(now)

    async def attempt(self, context: RequestContext, target: Target, replica: Replica, sink: Sink) -> Outcome | None:
        """Send the request to one replica.

        Args:
            context: The request; ``decision`` and ``sent_chains`` are set.
            target: The chosen target.
            replica: The target's replica.
            sink: Receives the answer.

        Returns:
            The outcome. None: the attempt failed, nothing of it was sent to the client, and the request is to be
            retried at another replica.
        """
        decision = context.decision
        assert decision is not None
        context.replica = replica
        context.dispatched_at = time.monotonic()
        ticket = replica.dispatch(target.rank, context.prompt.tokens - decision.held_tokens, context.sequences)
        context.prefill_ahead = ticket.prefill_ahead
        if context.indexed:
            context.lease = self._index.begin(context.sent_chains, target, context.dispatched_at)
        if self._resume and context.stream is None and is_resumable(context.request):
            context.stream = _resumable(context, sink)
        stream = context.stream
        if stream is not None:
            stream.attempt(context.dispatched_at)
        if context.begun:
            _log.info("stream_continued", request_id=context.request.request_id, replica=replica.id)

        def first_byte() -> None:
            self._prefilled(context, ticket)
            if context.lease is not None:
                self._index.computed(context.lease)

        # Without a stream the first byte arrives with the last one, so the end of the prefill is estimated.
        estimate = next(c.queue_seconds + c.prefill_seconds for c in decision.candidates if c.target == target)
        later = asyncio.get_running_loop().call_later
        timer = None if context.request.stream else later(estimate, self._prefilled, context, ticket)
        request = context.request if stream is None else stream.request
        options = self._forward_options(context, request, replica)
        will_retry = False

        def withhold(ending: Ending, status: int | None, started: bool) -> bool:
            nonlocal will_retry
            # If the engine's first event is an error, the client has got nothing.
            ending, started = (ending, started) if stream is None else stream.ended(ending, started=started)
            will_retry = not _is_slow_answer(context, ending) and self._may_retry(
                context, failure_stage(ending, status, started=started)
            )
            return will_retry

        try:
            outcome = await self._forwarder.forward(
                request,
                replica,
                target.rank,
                sink if stream is None else stream,
                options=options,
                on_first_byte=first_byte,
                on_started=context.drop_content,
                withhold=withhold,
            )
        except BaseException:
            self.abandon(context)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._done(context, ticket)
        if stream is not None:
            outcome = stream.note(outcome)
        if context.trace is not None:
            context.trace.relayed(outcome)
        self._record_outcome(context, replica, outcome)
        if not will_retry:
            return outcome if stream is None else self._pieced(context, stream, outcome)
        self.abandon(context)
        context.resume_clock()
        return None

    async def give_up(self, context: RequestContext, sink: Sink) -> Outcome:
        """End a stream that has begun with an error event: no replica is left to continue it."""
        assert context.stream is not None
        ending = Ending.BROKEN
        try:
            await sink.write(broken_off(ending), more=False)
        except asyncio.CancelledError:
            ending = ending_of_cancellation(sink)
        return context.stream.outcome(Outcome(ending, None, False, None, 0.0, None))

    def _prefilled(self, context: RequestContext, ticket: Ticket) -> None:
        ticket.prefill_done()
        self._on_capacity(context.model.id)

    def _done(self, context: RequestContext, ticket: Ticket) -> None:
        ticket.done()
        self._on_capacity(context.model.id)

    def abandon(self, context: RequestContext) -> None:
        """Withdraw what the index expected of the replica's cache."""
        if context.lease is not None:
            self._index.abandon(context.lease)
            context.lease = None

    def _record_outcome(self, context: RequestContext, replica: Replica, outcome: Outcome) -> None:
        """Record the outcome of an attempt with its replica, and log a failure."""
        if not _is_slow_answer(context, outcome.ending):
            record_outcome(replica, outcome, context.dispatched_at, time.monotonic())
        stage = failure_stage(outcome.ending, outcome.status, started=outcome.started)
        if stage is None:
            return
        context.failures.append(stage)
        _log.warning(
            "attempt_failed",
            request_id=context.request.request_id,
            replica=replica.id,
            stage=str(stage),
            ending=str(outcome.ending),
            status=outcome.status,
            problem=outcome.problem,
        )

    def _may_retry(self, context: RequestContext, stage: FailureStage | None) -> bool:
        """Whether a failed attempt is retried at another replica; the client has got nothing of it."""
        assert context.replica is not None
        if stage is None or (stage is FailureStage.STREAM and not self._can_continue(context)):
            return False
        if len(context.tried) >= self._retries:
            return False
        if stage is FailureStage.BUSY and stage in context.failures:
            return False  # a second replica was busy: assume that all are
        context.tried.add(context.replica.id)
        if self._has_other_replica(context) and (stage is FailureStage.CONNECT or self._budget.take(time.monotonic())):
            return True
        context.tried.discard(context.replica.id)
        return False

    def _can_continue(self, context: RequestContext) -> bool:
        """Whether a stream that broke off can be continued; verified with vLLM only."""
        kinds = {replica.facts.kind for replica in self._fleet.of(context.model.id) if replica.up}
        return context.stream is not None and kinds == {EngineKind.VLLM} and context.stream.can_go_on()

    def _pieced(self, context: RequestContext, stream: ResumableStream, outcome: Outcome) -> Outcome:
        """The outcome of a request whose stream several replicas may have contributed to."""
        if stream.resumed and not outcome.started:
            self.abandon(context)  # it is unknown what the last replica computed
        if stream.pieced:
            context.dispatched_at = stream.began_at
        return stream.outcome(outcome)

    def _has_other_replica(self, context: RequestContext) -> bool:
        """Whether another replica can take the request."""
        regions = context.request.caller.tenant.regions
        return context.request.warms is None and bool(
            self._fleet.routable(context.model.id, time.monotonic(), context.tried, regions)
        )

    def _forward_options(self, context: RequestContext, request: ChatRequest, replica: Replica) -> ForwardOptions:
        """Options of an attempt; ``request`` is the context's or its continuation."""
        decision, trace, origin = context.decision, context.trace, replica.origin
        assert decision is not None
        return ForwardOptions(
            body=partial(context.engine_body, request, self._turns),
            own_headers=_own_headers(context),
            trace_headers=None if trace is None else trace.relay(decision, origin.host, origin.port),
            deadline=context.deadline,
            retry_after_seconds=_retry_after(decision),
            begun=context.begun,
        )


def _is_slow_answer(context: RequestContext, ending: Ending) -> bool:
    """Whether an attempt timed out although its replica works.

    Without streaming nothing arrives before the whole answer. A replica that answered other requests meanwhile is not
    stuck, and another replica would take as long.
    """
    replica = context.replica
    assert replica is not None
    return ending is Ending.TIMED_OUT and not context.request.stream and replica.answered_at >= context.dispatched_at


def _resumable(context: RequestContext, sink: Sink) -> ResumableStream:
    known = None if context.prompt.source is TokenSource.TEXT else context.prompt.tokens
    return ResumableStream(context.request, sink, context.model.encoder.local, known)


def _retry_after(decision: Decision) -> int:
    """Whole seconds until the first replica is expected to have worked off its queue."""
    return max(math.ceil(min(candidate.queue_seconds for candidate in decision.candidates)), 1)


def _own_headers(context: RequestContext) -> list[tuple[bytes, bytes]]:
    """The gateway's response headers: its decision, token counts and rate limits."""
    decision = context.decision
    assert decision is not None
    headers = [
        (b"x-request-id", context.request.request_id.encode()),
        (b"x-gateway-replica", decision.replica.encode()),
        (b"x-gateway-decision", decision.kind.encode()),
        (b"x-gateway-prompt-tokens", str(context.prompt.tokens).encode()),
        (b"x-gateway-prefix-tokens", str(decision.held_tokens).encode()),
        *context.grant.headers(time.monotonic()),
    ]
    if rules := context.applied_rules:
        headers.append((b"x-gateway-canonical", ",".join(rules).encode()))
    if context.canonical is not None and context.canonical.cut_messages:
        headers.append((b"x-gateway-cut-messages", str(context.canonical.cut_messages).encode()))
    if context.prompt.source is TokenSource.TEXT:
        # The counts above are estimates from the text, not the model's tokens.
        headers.append((b"x-gateway-tokens", b"estimated"))
    return headers
