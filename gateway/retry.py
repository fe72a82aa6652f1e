"""Attempts at a request: sent to one replica, then to another one as long as its client has got nothing."""

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
    """Sends requests, and decides whether one is sent again.

    Args:
        fleet: The replicas.
        forwarder: Sends.
        index: Is told what replicas are about to compute.
        budget: How many requests may be sent again.
        retries: How many times one may be.
        freed: Told whenever a replica of a model has less to do.
        resume: Whether a plain text stream whose replica dies in the middle is continued elsewhere.
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
        freed: Callable[[ModelId], None],
        resume: bool = False,
    ) -> None:
        self._fleet = fleet
        self._forwarder = forwarder
        self._index = index
        self._budget = budget
        self._turns = turns
        self._retries = retries
        self._freed = freed
        self._resume = resume

    def begin(self, now: float) -> None:
        """A request comes, at ``now`` (monotonic seconds)."""
        self._budget.request(now)

    async def attempt(self, trip: RequestContext, target: Target, replica: Replica, sink: Sink) -> Outcome | None:
        """One attempt.

        Args:
            trip: The request; its decision is made, and its chains are those of the replica.
            target: Where it goes.
            replica: The same.
            sink: Where the answer goes.

        Returns:
            What came of it. None: the replica failed the request, its client was told nothing of that, and another
            one is left to try.
        """
        decision = trip.decision
        assert decision is not None
        trip.replica = replica
        trip.dispatched_at = time.monotonic()
        ticket = replica.dispatch(target.rank, trip.prompt.tokens - decision.held_tokens, trip.sequences)
        trip.prefill_ahead = ticket.prefill_ahead
        if trip.indexed:
            trip.lease = self._index.begin(trip.sent_chains, target, trip.dispatched_at)
        if self._resume and trip.stream is None and is_resumable(trip.request):
            trip.stream = _resumable(trip, sink)
        stream = trip.stream
        if stream is not None:
            stream.attempt(trip.dispatched_at)
        if trip.begun:
            _log.info("stream_continued", request_id=trip.request.request_id, replica=replica.id)

        def first_byte() -> None:
            self._prefilled(trip, ticket)
            if trip.lease is not None:
                self._index.computed(trip.lease)

        # Without a stream the first byte comes with the last one, so the end of the prefill has to be estimated.
        estimate = next(c.queue_seconds + c.prefill_seconds for c in decision.candidates if c.target == target)
        later = asyncio.get_running_loop().call_later
        timer = None if trip.request.stream else later(estimate, self._prefilled, trip, ticket)
        request = trip.request if stream is None else stream.request
        terms = self._terms(trip, request, replica)
        again = False

        def withhold(ending: Ending, status: int | None, started: bool) -> bool:
            nonlocal again
            # Of an engine that first of all says that it failed the client has got nothing.
            ending, started = (ending, started) if stream is None else stream.ended(ending, started=started)
            again = not _takes_long(trip, ending) and self._tries_again(
                trip, failure_stage(ending, status, started=started)
            )
            return again

        try:
            outcome = await self._forwarder.forward(
                request,
                replica,
                target.rank,
                sink if stream is None else stream,
                terms=terms,
                on_first_byte=first_byte,
                on_started=trip.drop_content,
                withhold=withhold,
            )
        except BaseException:
            self.abandon(trip)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._done(trip, ticket)
        if stream is not None:
            outcome = stream.note(outcome)
        if trip.trace is not None:
            trip.trace.relayed(outcome)
        self._judge(trip, replica, outcome)
        if not again:
            return outcome if stream is None else self._pieced(trip, stream, outcome)
        self.abandon(trip)
        trip.resume_clock()
        return None

    async def give_up(self, trip: RequestContext, sink: Sink) -> Outcome:
        """No replica is left for the rest of a stream that has begun: its client is told so."""
        assert trip.stream is not None
        ending = Ending.BROKEN
        try:
            await sink.write(broken_off(ending), more=False)
        except asyncio.CancelledError:
            ending = ending_of_cancellation(sink)
        return trip.stream.outcome(Outcome(ending, None, False, None, 0.0, None))

    def _prefilled(self, trip: RequestContext, ticket: Ticket) -> None:
        ticket.prefill_done()
        self._freed(trip.model.id)

    def _done(self, trip: RequestContext, ticket: Ticket) -> None:
        ticket.done()
        self._freed(trip.model.id)

    def abandon(self, trip: RequestContext) -> None:
        """What was expected of the replica's cache will not come."""
        if trip.lease is not None:
            self._index.abandon(trip.lease)
            trip.lease = None

    def _judge(self, trip: RequestContext, replica: Replica, outcome: Outcome) -> None:
        """What the attempt says about the replica."""
        if not _takes_long(trip, outcome.ending):
            record_outcome(replica, outcome, trip.dispatched_at, time.monotonic())
        stage = failure_stage(outcome.ending, outcome.status, started=outcome.started)
        if stage is None:
            return
        trip.failures.append(stage)
        _log.warning(
            "attempt_failed",
            request_id=trip.request.request_id,
            replica=replica.id,
            stage=str(stage),
            ending=str(outcome.ending),
            status=outcome.status,
            problem=outcome.problem,
        )

    def _tries_again(self, trip: RequestContext, stage: FailureStage | None) -> bool:
        """Whether another replica gets the request, of which the client has seen nothing yet."""
        assert trip.replica is not None
        if stage is None or (stage is FailureStage.STREAM and not self._goes_on(trip)):
            return False
        if len(trip.tried) >= self._retries:
            return False
        if stage is FailureStage.BUSY and stage in trip.failures:
            return False  # they all are
        trip.tried.add(trip.replica.id)
        if self._left(trip) and (stage is FailureStage.CONNECT or self._budget.take(time.monotonic())):
            return True
        trip.tried.discard(trip.replica.id)
        return False

    def _goes_on(self, trip: RequestContext) -> bool:
        """Whether a stream that broke off can be continued: only vLLM is known to do as it is asked."""
        kinds = {replica.facts.kind for replica in self._fleet.of(trip.model.id) if replica.up}
        return trip.stream is not None and kinds == {EngineKind.VLLM} and trip.stream.can_go_on()

    def _pieced(self, trip: RequestContext, stream: ResumableStream, outcome: Outcome) -> Outcome:
        """What came of a request whose stream may have come from several replicas."""
        if stream.resumed and not outcome.started:
            self.abandon(trip)  # the last of them computed nothing that is known of
        if stream.pieced:
            trip.dispatched_at = stream.began_at
        return stream.outcome(outcome)

    def _left(self, trip: RequestContext) -> bool:
        """Whether there is another replica to try."""
        regions = trip.request.caller.tenant.regions
        return trip.request.warms is None and bool(
            self._fleet.routable(trip.model.id, time.monotonic(), trip.tried, regions)
        )

    def _terms(self, trip: RequestContext, request: ChatRequest, replica: Replica) -> ForwardOptions:
        """What goes with ``request``, which is the trip's or its continuation."""
        decision, trace, origin = trip.decision, trip.trace, replica.origin
        assert decision is not None
        return ForwardOptions(
            body=partial(trip.engine_body, request, self._turns),
            own_headers=_own_headers(trip),
            trace_headers=None if trace is None else trace.relay(decision, origin.host, origin.port),
            deadline=trip.deadline,
            retry_after_seconds=_retry_after(decision),
            begun=trip.begun,
        )


def _takes_long(trip: RequestContext, ending: Ending) -> bool:
    """Whether an answer only takes longer than it may.

    One that is no stream says nothing until it is whole. As long as its replica answers others it is not stuck, and
    another one would take as long.
    """
    replica = trip.replica
    assert replica is not None
    return ending is Ending.TIMED_OUT and not trip.request.stream and replica.answered_at >= trip.dispatched_at


def _resumable(trip: RequestContext, sink: Sink) -> ResumableStream:
    known = None if trip.prompt.source is TokenSource.TEXT else trip.prompt.tokens
    return ResumableStream(trip.request, sink, trip.model.encoder.local, known)


def _retry_after(decision: Decision) -> int:
    """Whole seconds until the first of the replicas should have done what is waiting there."""
    return max(math.ceil(min(candidate.queue_seconds for candidate in decision.candidates)), 1)


def _own_headers(trip: RequestContext) -> list[tuple[bytes, bytes]]:
    """What the gateway says about its decision."""
    decision = trip.decision
    assert decision is not None
    headers = [
        (b"x-request-id", trip.request.request_id.encode()),
        (b"x-gateway-replica", decision.replica.encode()),
        (b"x-gateway-decision", decision.kind.encode()),
        (b"x-gateway-prompt-tokens", str(trip.prompt.tokens).encode()),
        (b"x-gateway-prefix-tokens", str(decision.held_tokens).encode()),
        *trip.grant.headers(time.monotonic()),
    ]
    if rules := trip.applied_rules:
        headers.append((b"x-gateway-canonical", ",".join(rules).encode()))
    if trip.canonical is not None and trip.canonical.cut_messages:
        headers.append((b"x-gateway-cut-messages", str(trip.canonical.cut_messages).encode()))
    if trip.prompt.source is TokenSource.TEXT:
        # The counts above are then counts of stand-ins; nobody should take them for the model's.
        headers.append((b"x-gateway-tokens", b"estimated"))
    return headers
