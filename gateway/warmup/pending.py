"""Requests of repeated warm-up that wait for an idle replica and for the budget."""

from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass

import orjson

from gateway.core.ids import ModelId, Target
from gateway.core.request import Endpoint
from gateway.core.tenant import Caller
from gateway.telemetry import MetricsObserver
from gateway.warmup.declared import Declared
from gateway.warmup.hot_prompts import HotPrompt
from gateway.warmup.ledger import WarmCause
from gateway.warmup.runner import Job, JobState
from gateway.warmup.warmup_plan import WarmupStep

_STALE_SECONDS = 900.0
"""Longest time that a request waits. By then clients have filled the cache, or do not need it."""

_MAX_WAITING = 10_000
"""Requests that wait; further ones are left out. Each takes about 300 bytes."""

_WORDS = {
    "busy": "because the replica was never idle",
    "budget": "because of the budget (warm.again)",
    "gone": "because the replica was gone",
}
"""Why a request was left out."""


@dataclass(slots=True, eq=False)
class PendingWarmup:
    """One prefix for one target.

    Attributes:
        key: The same for the same prefix and target.
        caller: On whose behalf it is sent.
        model: The model.
        target: Replica and rank.
        tokens: Its prompt tokens at most.
        make: Makes the request; a long list of token ids is only made when it is sent.
        job_id: The job it belongs to.
        planned_at: Monotonic seconds.
        due_at: Monotonic seconds before which it is not sent.
        blocked: Why it was not sent the last time it was looked at.
    """

    key: Hashable
    caller: Caller
    model: ModelId
    target: Target
    tokens: int
    make: Callable[[], WarmupStep]
    job_id: str = ""
    planned_at: float = 0.0
    due_at: float = 0.0
    blocked: str = "busy"


class PendingWarmups:
    """Requests that wait, in the order in which they were planned, and the jobs they belong to.

    Args:
        observer: Gets the requests that are left out.

    Attributes:
        left_out: Requests that were not sent, by reason.
    """

    def __init__(self, observer: MetricsObserver) -> None:
        self._observer = observer
        self._causes: Counter[WarmCause] = Counter()
        self._waiting: dict[Hashable, PendingWarmup] = {}
        self._jobs: dict[str, Job] = {}
        self._open: dict[str, int] = {}
        self.left_out = dict.fromkeys(_WORDS, 0)

    def __len__(self) -> int:
        return len(self._waiting)

    def waits(self, cause: WarmCause) -> bool:
        """Whether requests of a cause wait."""
        return self._causes[cause] > 0

    def add(
        self, items: Iterable[PendingWarmup], cause: WarmCause, now: float, due_at: float, requests_per_second: float
    ) -> Job | None:
        """Add requests, without those that wait already. Returns their job; None if all of them do."""
        new = {item.key: item for item in items if item.key not in self._waiting}
        if not new:
            return None
        job = Job(len(new), now, requests_per_second=requests_per_second, cause=cause)
        self._jobs[job.id], self._open[job.id] = job, len(new)
        for key, item in new.items():
            item.job_id, item.planned_at, item.due_at = job.id, now, due_at
            if len(self._waiting) < _MAX_WAITING:
                self._waiting[key] = item
                self._causes[cause] += 1
            else:
                self._left_out(item, item.blocked, now)
        return job

    def due(self, now: float) -> Iterator[PendingWarmup]:
        """The requests that may be sent, oldest first. The caller may take or leave out what it gets."""
        for item in list(self._waiting.values()):
            if item.due_at <= now:
                yield item

    def take(self, item: PendingWarmup) -> None:
        """It is being sent; ``done`` has to follow."""
        del self._waiting[item.key]
        self._causes[self.job(item).cause] -= 1

    def job(self, item: PendingWarmup) -> Job:
        """The job of a request."""
        return self._jobs[item.job_id]

    def done(self, item: PendingWarmup, now: float) -> None:
        """It was sent and is over."""
        left = self._open[item.job_id] = self._open[item.job_id] - 1
        if not left:
            job = self._jobs.pop(item.job_id)
            del self._open[item.job_id]
            why = ", ".join(f"{count} {_WORDS[reason]}" for reason, count in job.left_out.items())
            job.end(JobState.CANCELLED if why else JobState.DONE, now, why and f"not sent: {why}")

    def leave_out(self, item: PendingWarmup, reason: str, now: float) -> None:
        """It is not sent: ``busy``, ``budget`` or ``gone``."""
        self.take(item)
        self._left_out(item, reason, now)

    def drop_stale(self, now: float) -> None:
        """Leave out what has waited for too long."""
        for item in list(self._waiting.values()):
            if now - item.planned_at < _STALE_SECONDS:
                return  # the others were planned later
            self.leave_out(item, item.blocked, now)

    def clear(self, now: float) -> None:
        """Leave out everything, because there is no budget any more."""
        for item in list(self._waiting.values()):
            self.leave_out(item, "budget", now)

    def _left_out(self, item: PendingWarmup, reason: str, now: float) -> None:
        item.blocked = reason
        self.left_out[reason] += 1
        job = self.job(item)
        job.left_out[reason] = job.left_out.get(reason, 0) + 1
        self._observer.on_warm_left_out(item.model, reason)
        self.done(item, now)


def hot_step(hot: HotPrompt, caller: Caller, target: Target) -> WarmupStep:
    """The request for a hot prefix: exactly its tokens, without the messages they came from."""
    fields = dict(hot.request.fields) | {
        "model": hot.request.model,
        "prompt": array("I", hot.ids).tolist(),
        "max_tokens": 1,
        "stream": False,
        "n": 1,
    }
    declared = Declared(
        endpoint=Endpoint.COMPLETIONS,
        model=hot.request.model,
        tenant=caller.tenant.id,
        scope=caller.scope,
        replicas=None,
        body=orjson.dumps(fields),
        fields=fields,
    )
    return WarmupStep(None, declared, caller, target, hot.request)
