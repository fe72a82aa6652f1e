"""Sends prefixes again: after a reset, an expiry or a restart, before an idle expiry, and on a schedule.

Events only add requests to a list (``PendingWarmups``). Twice a second the next ones are sent whose replica is idle and
that the budget has room for; what has waited for too long is left out, because clients have filled the cache by then.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog

from gateway.config.warmup_settings import WarmAgainSettings
from gateway.core.ids import ModelId, ReplicaId, RequestId, Target
from gateway.core.space import PrefixSpace, ResetCause, SpaceEnd
from gateway.core.tenant import Caller
from gateway.tasks import TaskGroupOwner
from gateway.warmup.declared import Declared
from gateway.warmup.hot_prompts import HotPrompts
from gateway.warmup.ledger import WarmCause, WarmLedger
from gateway.warmup.pending import PendingWarmup, PendingWarmups, hot_step
from gateway.warmup.runner import Clock, Job, Sleep
from gateway.warmup.warmup_plan import Planner, WarmupStep

_ROUND_SECONDS = 0.5
_LOOK_SECONDS = 1.0
"""Interval of looking for spaces that are about to expire."""

_LOOK_AGAIN_SECONDS = 10.0
"""The same while requests for such spaces wait."""

_REFRESH_SECONDS = 5.0
"""Interval of ranking the hottest prefixes."""

_MAX_ENDED = 10_000
"""Ended spaces that are remembered until the next round."""

_CAUSES = {
    ResetCause.MANUAL: WarmCause.RESET,
    ResetCause.CONFIGURATION: WarmCause.RESET,
    ResetCause.IDLE_TTL: WarmCause.EXPIRY,
    ResetCause.MAX_AGE: WarmCause.EXPIRY,
}
"""Ends after which prefixes are sent again. After a model update or another template every replica is filled as if it
had joined; a space that was crowded out would crowd out another one."""

SpaceName = tuple[str, str, str, str]
"""Model, owner, scope and application: the parts of a prefix space that a prefix determines. Spaces that differ in
other parts are warmed together."""

_log = structlog.get_logger("gateway.warmup")
HOUR_SECONDS = 3600.0


class Expense:
    """One request that was sent.

    Attributes:
        at: When, in monotonic seconds.
        tokens: Prompt tokens that it may compute; corrected once the engine has answered.
    """

    __slots__ = ("at", "tokens")

    def __init__(self, at: float, tokens: int) -> None:
        self.at = at
        self.tokens = tokens


class HourlyBudget:
    """What may be sent within any hour. Holds one entry for each request of the last hour.

    Attributes:
        tokens: Prefill tokens an hour.
        requests: Requests an hour.
    """

    def __init__(self, tokens: int, requests: int) -> None:
        self.tokens = tokens
        self.requests = requests
        self._spent: deque[Expense] = deque()
        self._spent_tokens = 0

    def spend(self, tokens: int, now: float) -> Expense | None:
        """Reserve a request with so many prompt tokens; None if it exceeds what is left."""
        used_tokens, used_requests = self.used(now)
        if used_requests >= self.requests or used_tokens + tokens > self.tokens:
            return None
        expense = Expense(now, tokens)
        self._spent.append(expense)
        self._spent_tokens += tokens
        return expense

    def correct(self, expense: Expense, tokens: int, now: float) -> None:
        """Set the tokens that a request has computed."""
        if now - expense.at < HOUR_SECONDS:
            self._spent_tokens += tokens - expense.tokens
            expense.tokens = tokens

    def used(self, now: float) -> tuple[int, int]:
        """Tokens and requests of the last hour."""
        while self._spent and now - self._spent[0].at >= HOUR_SECONDS:
            self._spent_tokens -= self._spent.popleft().tokens
        return self._spent_tokens, len(self._spent)


class EndedSpaces:
    """A ``SpaceObserver`` that remembers which spaces have ended, until they are taken."""

    def __init__(self) -> None:
        self._ended: dict[SpaceName, WarmCause] = {}

    def on_space_end(self, end: SpaceEnd) -> None:
        """See ``SpaceObserver``."""
        cause = _CAUSES.get(end.cause)
        if cause is not None and len(self._ended) < _MAX_ENDED:
            self._ended[name_of(end.space)] = cause

    def take(self) -> dict[SpaceName, WarmCause]:
        """What has ended since the last call."""
        ended, self._ended = self._ended, {}
        return ended


def name_of(space: PrefixSpace) -> SpaceName:
    """The name of a space."""
    return space.model_id, space.tenant, space.scope, space.prompt


@dataclass(frozen=True, slots=True)
class WarmLinks:
    """What repeated warm-up needs of the gateway.

    Attributes:
        ledger: Counts costs and savings.
        hot: The hottest prefixes.
        ended: The spaces that have ended.
        expiring: The spaces whose idle time is nearly over, at a time in Unix seconds.
        owner: The owner of the spaces of a caller.
        idle: Whether a target has no requests at all; also true of one that is not there.
        delay: Seconds between an end and the first request: where several gateways notice the same end, one of them
            should begin the new epoch before the others do.
        wall: Unix seconds.
    """

    ledger: WarmLedger
    hot: HotPrompts
    ended: EndedSpaces = field(default_factory=EndedSpaces)
    expiring: Callable[[float], Sequence[PrefixSpace]] = lambda _: ()
    owner: Callable[[Caller], str] = lambda _: ""
    idle: Callable[[Target], bool] = lambda _: True
    delay: Callable[[], float] = lambda: 0.0
    wall: Clock = time.time


class LastingWarmup:
    """Needs a running event loop.

    Args:
        links: What it needs of the gateway.
        planner: Plans requests.
        send: Sends a request, and returns the prompt tokens that it computed.
        keep: Makes a job known to operators.
        declared: The declared prefixes.
        counted: Prompt tokens of the declared prefix at a position; None if unknown.
        held: Replicas that are being filled before they take requests.
        clock: Monotonic seconds.
        sleep: Waits.
    """

    def __init__(
        self,
        links: WarmLinks,
        planner: Planner,
        *,
        send: Callable[[Job, WarmupStep, RequestId], Awaitable[int]],
        keep: Callable[[Job], None],
        declared: Callable[[], Sequence[Declared]],
        counted: Callable[[int], int | None],
        held: Callable[[], Collection[ReplicaId]],
        clock: Clock,
        sleep: Sleep,
    ) -> None:
        self._links = links
        self._planner = planner
        self._send = send
        self._keep = keep
        self._declared = declared
        self._counted = counted
        self._held = held
        self._clock = clock
        self._sleep = sleep
        self._settings = WarmAgainSettings()
        self._requests_per_second = 1.0
        self._request_seconds = 60.0
        self._budget = HourlyBudget(0, 1)
        self._pending = PendingWarmups(links.ledger.observer)
        self._in_flight: set[ReplicaId] = set()
        self._tasks = TaskGroupOwner()
        self._joined: dict[ReplicaId, None] = {}
        self._next_send = self._next_look = self._next_refresh = 0.0
        self._next_schedule: float | None = None
        self._sent = 0

    @property
    def enabled(self) -> bool:
        """Whether there is a budget."""
        return self._settings.tokens_per_hour > 0

    def configure(self, settings: WarmAgainSettings, requests_per_second: float, request_seconds: float) -> None:
        """Apply settings; what was spent within the last hour stays spent.

        Args:
            settings: The settings.
            requests_per_second: Most requests a second.
            request_seconds: Longest time that a request may take.
        """
        self._requests_per_second, self._request_seconds = requests_per_second, request_seconds
        self._budget.tokens, self._budget.requests = settings.tokens_per_hour, settings.requests_per_hour
        self._links.hot.most = settings.hottest if settings.tokens_per_hour else 0
        if settings.every_seconds != self._settings.every_seconds or self._next_schedule is None:
            self._next_schedule = None if settings.every_seconds is None else self._clock() + settings.every_seconds
        self._settings = settings

    def joined(self, replica: ReplicaId) -> None:
        """A replica came up with an empty cache."""
        if self.enabled and "restart" in self._settings.when:
            self._joined[replica] = None

    def forget_ends(self) -> None:
        """Before ``run``: what has ended while there was no budget is not warmed."""
        self._links.ended.take()

    async def run(self) -> None:
        """Work until the budget is set to 0."""
        while self.enabled:
            try:
                self.round()
            except Exception:  # noqa: BLE001 - an aid must go on
                _log.exception("warming_again_failed")
            await self._sleep(_ROUND_SECONDS)
        self._pending.clear(self._clock())
        self._links.hot.refresh(self._links.wall())

    async def stop(self) -> None:
        """End all requests in flight."""
        await self._tasks.cancel()

    def round(self) -> None:
        """Look for what has happened, and send what can be sent now."""
        now = self._clock()
        if now >= self._next_refresh:
            self._next_refresh = now + _REFRESH_SECONDS
            self._links.hot.refresh(self._links.wall())
        ended, joined = self._links.ended.take(), list(self._joined)
        self._joined.clear()
        for cause in (WarmCause.RESET, WarmCause.EXPIRY):
            if str(cause) in self._settings.when:
                self._add_spaces([name for name, why in ended.items() if why is cause], cause, now)
        for replica in joined:
            self._add(self._hot_items(only=replica), WarmCause.RESTART, now)
        if now >= self._next_look and "idle" in self._settings.when:
            self._next_look = now + (_LOOK_AGAIN_SECONDS if self._pending.waits(WarmCause.IDLE) else _LOOK_SECONDS)
            expiring = self._links.expiring(self._links.wall())
            self._add_spaces([name_of(space) for space in expiring], WarmCause.IDLE, now)
        if self._next_schedule is not None and now >= self._next_schedule:
            self._next_schedule = now + (self._settings.every_seconds or 0.0)
            self._add([*self._declared_items(), *self._hot_items()], WarmCause.SCHEDULE, now)
        self._send_next(now)

    def shown(self) -> dict[str, object]:
        """Budget, waiting requests and totals, JSON-ready."""
        tokens, requests = self._budget.used(self._clock())
        return {
            "enabled": self.enabled,
            "tokens_per_hour": self._budget.tokens,
            "requests_per_hour": self._budget.requests,
            "tokens_used": tokens,
            "requests_used": requests,
            "hottest": len(self._links.hot),
            "waiting": len(self._pending),
            "left_out": self._pending.left_out,
        }

    def _add_spaces(self, names: Collection[SpaceName], cause: WarmCause, now: float) -> None:
        if names:
            chosen = set(names)
            self._add([*self._declared_items(chosen), *self._hot_items(chosen)], cause, now)

    def _declared_items(self, names: Collection[SpaceName] | None = None) -> list[PendingWarmup]:
        items = []
        for step in self._planner.everywhere(self._declared()):
            prefix, index = step.prefix, step.index
            if names is not None and self._name(step.caller, prefix.model) not in names:
                continue
            tokens = self._counted(index) if index is not None else None
            # Without a count, more rather than less: four bytes of text are about a token.
            tokens = len(prefix.body) // 4 if tokens is None else tokens
            items.append(
                PendingWarmup(
                    (id(prefix), step.target), step.caller, prefix.model, step.target, tokens, partial(_same, step)
                )
            )
        return items

    def _hot_items(
        self, names: Collection[SpaceName] | None = None, only: ReplicaId | None = None
    ) -> list[PendingWarmup]:
        items = []
        for hot in self._links.hot.longest():
            model = hot.request.model
            caller = self._planner.present(hot.request.caller)
            if caller is None or (names is not None and self._name(caller, model) not in names):
                continue
            items += [
                PendingWarmup(
                    (id(hot), target),
                    caller,
                    model,
                    target,
                    hot.tokens,
                    partial(hot_step, hot, caller, target),
                )
                for target in hot.targets
                if (only is None or target.replica == only) and self._planner.accepts(caller, model, target)
            ]
        return items

    def _name(self, caller: Caller, model: ModelId) -> SpaceName:
        application = caller.application.space if caller.application is not None else ""
        return model, self._links.owner(caller), caller.scope, application

    def _add(self, items: Iterable[PendingWarmup], cause: WarmCause, now: float) -> None:
        delay = self._links.delay() if cause in (WarmCause.RESET, WarmCause.EXPIRY) else 0.0
        job = self._pending.add(items, cause, now, now + delay, self._requests_per_second)
        if job is not None:
            self._keep(job)
            _log.info("warming_again", job=job.id, cause=str(cause), requests=job.total)

    def _send_next(self, now: float) -> None:
        held = self._held()
        idle: dict[Target, bool] = {}
        refused = math.inf
        self._pending.drop_stale(now)
        for item in self._pending.due(now):
            target = item.target
            if now < self._next_send:
                return
            if target not in idle:
                idle[target] = target.replica not in held and self._links.idle(target)
            if target.replica in self._in_flight:
                continue
            if not idle[target]:
                item.blocked = "busy"
            elif item.tokens >= refused:
                item.blocked = "budget"
            elif not self._planner.accepts(item.caller, item.model, target):
                self._pending.leave_out(item, "gone", now)
            elif (expense := self._budget.spend(item.tokens, now)) is None:
                item.blocked, refused = "budget", item.tokens
            else:
                self._pending.take(item)
                self._next_send = now + 1 / self._requests_per_second
                self._sent += 1
                request_id = RequestId(f"warm-{item.job_id}-{self._sent}")
                self._in_flight.add(target.replica)
                self._tasks.spawn(self._work(item, expense, request_id), name=request_id)

    async def _work(self, item: PendingWarmup, expense: Expense, request_id: RequestId) -> None:
        job, computed = self._pending.job(item), 0
        try:
            step = item.make()
            try:
                async with asyncio.timeout(self._request_seconds):
                    computed = await self._send(job, step, request_id)
            except TimeoutError:
                job.step_failed(step, None, f"no answer within {self._request_seconds:g} seconds (warm.max_seconds)")
        finally:
            now = self._clock()
            self._budget.correct(expense, computed, now)
            self._in_flight.discard(item.target.replica)
            self._pending.done(item, now)


def _same(step: WarmupStep) -> WarmupStep:
    return step
