"""The gateway's queue in simulated time: requests wait while the replica that they would be sent to is busy.

The order and the rules are those of ``routing/request_queue.py`` for one tenant. What it does every quarter of a second
to notice capacity that no event announced is left out: here every event is seen.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gateway.config.routing_settings import QueueSettings
from gateway.core.ids import Target
from gateway.evaluation.simulation.simulation_workload import WorkloadRequest
from gateway.routing.fair_order import FairOrder, WaitingRequest

_TENANT = ""
_MAX_TRIES = 16
_ANY_TARGET_TRIES = 8
"""As in ``routing/request_queue.py``."""


class SimulatedPlacement(NamedTuple):
    """Where a request would be sent.

    Attributes:
        number: Number of the replica.
        held_tokens: Prompt tokens that it holds.
    """

    number: int
    held_tokens: int


class SimulatedQueue:
    """Waiting requests.

    Args:
        settings: Limits.
        targets: The replicas.
        place: Places a request, given the tokens that wait in front of it by target, and the time.
        queue_seconds: Work in flight at each replica.
        send: Sends a request to its placement.

    Attributes:
        rejected: Requests that found the queue full or waited too long: a gateway answers them with 429.
    """

    def __init__(
        self,
        settings: QueueSettings,
        targets: Sequence[Target],
        *,
        place: Callable[[WorkloadRequest, Mapping[Target, int], float], SimulatedPlacement],
        queue_seconds: Callable[[int], float],
        send: Callable[[WorkloadRequest, SimulatedPlacement, float], None],
    ) -> None:
        self._settings = settings
        self._targets = targets
        self._place = place
        self._queue_seconds = queue_seconds
        self._send = send
        self._order = FairOrder()
        self._requests: dict[int, tuple[WaitingRequest, WorkloadRequest]] = {}
        self._free: set[Target] = set()
        self.rejected = 0

    def arrive(self, request: WorkloadRequest, now: float) -> None:
        """A request arrives: it is sent, or waits."""
        placement = self._place(request, self._order.ahead(_TENANT), now)
        if not self._requests and not self._is_busy(placement.number):
            self._send(request, placement, now)
            return
        tokens = request.prompt_tokens - placement.held_tokens
        waiting = WaitingRequest(_TENANT, 1.0, self._targets[placement.number], tokens)
        self._order.add(waiting)
        self._requests[waiting.number] = waiting, request
        if len(self._requests) > self._settings.max_requests:
            self._reject(waiting)
        self.on_capacity(now)

    def on_capacity(self, now: float) -> None:
        """A replica may have capacity again."""
        while self._requests:
            waiting, request = next(iter(self._requests.values()))
            if now - request.at <= self._settings.max_seconds:
                break
            self._reject(waiting)
        while self._requests and self._scan(now):
            pass

    def _scan(self, now: float) -> bool:
        """Send the next request whose replica is free; those with a busy one are skipped. Returns whether one was."""
        busy = {target: self._is_busy(number) for number, target in enumerate(self._targets)}
        free = {target for target, is_busy in busy.items() if not is_busy}
        any_target_tries = _ANY_TARGET_TRIES if free - self._free else 0
        if not any_target_tries and all(busy[target] for target in self._order.wanted()):
            self._free = free
            return False

        def is_candidate(waiting: WaitingRequest) -> bool:
            nonlocal any_target_tries
            if not busy[waiting.target]:
                return True
            any_target_tries -= 1
            return any_target_tries >= 0

        tries = _MAX_TRIES
        for waiting, ahead in self._order.in_turn(is_candidate):
            if not tries:
                return False
            tries -= 1
            _, request = self._requests[waiting.number]
            placement = self._place(request, ahead, now)
            tokens = request.prompt_tokens - placement.held_tokens
            self._order.move(waiting, self._targets[placement.number], tokens)
            if not busy[waiting.target]:
                self._order.serve(waiting)
                del self._requests[waiting.number]
                self._send(request, placement, now)
                return True
        self._free = free
        return False

    def _is_busy(self, number: int) -> bool:
        return self._queue_seconds(number) > self._settings.busy_seconds

    def _reject(self, waiting: WaitingRequest) -> None:
        self._order.remove(waiting)
        del self._requests[waiting.number]
        self.rejected += 1
