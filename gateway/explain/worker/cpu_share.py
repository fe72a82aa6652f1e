"""Holds the CPU time of explaining to a share of the gateway's own, by leaving out whole conversations.

What explaining all requests of the last ten seconds would cost is their number times the mean of what explained ones
cost. Beyond the limit, conversations are chosen by their hash, so that all turns of one are explained or none: a turn
is compared with the one before. Nothing is put off, so there is no backlog that requests would pay for later.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import structlog

_STEP_SECONDS = 1.0
_STEPS = 10

_FREE_SHARE = 0.1
"""Of one core, what explaining may always use: with little traffic every request is explained."""

_HASHES = 1 << 32
_SMOOTHED = 0.5
_SAID_SECONDS = 60.0
_log = structlog.get_logger("gateway.explain.worker")


class _Second(NamedTuple):
    asked: int
    own_seconds: float


class CpuShare:
    """Decides which conversations are explained.

    Args:
        most: CPU time of explaining, as a share of the gateway's; None: no limit.
        clock: Monotonic seconds.
        own: CPU seconds of this process.

    Attributes:
        most: As given.
        admitted: The share of conversations that are explained, above 0.
    """

    def __init__(
        self,
        most: float | None,
        clock: Callable[[], float] = time.monotonic,
        own: Callable[[], float] = time.process_time,
    ) -> None:
        self.most = most
        self.admitted = 1.0
        self._clock, self._own = clock, own
        self._steps: deque[_Second] = deque(maxlen=_STEPS)
        self._step_at, self._step_own = clock(), own()
        self._asked = self._explained = 0
        self._explain_seconds = 0.0
        self._cost: float | None = None
        self._said_at = float("-inf")

    def admits(self, conversation: Callable[[], int]) -> bool:
        """Whether a request is explained; ``conversation`` gives the 32-bit hash of its conversation."""
        self._asked += 1
        return self.admitted >= 1.0 or conversation() < self.admitted * _HASHES

    def spent(self, seconds: float, explained: int) -> None:
        """The other process has used so much CPU time, with so many explained requests."""
        self._explain_seconds += seconds
        self._explained += explained
        now = self._clock()
        if now - self._step_at >= _STEP_SECONDS:
            self._adjust(now)

    def _adjust(self, now: float) -> None:
        own = self._own()
        steps = max(round((now - self._step_at) / _STEP_SECONDS), 1)
        # Without reports for a while, what was asked meanwhile is spread over that time.
        for _ in range(min(steps, _STEPS)):
            self._steps.append(_Second(round(self._asked / steps), (own - self._step_own) / steps))
        self._step_at, self._step_own, self._asked = now, own, 0
        if self._explained:
            cost = self._explain_seconds / self._explained
            # A rise counts at once: other traffic may cost forty times as much.
            self._cost = cost if self._cost is None else max(cost, self._cost + _SMOOTHED * (cost - self._cost))
            self._explained, self._explain_seconds = 0, 0.0
        if self.most is None or self._cost is None:
            self.admitted = 1.0
            return
        wanted = self._cost * sum(step.asked for step in self._steps)
        free = _FREE_SHARE * _STEP_SECONDS * _STEPS
        allowed = max(self.most * sum(step.own_seconds for step in self._steps), free)
        admitted = 1.0 if wanted <= allowed else allowed / wanted
        if admitted < 1.0 and now - self._said_at >= _SAID_SECONDS:
            self._said_at = now
            _log.info("explain_limited", share=round(admitted, 3), milliseconds_each=round(self._cost * 1000, 3))
        self.admitted = admitted
