"""A warm-up job: its state, counts and failures."""

import secrets
from collections.abc import Sequence
from enum import StrEnum

from gateway.core.ids import ReplicaId
from gateway.warmup.warmup_plan import WarmupStep

_MAX_LISTED_FAILURES = 50
"""Failures that a job lists; further ones are only counted."""


class JobState(StrEnum):
    """State of a job."""

    RUNNING = "running"
    DONE = "done"
    """All requests were sent; some may have failed."""
    CANCELLED = "cancelled"
    """It ended before all requests were sent; see ``reason``."""


class Job:
    """One order of an operator, or the warm-up of a joined replica.

    Attributes:
        id: Random id.
        state: Its state.
        reason: Reason of a cancellation; else empty.
        total: Requests to send.
        done: Successful requests.
        failed: Failed requests.
        joined: The joined replica; None for an order.
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
        """Count a successful request."""
        self.done += 1

    def step_failed(self, step: WarmupStep, status: int | None, message: str) -> None:
        """Count a failed request; ``status`` is None without an answer."""
        self.failed += 1
        if len(self._failures) < _MAX_LISTED_FAILURES:
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
        """End the job; only the first call has an effect."""
        if self._ended_at is None:
            self.state, self.reason, self._ended_at = state, reason, now

    def seconds(self, now: float) -> float:
        """Duration of the job so far."""
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
