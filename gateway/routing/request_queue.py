"""The queues, one for each model: who waits, is woken, refused, or has waited long enough."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.config.queue_settings import QueueSettings
from gateway.core.errors import Overloaded
from gateway.core.ids import ModelId, Target
from gateway.core.ports import QueueObserver
from gateway.core.tenant import Tenant
from gateway.routing.drain_rate import DrainRate
from gateway.routing.fair_order import FairOrder, WaitingRequest

_TRIES = 16
"""Requests that are placed anew at a time; each costs about what the first placing did."""

_FIRST = 8
"""Of those, how many of the next in turn are placed anew when a target is free that was busy, whatever they wanted."""

_LOOK_SECONDS = 0.25
"""Time between two looks while somebody waits: not everything that makes room is told."""

_RATHER_SOON_SECONDS = 0.01

Ahead = Mapping[Target, int]
"""Tokens that wait in front of a request, by the target that they are for."""

_NOTHING: Ahead = {}


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request would be sent now.

    Attributes:
        target: Where.
        tokens: Tokens of its prompt that would have to be computed there.
        free: Whether the target has time for it.
    """

    target: Target
    tokens: int
    free: bool


@dataclass(slots=True, eq=False)
class _QueuedRequest:
    """Somebody who waits.

    Attributes:
        waiting: The same, for the order.
        tenant: Whose it is.
        place: Places it anew.
        turn: Done when it may be sent; with what it should raise instead.
    """

    waiting: WaitingRequest
    tenant: Tenant
    place: Callable[[Ahead], Placement]
    turn: asyncio.Future[BaseException | None]


@dataclass(slots=True, eq=False)
class _ModelQueue:
    """One model's queue; lives as long as somebody waits.

    Attributes:
        model: The model.
        pace: How fast it moves.
        expected: Tokens a second that are believed to leave it until that is measured.
        order: The requests.
        guests: Who they are, by number: whoever was placed last stands last.
        empty: Set when nobody waits any more.
        stale: Requests that are placed anew whatever they wanted last, by number.
        free: Targets that had time when it was gone through last, and nobody wanted them.
        stirring: Whether it will be gone through in a moment.
        timer: When it will be in any case.
    """

    model: ModelId
    pace: DrainRate
    expected: float
    order: FairOrder = field(default_factory=FairOrder)
    guests: dict[int, _QueuedRequest] = field(default_factory=dict)
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    stale: set[int] = field(default_factory=set)
    free: set[Target] = field(default_factory=set)
    stirring: bool = False
    timer: asyncio.TimerHandle | None = None


class RequestQueue:
    """All queues.

    Args:
        settings: How many may wait, and how long.
        busy: The targets of a model that may get requests, and which of them have no time for more.
        observer: Is told what happens.
    """

    def __init__(
        self, settings: QueueSettings, busy: Callable[[ModelId], Mapping[Target, bool]], observer: QueueObserver
    ) -> None:
        self._settings = settings
        self._busy = busy
        self._observer = observer
        self._lines: dict[ModelId, _ModelQueue] = {}

    def waits(self, model: ModelId) -> bool:
        """Whether anybody waits for a model."""
        return model in self._lines

    def ahead(self, model: ModelId, tenant: Tenant) -> Ahead:
        """What waits in front of a tenant's next request."""
        line = self._lines.get(model)
        return line.order.ahead(tenant.id) if line is not None else _NOTHING

    def freed(self, model: ModelId) -> None:
        """A replica of a model may have time again."""
        line = self._lines.get(model)
        if line is not None:
            self._stir_soon(line)

    async def turn(
        self,
        model: ModelId,
        tenant: Tenant,
        wish: Placement,
        place: Callable[[Ahead], Placement],
        *,
        again: bool,
        until: float,
        expected: float,
    ) -> None:
        """Wait until a request may be sent. It has to be sent at once then, to where it was placed last.

        Args:
            model: For which model.
            tenant: Whose it is.
            wish: Where it would be sent now.
            place: Places it anew, with what waits in front of it; may raise what it should be answered with.
            again: Whether a replica failed it: it goes before the tenant's other requests.
            until: When it is too late, in monotonic seconds.
            expected: Prompt tokens that the model's replicas are believed to compute in a second; above 0.

        Raises:
            Overloaded: too many wait, or it waited too long.
            TimeoutError: ``until`` came.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        line = self._lines.get(model) or self._open(model, began)
        line.expected = expected
        waiting = WaitingRequest(tenant.id, tenant.share, wish.target, wish.tokens, again)
        guest = _QueuedRequest(waiting, tenant, place, loop.create_future())
        line.order.add(waiting)
        line.guests[waiting.number] = guest
        self._observer.on_queue_length(model, len(line.order))
        if len(line.order) > self._settings.max_requests:
            self._refuse(line, line.guests[line.order.newest_of_heaviest().number], "full")
        self._stir_soon(line)
        last = began + self._settings.max_seconds
        try:
            async with asyncio.timeout_at(min(last, until)):
                refusal = await guest.turn
        except TimeoutError:
            if until <= last:
                raise
            raise self._refusal(line, guest, "too_long") from None
        finally:
            self._observer.on_queued(model, loop.time() - began)
            self._take_out(line, waiting)
        if refusal is not None:
            try:
                raise refusal
            finally:
                del guest, refusal  # the error has this frame: a cycle would keep the request in memory

    async def nobody_waits(self, model: ModelId) -> None:
        """Wait until nobody does.

        Raises:
            Overloaded: that took too long.
        """
        try:
            async with asyncio.timeout(self._settings.max_seconds):
                while (line := self._lines.get(model)) is not None:
                    await line.empty.wait()
        except TimeoutError:
            raise _overloaded(model, self._settings.max_seconds) from None

    def _open(self, model: ModelId, now: float) -> _ModelQueue:
        line = self._lines[model] = _ModelQueue(model, DrainRate(now), 1.0)
        line.timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look, line)
        return line

    def _look(self, line: _ModelQueue) -> None:
        """Nobody said that anything is free. See whether it is, and whether those who wait still want what they did."""
        line.timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look, line)
        line.stale.update(itertools.islice(line.guests, _TRIES))  # those that were placed longest ago
        self._stir_soon(line)

    def _stir_soon(self, line: _ModelQueue) -> None:
        # Only once all that happens at this moment has happened.
        if not line.stirring:
            line.stirring = True
            asyncio.get_running_loop().call_soon(self._stir, line)

    def _stir(self, line: _ModelQueue) -> None:
        """Let the next one go that can; whoever finds its target busy lets others go before."""
        line.stirring = False
        busy = self._busy(line.model)
        free = {target for target, is_busy in busy.items() if not is_busy}
        tries = _TRIES
        first = _FIRST if free - line.free else 0
        if not first and not line.stale and all(busy.get(target, False) for target in line.order.wanted()):
            line.free = free
            return

        def worth_a_try(waiting: WaitingRequest) -> bool:
            nonlocal first
            if waiting.number in line.stale or not busy.get(waiting.target, False):
                return True
            first -= 1
            return first >= 0

        for waiting, ahead in line.order.in_turn(worth_a_try):
            if not tries:
                asyncio.get_running_loop().call_later(_RATHER_SOON_SECONDS, self._stir_soon, line)
                return
            tries -= 1
            if self._went(line, waiting, ahead):
                # What it takes is not yet taken: its own task does that first.
                self._stir_soon(line)
                return
        line.free = free

    def _went(self, line: _ModelQueue, waiting: WaitingRequest, ahead: Ahead) -> bool:
        """Whether a request leaves the queue, because it can be sent, or because it never can."""
        guest = line.guests.pop(waiting.number)
        line.guests[waiting.number] = guest
        line.stale.discard(waiting.number)
        try:
            wish = guest.place(ahead)
        except Exception as failure:  # noqa: BLE001 - it is the request's own matter, and is raised there
            self._take_out(line, waiting)
            _tell(guest, failure)
            return True
        line.order.move(waiting, wish.target, wish.tokens)
        if not wish.free:
            return False
        line.order.serve(waiting)
        line.pace.left(asyncio.get_running_loop().time(), waiting.cost)
        self._left(line, waiting)
        _tell(guest, None)
        return True

    def _refuse(self, line: _ModelQueue, guest: _QueuedRequest, reason: str) -> None:
        refusal = self._refusal(line, guest, reason)
        self._take_out(line, guest.waiting)
        _tell(guest, refusal)

    def _refusal(self, line: _ModelQueue, guest: _QueuedRequest, reason: str) -> Overloaded:
        self._observer.on_shed(line.model, guest.tenant, reason)
        now = asyncio.get_running_loop().time()
        return _overloaded(line.model, line.pace.seconds(now, line.order.cost_ahead(guest.waiting), line.expected))

    def _take_out(self, line: _ModelQueue, waiting: WaitingRequest) -> None:
        if line.order.remove(waiting):
            self._left(line, waiting)

    def _left(self, line: _ModelQueue, waiting: WaitingRequest) -> None:
        """Somebody is not in the order any more."""
        del line.guests[waiting.number]
        line.stale.discard(waiting.number)
        self._observer.on_queue_length(line.model, len(line.order))
        if not line.order and self._lines.get(line.model) is line:
            del self._lines[line.model]
            line.empty.set()
            if line.timer is not None:
                line.timer.cancel()


def _tell(guest: _QueuedRequest, failure: BaseException | None) -> None:
    if not guest.turn.done():
        guest.turn.set_result(failure)


def _overloaded(model: ModelId, seconds: float) -> Overloaded:
    return Overloaded(
        f"Too many requests wait for model {model!r}. Try again after the time in `retry-after`.",
        retry_after_seconds=seconds,
    )
