"""Requests that wait because no replica has time for them: ties the queues to the fleet."""

import time
from collections.abc import Callable, Mapping

from gateway.context import RequestContext, expired
from gateway.core.ids import ModelId, Target
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica import Replica
from gateway.routing import Chooser
from gateway.routing.request_queue import Placement, RequestQueue

Targets = Mapping[Target, Replica]


class BusyReplicas:
    """Which replicas have no time for another request.

    Args:
        fleet: The replicas.
        chooser: Knows what waiting there takes.
        busy_seconds: A target with more work than this in front of a new request gets no more.
    """

    def __init__(self, fleet: Fleet, chooser: Chooser, busy_seconds: float) -> None:
        self.seconds = busy_seconds
        self._fleet = fleet
        self._chooser = chooser

    def __call__(self, model: ModelId) -> Mapping[Target, bool]:
        """Every target of a model that may get requests, and whether it has no time for more."""
        now = time.monotonic()
        return {
            target: self.of(replica, target, now)
            for replica in self._fleet.of(model)
            if replica.up is not False and not replica.draining
            for target in replica.targets()
        }

    def of(self, replica: Replica, target: Target, now: float) -> bool:
        """Whether one target has no time for more."""
        return self._chooser.queue_seconds(replica.fair_load(target.rank, now)) > self.seconds


class Overload:
    """Decides which requests wait, and has them placed anew when it is their turn.

    Args:
        lines: The queues; None: nobody waits.
        busyness: Which replicas have no time.
        fleet: The replicas.
    """

    def __init__(self, lines: RequestQueue | None, busyness: BusyReplicas, fleet: Fleet) -> None:
        self._lines = lines
        self._busyness = busyness
        self._fleet = fleet

    def ahead(self, trip: RequestContext) -> Mapping[Target, int]:
        """Tokens that wait for each target in front of a request that comes now."""
        if self._lines is None:
            return {}
        return self._lines.ahead(trip.model.id, trip.request.caller.tenant)

    def holds(self, trip: RequestContext, targets: Targets) -> bool:
        """Whether a request that was placed has to wait for its turn."""
        if self._lines is None or trip.request.warms is not None:
            return False
        if trip.stream is not None and trip.stream.begun:
            return False  # its client is in the middle of the answer
        if self._lines.waits(trip.model.id):
            return True
        decision = trip.decision
        assert decision is not None
        # What it goes by is at most what placement counted, and that is at hand.
        return decision.queue_seconds > self._busyness.seconds and not self._wish(trip, targets).free

    async def turn(self, trip: RequestContext, targets: Targets, place: Callable[[], Targets]) -> None:
        """Wait for a request's turn. It has to be sent at once then, to where ``place`` led it last.

        Args:
            trip: The request; it is placed.
            targets: Where it may go.
            place: Places it anew, by what is so then; returns where it may go.

        Raises:
            Overloaded: too many wait, or it waited too long.
            DeadlineExceeded: the time that it may take is over.
        """
        assert self._lines is not None

        def anew(ahead: Mapping[Target, int]) -> Placement:
            trip.ahead = ahead
            return self._wish(trip, place())

        came = False
        try:
            await self._lines.turn(
                trip.model.id,
                trip.request.caller.tenant,
                self._wish(trip, targets),
                anew,
                again=bool(trip.tried),
                until=trip.deadline,
                expected=_tokens_per_second(targets),
            )
            came = True
        except TimeoutError:
            raise expired() from None
        finally:
            if not came:
                trip.decision = None  # it was placed, but goes nowhere

    async def let_clients_go_first(self, trip: RequestContext) -> None:
        """A request that fills a cache is to be sent: wait until no client's does. A replica that takes no clients'
        requests before its cache is filled holds up none.

        Raises:
            Overloaded: that took too long.
        """
        target = trip.request.warms
        if self._lines is None or target is None or not self._lines.waits(trip.model.id):
            return
        if any(replica.warming for replica in self._fleet.of(trip.model.id) if replica.id == target.replica):
            return
        await self._lines.wait_until_empty(trip.model.id)

    def freed(self, model: ModelId) -> None:
        """A replica of a model may have time again."""
        if self._lines is not None:
            self._lines.on_capacity(model)

    def _wish(self, trip: RequestContext, targets: Targets) -> Placement:
        decision = trip.decision
        assert decision is not None
        target = decision.target
        busy = self._busyness.of(targets[target], target, time.monotonic())
        return Placement(target, trip.prompt.tokens - decision.held_tokens, not busy)


def _tokens_per_second(targets: Targets) -> float:
    """Prompt tokens that these targets are believed to compute in a second, all together."""
    return sum(1 / max(replica.speed.rates.prefill_seconds_per_token, 1e-9) for replica in targets.values())
