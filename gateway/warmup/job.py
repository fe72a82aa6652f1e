"""How far a job is."""

import secrets
from collections.abc import Sequence
from enum import StrEnum

from gateway.core.ids import ReplicaId
from gateway.warmup.warmup_plan import WarmupStep

_MOST_FAILURES = 50
"""Failures a job tells one by one; the others are only counted."""


class JobState(StrEnum):
    """Where a job stands."""

    RUNNING = "running"
    DONE = "done"
    """Everything was sent, some of it perhaps in vain."""
    CANCELLED = "cancelled"
    """It ended before everything was sent; ``reason`` says why."""


class Job:
    """One order, or one replica that is being filled before it takes requests.

    Attributes:
        id: Its name.
        state: Where it stands.
        reason: Why it was cancelled; empty if it was not.
        total: Requests to send.
        done: Requests answered as they should be.
        failed: Requests that were not.
    """

    def __init__(
        self,
        total: int,
        now: float,
        *,
        requests_per_second: float,
        by: str = "",
        joined: ReplicaId | None = None,
        down: Sequence[ReplicaId] = (),
    ) -> None:
        self.id = secrets.token_hex(8)
        self.state = JobState.RUNNING
        self.reason = ""
        self.total = total
        self.done = 0
        self.failed = 0
        self.joined = joined
        self._requests_per_second = requests_per_second
        self._by = by
        self._down = down
        self._failures: list[dict[str, object]] = []
        self._began_at = now
        self._ended_at: float | None = None

    def step_done(self) -> None:
        """A request was answered."""
        self.done += 1

    def step_failed(self, step: WarmupStep, status: int | None, message: str) -> None:
        """A request was not; ``status`` is None where there was no answer."""
        self.failed += 1
        if len(self._failures) < _MOST_FAILURES:
            self._failures.append(
                {
                    "index": step.index,
                    "replica": step.target.replica,
                    "rank": step.target.rank,
                    "status": status,
                    "message": message,
                }
            )

    def end(self, state: JobState, now: float, reason: str = "") -> None:
        """The job is over; only the first call counts."""
        if self._ended_at is None:
            self.state, self.reason, self._ended_at = state, reason, now

    def seconds(self, now: float) -> float:
        """How long it took, or has taken."""
        return (now if self._ended_at is None else self._ended_at) - self._began_at

    def shown(self, now: float) -> dict[str, object]:
        """The job, JSON-ready."""
        return {
            "id": self.id,
            "state": self.state,
            "reason": self.reason,
            "by": self._by,
            "joined": self.joined,
            "requests_per_second": self._requests_per_second,
            "total": self.total,
            "done": self.done,
            "failed": self.failed,
            "seconds": round(self.seconds(now), 3),
            "down": list(self._down),
            "failures": list(self._failures),
        }
