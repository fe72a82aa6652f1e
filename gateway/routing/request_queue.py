"""The queues of waiting requests, one per model: dispatch in fair order, rejection when full, time-out."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.config.routing_settings import QueueSettings
from gateway.core.errors import Overloaded
from gateway.core.ids import ModelId, Target
from gateway.core.ports import QueueObserver
from gateway.core.tenant import Tenant
from gateway.routing.fair_order import DrainRate, FairOrder, WaitingRequest
from gateway.tasks import in_task

_MAX_TRIES = 16
"""Most requests placed again in one scan; each costs about as much as its first placement."""

_ANY_TARGET_TRIES = 8
"""How many of them are placed again regardless of their last target, when a target became free."""

_SCAN_SECONDS = 0.25
"""Time between two scans while requests wait: not every change of capacity triggers one."""

_CONTINUE_SECONDS = 0.01

Ahead = Mapping[Target, int]
"""Tokens that wait in front of a request, by target."""

_NOTHING_AHEAD: Ahead = {}


@dataclass(frozen=True, slots=True)
class Placement:
    """The target a request would be sent to now.

    Attributes:
        target: The target.
        tokens: Uncached prompt tokens there.
    """

    target: Target
    tokens: int


@dataclass(slots=True, eq=False)
class _QueuedRequest:
    """A waiting request.

    Attributes:
        waiting: Its entry in the order.
        tenant: Its tenant.
        place: Computes its placement.
        turn: Set when it may be sent (None) or has to raise (the exception).
    """

    waiting: WaitingRequest
    tenant: Tenant
    place: Callable[[Ahead], Placement]
    turn: asyncio.Future[BaseException | None]


@dataclass(slots=True, eq=False)
class _ModelQueue:
    """The queue of one model; exists as long as requests wait.

    Attributes:
        model: The model.
        drain_rate: Measured tokens per second that leave it.
        expected: Tokens per second assumed until that is measured.
        order: The requests in fair order.
        requests: The requests by number, the least recently placed first.
        empty: Set when no request waits.
        stale: Numbers of requests to place again regardless of their last target.
        free: Targets with capacity left after the last scan.
        scan_scheduled: Whether a scan is scheduled on the event loop.
        timer: The next periodic scan.
    """

    model: ModelId
    drain_rate: DrainRate
    expected: float
    order: FairOrder = field(default_factory=FairOrder)
    requests: dict[int, _QueuedRequest] = field(default_factory=dict)
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    stale: set[int] = field(default_factory=set)
    free: set[Target] = field(default_factory=set)
    scan_scheduled: bool = False
    timer: asyncio.TimerHandle | None = None


class RequestQueue:
    """The queues of all models.

    Args:
        settings: Limits of length and waiting time.
        busy: The routable targets of a model, and whether each is at capacity.
        observer: Counts waiting and rejected requests.

    Attributes:
        queues: The queue of every model for which requests wait.
    """

    def __init__(
        self, settings: QueueSettings, busy: Callable[[ModelId], Mapping[Target, bool]], observer: QueueObserver
    ) -> None:
        self._settings = settings
        self._busy = busy
        self._observer = observer
        self.queues: dict[ModelId, _ModelQueue] = {}

    def ahead(self, model: ModelId, tenant: Tenant) -> Ahead:
        """Tokens that wait in front of a tenant's next request."""
        queue = self.queues.get(model)
        return queue.order.ahead(tenant.id) if queue is not None else _NOTHING_AHEAD

    def on_capacity(self, model: ModelId) -> None:
        """A replica of a model may have capacity again."""
        queue = self.queues.get(model)
        if queue is not None:
            self._schedule_scan(queue)

    async def turn(
        self,
        model: ModelId,
        tenant: Tenant,
        placement: Placement,
        place: Callable[[Ahead], Placement],
        *,
        again: bool,
        until: float,
        expected: float,
    ) -> None:
        """Wait until a request may be sent. It then has to be sent at once, to its last placement.

        Args:
            model: Its model.
            tenant: Its tenant.
            placement: Its placement now.
            place: Computes a new placement, given the tokens in front of it; may raise the error to respond with.
            again: Whether it is a retry: it is served before the tenant's other requests.
            until: Its deadline, in monotonic seconds.
            expected: Prompt tokens that the model's replicas compute per second, as estimated; above 0.

        Raises:
            Overloaded: the queue is full, or it waited too long.
            TimeoutError: ``until`` has passed.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        queue = self.queues.get(model) or self._open_queue(model, began)
        queue.expected = expected
        waiting = WaitingRequest(tenant.id, tenant.share, placement.target, placement.tokens, again)
        request = _QueuedRequest(waiting, tenant, place, loop.create_future())
        queue.order.add(waiting)
        queue.requests[waiting.number] = request
        self._observer.on_queue_length(model, len(queue.order))
        if len(queue.order) > self._settings.max_requests:
            self._refuse(queue, queue.requests[queue.order.newest_of_heaviest().number], "full")
        self._schedule_scan(queue)
        last = began + self._settings.max_seconds
        if until <= last:
            timer = loop.call_at(until, _finish, request, TimeoutError())
        else:
            timer = loop.call_at(last, self._refuse, queue, request, "too_long")
        try:
            refusal = await request.turn
        finally:
            timer.cancel()
            self._observer.on_queued(model, loop.time() - began)
            self._remove(queue, waiting)
        if refusal is not None:
            try:
                raise refusal
            finally:
                del request, refusal, timer  # the error has this frame: a cycle would keep the request in memory

    async def wait_until_empty(self, model: ModelId) -> None:
        """Wait until no request waits for a model.

        Raises:
            Overloaded: this took too long.
        """
        await in_task()
        try:
            async with asyncio.timeout(self._settings.max_seconds):
                while (queue := self.queues.get(model)) is not None:
                    await queue.empty.wait()
        except TimeoutError:
            raise _overloaded(model, self._settings.max_seconds) from None

    def _open_queue(self, model: ModelId, now: float) -> _ModelQueue:
        queue = self.queues[model] = _ModelQueue(model, DrainRate(now), 1.0)
        queue.timer = asyncio.get_running_loop().call_later(_SCAN_SECONDS, self._on_timer, queue)
        return queue

    def _on_timer(self, queue: _ModelQueue) -> None:
        """Periodic scan: looks for capacity that no event announced, and renews the oldest placements."""
        queue.timer = asyncio.get_running_loop().call_later(_SCAN_SECONDS, self._on_timer, queue)
        queue.stale.update(itertools.islice(queue.requests, _MAX_TRIES))  # the least recently placed
        self._schedule_scan(queue)

    def _schedule_scan(self, queue: _ModelQueue) -> None:
        # Deferred, so that one scan covers all events of this turn of the loop.
        if not queue.scan_scheduled:
            queue.scan_scheduled = True
            asyncio.get_running_loop().call_soon(self._scan, queue)

    def _scan(self, queue: _ModelQueue) -> None:
        """Dispatch the next request whose target is free; requests with a busy target are skipped."""
        queue.scan_scheduled = False
        busy = self._busy(queue.model)
        free = {target for target, is_busy in busy.items() if not is_busy}
        tries = _MAX_TRIES
        any_target_tries = _ANY_TARGET_TRIES if free - queue.free else 0
        if not any_target_tries and not queue.stale and all(busy.get(target, False) for target in queue.order.wanted()):
            queue.free = free
            return

        def is_candidate(waiting: WaitingRequest) -> bool:
            nonlocal any_target_tries
            if waiting.number in queue.stale or not busy.get(waiting.target, False):
                return True
            any_target_tries -= 1
            return any_target_tries >= 0

        for waiting, ahead in queue.order.in_turn(is_candidate):
            if not tries:
                asyncio.get_running_loop().call_later(_CONTINUE_SECONDS, self._schedule_scan, queue)
                return
            tries -= 1
            if self._try_dispatch(queue, waiting, ahead, busy):
                # Its load is counted only when its own task runs, so scan again after that.
                self._schedule_scan(queue)
                return
        queue.free = free

    def _try_dispatch(
        self, queue: _ModelQueue, waiting: WaitingRequest, ahead: Ahead, busy: Mapping[Target, bool]
    ) -> bool:
        """Place a request again; returns whether it left the queue, to be sent or with an error."""
        request = queue.requests.pop(waiting.number)
        queue.requests[waiting.number] = request
        queue.stale.discard(waiting.number)
        try:
            placement = request.place(ahead)
        except Exception as failure:  # noqa: BLE001 - raised in the request's own task
            self._remove(queue, waiting)
            _finish(request, failure)
            return True
        queue.order.move(waiting, placement.target, placement.tokens)
        if busy.get(placement.target, False):
            return False
        queue.order.serve(waiting)
        queue.drain_rate.left(asyncio.get_running_loop().time(), waiting.cost)
        self._forget(queue, waiting)
        _finish(request, None)
        return True

    def _refuse(self, queue: _ModelQueue, request: _QueuedRequest, reason: str) -> None:
        if request.turn.done():
            return  # it has its turn, and is about to leave
        self._observer.on_shed(queue.model, request.tenant, reason)
        now = asyncio.get_running_loop().time()
        seconds = queue.drain_rate.seconds(now, queue.order.cost_ahead(request.waiting), queue.expected)
        self._remove(queue, request.waiting)
        _finish(request, _overloaded(queue.model, seconds))

    def _remove(self, queue: _ModelQueue, waiting: WaitingRequest) -> None:
        if queue.order.remove(waiting):
            self._forget(queue, waiting)

    def _forget(self, queue: _ModelQueue, waiting: WaitingRequest) -> None:
        """Clean up after a request was removed from the order."""
        del queue.requests[waiting.number]
        queue.stale.discard(waiting.number)
        self._observer.on_queue_length(queue.model, len(queue.order))
        if not queue.order and self.queues.get(queue.model) is queue:
            del self.queues[queue.model]
            queue.empty.set()
            if queue.timer is not None:
                queue.timer.cancel()


def _finish(request: _QueuedRequest, failure: BaseException | None) -> None:
    if not request.turn.done():
        request.turn.set_result(failure)


def _overloaded(model: ModelId, seconds: float) -> Overloaded:
    return Overloaded(
        f"Too many requests wait for model {model!r}. Try again after the time in `retry-after`.",
        retry_after_seconds=seconds,
    )
