"""Fills caches: by order of an operator, and by itself when a replica joins."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from gateway.config.warmup_settings import WarmSettings
from gateway.core.errors import BadRequest, ConfigInvalid, ShuttingDown
from gateway.core.ids import ModelId, ReplicaId
from gateway.core.request import Endpoint
from gateway.tasks import TaskGroupOwner
from gateway.warmup.declared import Declared, Location, Malformed
from gateway.warmup.document import read_prefixes
from gateway.warmup.job import Job, JobState
from gateway.warmup.rate_limit import Clock, Sleep
from gateway.warmup.runner import Runner, WarmupService
from gateway.warmup.warm_order import parse_order
from gateway.warmup.warmup_plan import Planner, WarmFleet, WarmupStep, WarmupTenants

_KEPT_JOBS = 32
_MOST_ORDERS = 32
"""Orders that may run at the same time."""

_log = structlog.get_logger("gateway.warmup")


class _Filling:
    """A replica that is held back while its cache is being filled."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.cancel_reason = ""
        self.again = False

    def cancel(self, reason: str, *, again: bool) -> None:
        """End it; with ``again``, begin anew as soon as it has ended."""
        self.cancel_reason, self.again = reason, again
        assert self.task is not None
        self.task.cancel()


class Warmer:
    """Implements ``WarmDesk``. Everything but ``reload`` and ``stop`` is synchronous and wants a running event loop.

    Args:
        service: What answers requests; honours ``ChatRequest.warms``.
        fleet: The replicas.
        tenants: The tenants.
        isolated: Whether tenants have prefixes of their own, so that a prefix has to say whose it is.
        hold: Called with true when a replica should take requests only for want of others, and with false when that is
            over, however it ended.
        count: From a prefix's model, endpoint and fields to its prompt tokens; None where nobody can tell.
        settings: The configuration.
        discovered: Models whose replicas are found while the gateway runs.
        clock: Monotonic seconds.
        sleep: Waits.

    Raises:
        ConfigInvalid: the file of prefixes cannot be used; with its lines.
    """

    def __init__(
        self,
        service: WarmupService,
        fleet: WarmFleet,
        tenants: WarmupTenants,
        *,
        isolated: Callable[[], bool],
        hold: Callable[[ReplicaId, bool], None],
        count: Callable[[ModelId, Endpoint, Mapping[str, Any]], Awaitable[int | None]],
        settings: WarmSettings,
        discovered: Callable[[], Collection[ModelId]] = tuple,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._planner = Planner(fleet, tenants, isolated, discovered)
        self._runner = Runner(service, clock, sleep)
        self._hold = hold
        self._count = count
        self._counted: dict[int, int] = {}
        self._settings = settings
        self._clock = clock
        self._tasks = TaskGroupOwner()
        self._jobs: dict[str, Job] = {}
        self._filling: dict[ReplicaId, _Filling] = {}
        self._early: dict[ReplicaId, None] | None = {}
        self._stopped = False
        self._declared = self._checked(settings.file)

    def start(self, order: Mapping[str, object], by: str) -> Mapping[str, object]:
        """See ``WarmDesk``. Nothing is sent of an order that is wrong in any part."""
        if self._stopped:
            raise ShuttingDown("The gateway is shutting down.", code="shutting_down")
        try:
            wanted = parse_order(order)
            if wanted.prefixes is None:
                plan = self._planner.declared(self._declared, wanted.replicas)
            else:
                plan = self._planner.order(wanted.prefixes, wanted.replicas)
        except Malformed as error:
            param = _param(error.location)
            raise BadRequest(f"`{param}`: {error.message}", param=param, code=error.code) from None
        running = sum(job.state is JobState.RUNNING and job.joined is None for job in self._jobs.values())
        if running >= _MOST_ORDERS:
            raise BadRequest(f"{running} jobs are running already. Wait until one has ended.", code="too_many_jobs")
        rate = wanted.requests_per_second or self._settings.requests_per_second
        job = Job(len(plan.steps), self._clock(), requests_per_second=rate, by=by, down=plan.down)
        self._keep(job)
        task = self._tasks.spawn(self._run(job, plan.steps, rate, None), name=f"warm-{job.id}")
        task.add_done_callback(functools.partial(self._ended, job, None))
        return job.shown(self._clock())

    def job(self, job: str) -> Mapping[str, object] | None:
        """See ``WarmDesk``. The last jobs are kept, and all that run."""
        known = self._jobs.get(job)
        return None if known is None else known.shown(self._clock())

    async def overview(self) -> Mapping[str, object]:
        """See ``WarmDesk``. Prompts are counted the first time only."""
        declared, counted = self._declared, self._counted
        for position, prefix in enumerate(declared):
            if position not in counted:
                tokens = await self._count(prefix.model, prefix.endpoint, prefix.fields)
                if tokens is not None:
                    counted[position] = tokens
        now = self._clock()
        return {
            "declared": [
                {
                    "model": prefix.model,
                    "tenant": prefix.tenant,
                    "scope": prefix.scope,
                    "replicas": None if prefix.replicas is None else sorted(prefix.replicas),
                    "tokens": counted.get(position),
                }
                for position, prefix in enumerate(declared)
            ],
            "jobs": [job.shown(now) for job in reversed(self._jobs.values())],
        }

    def recount(self) -> None:
        """A tokenizer or a template is another one: what was counted by the one before does not hold any more."""
        self._counted = {}

    def start_background(self) -> None:
        """Fill the replicas that have joined so far, and from now on every one that does.

        To be called when prompts are encoded as they will be later: an encoder that is still being loaded can put them
        into another prefix space than the clients' requests, where they are of no use.
        """
        early, self._early = self._early or {}, None
        for replica in early:
            self._fill(replica)

    def joined(self, replica: ReplicaId) -> None:
        """A replica came up: for the first time, after it was away, or after a restart. Fill its cache.

        If that is under way already, it begins anew: what was sent before may be lost.
        """
        if self._early is not None:
            self._early[replica] = None
        elif (filling := self._filling.get(replica)) is not None:
            filling.cancel("the replica came up again", again=True)
        else:
            self._fill(replica)

    def left(self, replica: ReplicaId) -> None:
        """A replica went down, or is to leave: there is nothing to fill any more."""
        if self._early is not None:
            self._early.pop(replica, None)
        elif (filling := self._filling.get(replica)) is not None:
            filling.cancel("the replica went down or drains", again=False)

    async def reload(self, settings: WarmSettings) -> None:
        """Take over other settings and read the file again; replicas that are up already get nothing.

        A file that cannot be used is logged, and what was declared before stays.
        """
        self._settings = settings
        try:
            # Reading YAML takes about half a second a megabyte.
            file = None if settings.file is None else await asyncio.to_thread(read_prefixes, settings.file)
            if file is not None:
                file.check(self._planner.check)
        except ConfigInvalid as invalid:
            _log.error("warm_file_invalid", problems=invalid.problems, instead="the prefixes read before stay in use")
        else:
            self._declared = [] if file is None else file.declared
            self.recount()
            _log.info("warm_file_read", prefixes=len(self._declared))

    async def stop(self) -> None:
        """End all jobs; replicas that are held back are released."""
        self._stopped = True
        await self._tasks.cancel()

    def _checked(self, path: Path | None) -> list[Declared]:
        if path is None:
            return []
        file = read_prefixes(path)
        file.check(self._planner.check)
        return file.declared

    def _fill(self, replica: ReplicaId) -> bool:
        """Begin to fill a replica's cache; returns whether there is anything to send."""
        steps = [] if self._stopped else self._planner.joined(self._declared, replica)
        if not steps:
            return False
        rate = self._settings.requests_per_second
        job = Job(len(steps), self._clock(), requests_per_second=rate, joined=replica)
        self._keep(job)
        filling = self._filling[replica] = _Filling()
        self._hold(replica, True)
        filling.task = self._tasks.spawn(self._run(job, steps, rate, self._settings.max_seconds), name=f"warm-{job.id}")
        # Callbacks, and not `finally`: a task that is cancelled before its first step never gets to one.
        filling.task.add_done_callback(functools.partial(self._ended, job, filling))
        filling.task.add_done_callback(functools.partial(self._filled, replica, filling))
        return True

    async def _run(self, job: Job, steps: Sequence[WarmupStep], rate: float, max_seconds: float | None) -> None:
        _log.info("warming_started", job=job.id, requests=job.total, requests_per_second=rate, joined=job.joined)
        try:
            async with asyncio.timeout(max_seconds):
                await self._runner.run(job, steps, rate)
        except TimeoutError:
            job.end(JobState.CANCELLED, self._clock(), f"not done within {max_seconds:g} seconds (warm.max_seconds)")
        else:
            job.end(JobState.DONE, self._clock())

    def _ended(self, job: Job, filling: _Filling | None, task: asyncio.Task[None]) -> None:
        reason = filling.cancel_reason if filling is not None else ""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("warming_broke", job=job.id, exc_info=error)
            reason = "the gateway failed; its log has the reason"
        job.end(JobState.CANCELLED, self._clock(), reason or "the gateway is shutting down")
        (_log.warning if job.failed or job.reason else _log.info)(
            "warming_ended",
            job=job.id,
            joined=job.joined,
            state=job.state,
            reason=job.reason or None,
            total=job.total,
            done=job.done,
            failed=job.failed,
            seconds=round(job.seconds(self._clock()), 3),
        )

    def _filled(self, replica: ReplicaId, filling: _Filling, _task: asyncio.Task[None]) -> None:
        del self._filling[replica]
        if not (filling.again and self._fill(replica)):
            self._hold(replica, False)

    def _keep(self, job: Job) -> None:
        """Remember a job, and forget the oldest that have ended."""
        self._jobs[job.id] = job
        ended = [known.id for known in self._jobs.values() if known.state is not JobState.RUNNING]
        for old in ended[: max(len(self._jobs) - _KEPT_JOBS, 0)]:
            del self._jobs[old]


def _param(location: Location) -> str:
    """``prefixes[3].tenant``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")
