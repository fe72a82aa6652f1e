"""Runs warm-up jobs: ordered by an operator, or started when a replica joins."""

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from gateway.admission import Authenticator
from gateway.config.warmup_settings import WarmSettings
from gateway.core.errors import BadRequest, ConfigInvalid, ShuttingDown
from gateway.core.ids import ModelId, ReplicaId
from gateway.core.request import Endpoint
from gateway.fleet.fleet import Fleet
from gateway.flow import Flow
from gateway.tasks import TaskGroupOwner
from gateway.warmup.declared import Declared, Location, Malformed, parse_order
from gateway.warmup.document import read_prefixes
from gateway.warmup.lasting import LastingWarmup, WarmLinks
from gateway.warmup.ledger import WarmCause
from gateway.warmup.runner import Clock, Job, JobState, Runner, Sleep
from gateway.warmup.warmup_plan import (
    InApplication,
    Planner,
    WarmupPlan,
    WarmupStep,
    unregistered,
)

_KEPT_JOBS = 32
_MAX_ORDERS = 32
"""Maximum number of orders that run at the same time."""

_log = structlog.get_logger("gateway.warmup")


class _ReplicaWarmup:
    """The warm-up of a joined replica, which is held back from clients' requests meanwhile."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.cancel_reason = ""
        self.again = False

    def cancel(self, reason: str, *, again: bool) -> None:
        """Cancel it; with ``again`` it is restarted after it has ended."""
        self.cancel_reason, self.again = reason, again
        assert self.task is not None
        self.task.cancel()


class Warmer:
    """Runs warm-up jobs. Needs a running event loop.

    Args:
        service: Answers requests; honours ``ChatRequest.warmup_target``.
        fleet: The replicas.
        tenants: The tenants.
        isolated: Whether prefixes are separated by tenant, so that a prefix must name its tenant.
        hold: Called with true when a replica should get requests only if no other one can, and with false when its
            warm-up has ended for any reason.
        count: Returns the prompt tokens for a prefix's model, endpoint and fields; None if unknown.
        settings: The settings.
        links: What repeated warm-up needs.
        discovered: Returns the models whose replicas are discovered at run time.
        registered: Returns the prefixes of registered prompts; asked at the start and at every reload.
        in_application: As for ``Planner``.
        clock: Monotonic seconds.
        sleep: Waits.

    Raises:
        ConfigInvalid: the file of prefixes is invalid; one line per problem.
    """

    def __init__(
        self,
        service: Flow,
        fleet: Fleet,
        tenants: Authenticator,
        *,
        isolated: Callable[[], bool],
        hold: Callable[[ReplicaId, bool], None],
        count: Callable[[ModelId, Endpoint, Mapping[str, Any]], Awaitable[int | None]],
        settings: WarmSettings,
        links: WarmLinks,
        discovered: Callable[[], Collection[ModelId]] = tuple,
        registered: Callable[[], Sequence[Declared]] = tuple,
        in_application: InApplication = unregistered,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._planner = Planner(fleet, tenants, isolated, discovered, in_application)
        self._runner = Runner(service, links.ledger, clock, sleep)
        self._ledger = links.ledger
        self._hold = hold
        self._count = count
        self._counted: dict[int, int] = {}
        self._settings = settings
        self._clock = clock
        self._tasks = TaskGroupOwner()
        self._jobs: dict[str, Job] = {}
        self._filling: dict[ReplicaId, _ReplicaWarmup] = {}
        self._early: dict[ReplicaId, None] | None = {}
        self._stopped = False
        self._keeping: asyncio.Task[None] | None = None
        self._registered = registered
        self._declared = [*self._checked(settings.file), *registered()]
        self._lasting = LastingWarmup(
            links,
            self._planner,
            send=self._runner.send,
            keep=self._keep,
            declared=lambda: self._declared,
            counted=lambda position: self._counted.get(position),  # noqa: PLW0108 - a recount replaces it
            held=lambda: self._filling,
            clock=clock,
            sleep=sleep,
        )
        self._configure_lasting(settings)

    def start(self, order: Mapping[str, object], by: str) -> Mapping[str, object]:
        """Begin to send declared prefixes; returns the job as ``job`` does. An invalid order sends nothing.

        Args:
            order: The parsed body of ``POST /admin/api/warm``.
            by: Id of the admin token, empty without one.

        Raises:
            BadRequest: the order is invalid; message and param name the field.
        """
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
        running = sum(job.state is JobState.RUNNING and job.cause is WarmCause.ORDER for job in self._jobs.values())
        if running >= _MAX_ORDERS:
            raise BadRequest(f"{running} jobs are running already. Wait until one has ended.", code="too_many_jobs")
        rate = wanted.requests_per_second or self._settings.requests_per_second
        return self._send(plan, rate, WarmCause.ORDER, by=by).shown(self._clock())

    def _send(self, plan: WarmupPlan, rate: float, cause: WarmCause, *, by: str = "") -> Job:
        """Start a job that sends the requests of a plan."""
        job = Job(len(plan.steps), self._clock(), requests_per_second=rate, cause=cause, by=by, down=plan.down)
        self._keep(job)
        task = self._tasks.spawn(self._run(job, plan.steps, rate, None), name=f"warm-{job.id}")
        task.add_done_callback(functools.partial(self._ended, job, None))
        return job

    def warm_applications(self, names: Collection[str]) -> None:
        """Send the registered prefixes of some applications (``id@version``) to all replicas that are up.

        One that cannot be sent is logged, and does not keep the others back.
        """
        if self._stopped:
            return
        plan = self._planner.registered([prefix for prefix in self._registered() if prefix.application in names])
        if plan is not None:
            self._send(plan, self._settings.requests_per_second, WarmCause.PROMPT_VERSION)

    def job(self, job: str) -> Mapping[str, object] | None:
        """The progress of a job, JSON-ready; None if it is neither running nor one of the last ended ones."""
        known = self._jobs.get(job)
        return None if known is None else known.shown(self._clock())

    async def overview(self) -> Mapping[str, object]:
        """The declared prefixes and the last jobs, JSON-ready; as in ``GET /admin/api/warm``."""
        declared, counted = await self._count_declared()
        now = self._clock()
        return {
            "declared": [
                {
                    "model": prefix.model,
                    "tenant": prefix.tenant,
                    "scope": prefix.scope,
                    "application": prefix.application,
                    "replicas": None if prefix.replicas is None else sorted(prefix.replicas),
                    "tokens": counted.get(position),
                }
                for position, prefix in enumerate(declared)
            ],
            "jobs": [job.shown(now) for job in reversed(self._jobs.values())],
            "again": self._lasting.shown(),
            "totals": list(self._ledger.shown()),
        }

    def recount(self) -> None:
        """Drop the token counts, because a tokenizer or template has changed."""
        self._counted = {}

    def start_background(self) -> None:
        """Warm up the replicas that have joined so far, and every one that joins later.

        Call it after encoders are loaded: before, prompts may get a different prefix space than clients' requests, in
        which their cached blocks are of no use.
        """
        early, self._early = self._early or {}, None
        for replica in early:
            self._warm_up(replica)
        self._start_lasting()

    def joined(self, replica: ReplicaId) -> None:
        """Warm up a replica that came up: new, recovered or restarted.

        Restarts a running warm-up, because the replica may have lost its cache.
        """
        self._lasting.joined(replica)
        if self._early is not None:
            self._early[replica] = None
        elif (filling := self._filling.get(replica)) is not None:
            filling.cancel("the replica came up again", again=True)
        else:
            self._warm_up(replica)

    def left(self, replica: ReplicaId) -> None:
        """Cancel the warm-up of a replica that went down or drains."""
        if self._early is not None:
            self._early.pop(replica, None)
        elif (filling := self._filling.get(replica)) is not None:
            filling.cancel("the replica went down or drains", again=False)

    async def reload(self, settings: WarmSettings) -> None:
        """Replace the settings and read the file again; does not warm up replicas that are already up.

        An invalid file is logged, and the previous prefixes stay in use.
        """
        self._settings = settings
        self._configure_lasting(settings)
        try:
            # Parsing YAML takes about half a second per megabyte.
            file = None if settings.file is None else await asyncio.to_thread(read_prefixes, settings.file)
            if file is not None:
                file.check(self._planner.check)
        except ConfigInvalid as invalid:
            _log.error("warm_file_invalid", problems=invalid.problems, instead="the prefixes read before stay in use")
        else:
            self._declared = [*([] if file is None else file.declared), *self._registered()]
            self.recount()
            _log.info("warm_file_read", prefixes=len(self._declared))
        if self._early is None:
            self._start_lasting()

    async def stop(self) -> None:
        """End all jobs; replicas that are held back are released."""
        self._stopped = True
        await self._tasks.cancel()
        await self._lasting.stop()

    def _start_lasting(self) -> None:
        if not self._lasting.enabled or self._stopped:
            return
        # Beside it, because an engine may be asked for tokens; until then their number is estimated.
        self._tasks.spawn(self._count_declared(), name="warm-count")
        if self._keeping is None or self._keeping.done():
            self._lasting.forget_ends()
            self._keeping = self._tasks.spawn(self._lasting.run(), name="warm-again")

    def _configure_lasting(self, settings: WarmSettings) -> None:
        self._lasting.configure(settings.again, settings.requests_per_second, settings.max_seconds)

    async def _count_declared(self) -> tuple[Sequence[Declared], Mapping[int, int]]:
        """The declared prefixes, and the tokens of those that can be counted, by position."""
        declared, counted = self._declared, self._counted
        for position, prefix in enumerate(declared):
            if position not in counted:
                tokens = await self._count(prefix.model, prefix.endpoint, prefix.fields)
                if tokens is not None:
                    counted[position] = tokens
        return declared, counted

    def _checked(self, path: Path | None) -> list[Declared]:
        if path is None:
            return []
        file = read_prefixes(path)
        file.check(self._planner.check)
        return file.declared

    def _warm_up(self, replica: ReplicaId) -> bool:
        """Start a replica's warm-up; returns whether there is anything to send."""
        steps = [] if self._stopped else self._planner.joined(self._declared, replica)
        if not steps:
            return False
        rate = self._settings.requests_per_second
        job = Job(len(steps), self._clock(), requests_per_second=rate, cause=WarmCause.JOINED, joined=replica)
        self._keep(job)
        filling = self._filling[replica] = _ReplicaWarmup()
        self._hold(replica, True)
        filling.task = self._tasks.spawn(self._run(job, steps, rate, self._settings.max_seconds), name=f"warm-{job.id}")
        # Callbacks, because a task that is cancelled before its first step does not run its `finally`.
        filling.task.add_done_callback(functools.partial(self._ended, job, filling))
        filling.task.add_done_callback(functools.partial(self._warmed_up, replica, filling))
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

    def _ended(self, job: Job, filling: _ReplicaWarmup | None, task: asyncio.Task[None]) -> None:
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

    def _warmed_up(self, replica: ReplicaId, filling: _ReplicaWarmup, _task: asyncio.Task[None]) -> None:
        del self._filling[replica]
        if not (filling.again and self._warm_up(replica)):
            self._hold(replica, False)

    def _keep(self, job: Job) -> None:
        """Store a job, and drop the oldest ended ones."""
        self._jobs[job.id] = job
        ended = [known.id for known in self._jobs.values() if known.state is not JobState.RUNNING]
        for old in ended[: max(len(self._jobs) - _KEPT_JOBS, 0)]:
            del self._jobs[old]


def _param(location: Location) -> str:
    """The location in the API's form, such as ``prefixes[3].tenant``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")
