"""Overload: decides which requests wait in the queue because every replica is busy."""

import time
from collections.abc import Callable, Collection, Mapping

from gateway.context import Encoded, Placed, RequestContext, expired
from gateway.core.ids import ModelId, Target
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica import Replica
from gateway.routing import Chooser
from gateway.routing.request_queue import Placement, RequestQueue

NOTHING_AHEAD: Mapping[Target, int] = {}
"""Queued prompt tokens in front of a request where no request waits."""


class BusyReplicas:
    """Which targets are too busy for another request.

    Args:
        fleet: The replicas.
        chooser: Estimates the waiting time at a target.
        busy_seconds: A target with more work in front of a new request than this is busy.
    """

    def __init__(self, fleet: Fleet, chooser: Chooser, busy_seconds: float) -> None:
        self.seconds = busy_seconds
        self._fleet = fleet
        self._chooser = chooser

    def __call__(self, model: ModelId) -> Mapping[Target, bool]:
        """Every target of a model that may get requests, and whether it is busy."""
        now = time.monotonic()
        return {
            target: self.of(replica, target, now)
            for replica in self._fleet.of(model)
            if replica.up is not False and not replica.draining
            for target in replica.targets
        }

    def of(self, replica: Replica, target: Target, now: float) -> bool:
        """Whether one target is busy."""
        return self._chooser.queue_seconds(replica.fair_load(target.rank, now)) > self.seconds


class Overload:
    """Decides which requests wait, and places them again when it is their turn.

    Args:
        queue: The queues of all models; None: no request waits.
        busy_replicas: Which targets are busy.
        fleet: The replicas.

    Attributes:
        on_capacity: Places queued requests: a replica of a model may have capacity again.
        queues: The models for which requests wait.
    """

    def __init__(self, queue: RequestQueue | None, busy_replicas: BusyReplicas, fleet: Fleet) -> None:
        self.on_capacity: Callable[[ModelId], None] = _nothing if queue is None else queue.on_capacity
        self.queues: Collection[ModelId] = () if queue is None else queue.queues
        self._queue = queue
        self._busy = busy_replicas
        self._fleet = fleet

    def ahead(self, encoded: Encoded) -> Mapping[Target, int]:
        """Queued prompt tokens in front of a request that arrives now, by target."""
        if self._queue is None or not self._queue.queues:
            return NOTHING_AHEAD
        return self._queue.ahead(encoded.model.id, encoded.request.caller.tenant)

    def waits(self, model: ModelId) -> bool:
        """Whether clients' requests for a model wait."""
        return self._queue is not None and model in self._queue.queues

    def holds(self, context: RequestContext, placed: Placed) -> bool:
        """Whether a placed request has to wait in the queue."""
        encoded = context.encoded
        if self._queue is None or encoded.request.warmup_target is not None:
            return False
        if context.stream is not None and context.stream.begun:
            return False  # the client already has the beginning of the answer
        if encoded.model.id in self._queue.queues:
            return True
        # Without prompts in prefill the decision's queue time, which is computed already, is an upper bound. Of the
        # oldest of such prompts it contains only what should be left.
        decision = placed.decision
        if (
            decision.queue_seconds <= self._busy.seconds
            and not placed.replica.loads[decision.target.rank].prefills.tokens
        ):
            return False
        return self._busy.of(placed.replica, decision.target, time.monotonic())

    async def turn(
        self, context: RequestContext, placed: Placed, place: Callable[[Mapping[Target, int]], Placed]
    ) -> Placed:
        """Wait in the queue. Afterwards the request has to be sent at once, to the returned placement.

        Args:
            context: The request.
            placed: Its placement.
            place: Places it again with the present loads, given the prompt tokens in front of it by target; also sets
                ``context.placed``.

        Raises:
            Overloaded: too many wait, or it waited too long.
            DeadlineExceeded: the request's timeout expired.
        """
        assert self._queue is not None
        encoded = context.encoded
        has_turn = False
        try:
            await self._queue.turn(
                encoded.model.id,
                encoded.request.caller.tenant,
                _placement(encoded, placed),
                lambda ahead: _placement(encoded, place(ahead)),
                again=bool(context.tried),
                until=context.deadline,
                expected=_tokens_per_second(placed.targets),
            )
            has_turn = True
        except TimeoutError:
            raise expired() from None
        finally:
            if not has_turn:
                context.placed = None  # it was placed, but is not sent
        return context.placed or placed

    async def wait_for_clients(self, encoded: Encoded) -> None:
        """Hold back a warm-up request until no client's request waits.

        Not at a replica that takes no clients' requests before its warm-up is over.

        Raises:
            Overloaded: it waited too long.
        """
        target, model = encoded.request.warmup_target, encoded.model.id
        if self._queue is None or target is None or model not in self._queue.queues:
            return
        if any(replica.warming for replica in self._fleet.of(model) if replica.id == target.replica):
            return
        await self._queue.wait_until_empty(model)


def _placement(encoded: Encoded, placed: Placed) -> Placement:
    decision = placed.decision
    return Placement(decision.target, encoded.tokens - decision.held_tokens)


def _tokens_per_second(targets: Mapping[Target, Replica]) -> float:
    """Estimated prefill rate of all these targets together, in tokens per second."""
    return sum(1 / max(replica.speed.rates.prefill_seconds_per_token, 1e-9) for replica in targets.values())


def _nothing(_: ModelId) -> None:
    pass
