"""The discrete-event loop: arrivals, the gateway's queue and the replicas' steps, in the order of their times.

``ladder`` shows what no cache can hit, what a fleet's caches cannot hold, what routing loses, policy by policy.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

from gateway.config.routing_settings import PlacementSettings, QueueSettings
from gateway.core.ids import Target
from gateway.evaluation.simulation.cache_model import BlockHolders, PrefixCacheModel
from gateway.evaluation.simulation.replica_model import ReplicaModel, SimulatedCall, Step
from gateway.evaluation.simulation.simulated_policies import (
    IDEAL,
    LIMITS,
    POLICIES,
    SHARED,
    GatewayPolicy,
    ReplicaLoad,
    make_policy,
)
from gateway.evaluation.simulation.simulation_workload import (
    FleetShape,
    SimulationResult,
    Workload,
    WorkloadRequest,
    quantiles,
)
from gateway.routing.fair_order import FairOrder, WaitingRequest

_PROGRESS_EVERY = 256
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


def simulate(
    workload: Workload,
    fleet: FleetShape,
    policy: str,
    *,
    settings: PlacementSettings | None = None,
    queue: QueueSettings | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> SimulationResult:
    """Simulate one policy.

    Args:
        workload: The requests.
        fleet: The replicas.
        policy: Of ``POLICIES`` or ``LIMITS``.
        settings: Weights of the gateway's policies; None for their defaults.
        queue: Limits of the gateway's queue, for its own policies; None: every request is sent at once.
        on_progress: Called now and then with the number of requests that arrived since the last call.

    Raises:
        ValueError: No such policy.
    """
    return _Simulation(workload, fleet, policy, settings or PlacementSettings(), queue).run(on_progress)


class _Simulation:
    """One run; see ``simulate``."""

    def __init__(
        self,
        workload: Workload,
        fleet: FleetShape,
        policy: str,
        settings: PlacementSettings,
        queue: QueueSettings | None,
    ) -> None:
        self._workload = workload
        self._fleet = fleet
        self._name = policy
        self._heap: list[tuple[float, Step, int, int, SimulatedCall]] = []
        self._numbers = count()
        self._holders = BlockHolders()
        lanes = fleet.replicas if policy in SHARED else 1
        replicas = fleet.replicas // lanes
        size = None if policy == IDEAL else fleet.blocks * lanes
        # Blocks of the calls that wait at each replica, with the number of such calls.
        self._queued: list[dict[int, int]] = [{} for _ in range(replicas)]
        caches = [PrefixCacheModel(size, self._holders, number, queued) for number, queued in enumerate(self._queued)]
        self._replicas = [
            ReplicaModel(
                cache,
                block_size=workload.block_size,
                prefill_rate=fleet.prefill_rate,
                decode_seconds=fleet.decode_seconds,
                slots=fleet.slots * lanes,
                lanes=lanes,
                at=partial(self._at, number),
            )
            for number, cache in enumerate(caches)
        ]
        self._loads = [ReplicaLoad() for _ in self._replicas]
        self._policy = make_policy(policy, fleet, settings)
        self._queue: SimulatedQueue | None = None
        if queue is not None and isinstance(self._policy, GatewayPolicy):
            self._queue = SimulatedQueue(
                queue,
                self._policy.targets,
                place=self._place,
                queue_seconds=partial(self._policy.queue_seconds, self._loads),
                send=self._send,
            )
        self._ttft: list[float] = []
        self._latest = 0.0
        self._refused = self._blocks = self._hit_blocks = self._prompt_tokens = 0

    def run(self, on_progress: Callable[[int], None] | None) -> SimulationResult:
        """Run it to the last answer."""
        for number, request in enumerate(self._workload.requests):
            if on_progress is not None and number % _PROGRESS_EVERY == 0:
                on_progress(_PROGRESS_EVERY)
            self._advance(request.at)
            self._arrive(request)
        self._advance(math.inf)
        return self._result()

    def _advance(self, until: float) -> None:
        """Take all steps up to a time."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            now, step, _, number, call = heapq.heappop(heap)
            load = self._loads[number]
            if step is Step.FIRST_TOKEN:
                load.prefills.done(call.prefill_number, now)
            elif step is Step.END:
                load.requests -= 1
                self._policy.answered(number, call, now)
            self._scheduled(number, self._replicas[number].on_step(step, call, now))
            if self._queue is not None and step is not Step.BLOCK:
                self._queue.on_capacity(now)

    def _arrive(self, request: WorkloadRequest) -> None:
        if not self._replicas[0].fits(request):
            self._refused += 1
        elif self._queue is not None:
            self._queue.arrive(request, request.at)
        else:
            self._send(request, self._place(request, {}, request.at), request.at)

    def _place(self, request: WorkloadRequest, ahead: Mapping[Target, int], now: float) -> SimulatedPlacement:
        size = self._workload.block_size
        held = [depth * size for depth in self._depths(request)]
        number = self._policy.choose(request, held, self._loads, ahead, now)
        return SimulatedPlacement(number, held[number])

    def _send(self, request: WorkloadRequest, placement: SimulatedPlacement, now: float) -> None:
        number = placement.number
        load = self._loads[number]
        call = SimulatedCall(request, now)
        call.prefill_tokens = request.prompt_tokens - placement.held_tokens
        if isinstance(self._policy, GatewayPolicy):
            call.prefill_ahead = self._policy.prefill_ahead(number, load, now)
        load.requests += 1
        call.prefill_number = load.prefills.add(call.prefill_tokens, now)
        self._count_queued(number, call, 1)
        self._scheduled(number, self._replicas[number].send(call, now))

    def _scheduled(self, number: int, calls: Sequence[SimulatedCall]) -> None:
        """Record calls that are scheduled: their first token's time is known now."""
        for call in calls:
            request = call.request
            self._count_queued(number, call, -1)
            self._ttft.append(call.first_at - request.at)
            self._latest = max(self._latest, call.first_at)
            self._blocks += -(-request.prompt_tokens // self._workload.block_size)
            self._hit_blocks += call.hits
            self._prompt_tokens += request.prompt_tokens

    def _depths(self, request: WorkloadRequest) -> list[int]:
        """Blocks that each replica holds from the beginning of the prompt, those of waiting calls included."""
        limit = request.reusable
        depths = self._holders.depths(request.full, limit, len(self._replicas))
        for number, queued in enumerate(self._queued):
            depth = depths[number]
            if queued and depth < limit:
                while depth < limit and request.full[depth] in queued:
                    depth += 1
                depths[number] = depth
        return depths

    def _count_queued(self, number: int, call: SimulatedCall, change: int) -> None:
        queued = self._queued[number]
        for block in call.request.full:
            counted = queued.get(block, 0) + change
            if counted > 0:
                queued[block] = counted
            else:
                queued.pop(block, None)

    def _at(self, number: int, moment: float, step: Step, call: SimulatedCall) -> None:
        heapq.heappush(self._heap, (moment, step, next(self._numbers), number, call))

    def _result(self) -> SimulationResult:
        requests = self._workload.requests
        first, last = (requests[0].at, requests[-1].at) if requests else (0.0, 0.0)
        seconds = (self._latest - first) * self._fleet.replicas
        busy = sum(replica.prefill_seconds for replica in self._replicas)
        return SimulationResult(
            policy=self._name,
            fleet=self._fleet,
            requests=len(self._ttft),
            refused=self._refused,
            rejected=self._queue.rejected if self._queue is not None else 0,
            blocks=self._blocks,
            hit_blocks=self._workload.seen_blocks if self._name == IDEAL else self._hit_blocks,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._hit_blocks * self._workload.block_size,
            ttft_seconds=quantiles(self._ttft),
            busy_share=busy / seconds if seconds > 0 else 0.0,
            largest_share=max(replica.calls for replica in self._replicas) / max(len(self._ttft), 1),
            backlog_seconds=max(self._latest - last, 0.0),
        )


def ladder(
    workload: Workload,
    fleet: FleetShape,
    policies: Sequence[str] = POLICIES,
    *,
    settings: PlacementSettings | None = None,
    queue: QueueSettings | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> list[SimulationResult]:
    """Simulate the limits and the policies on one fleet, in the order of the ladder.

    Args:
        workload: The requests.
        fleet: The replicas.
        policies: Of ``POLICIES``.
        settings: As for ``simulate``.
        queue: As for ``simulate``.
        on_progress: Called now and then with the number of requests simulated since the last call.
    """
    return [
        simulate(workload, fleet, name, settings=settings, queue=queue, on_progress=on_progress)
        for name in (*LIMITS, *policies)
    ]
