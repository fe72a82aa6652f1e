"""Holds the CPU time of explaining to a share of the gateway's own, by leaving out whole conversations.

What explaining all requests of the last ten seconds would take is estimated: their tokens times what a token of the
explained ones took. Beyond the limit, conversations are chosen by their hash, because a turn is compared with the one
before. Nothing is put off, so there is no backlog that requests would pay for later.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import structlog

_STEP_SECONDS = 1.0
_WINDOW_SECONDS = 10.0

_FREE_SHARE = 0.2
"""Of one core, what explaining may always use: with little traffic every request is explained."""

_LEAST_ADMITTED = 0.001
_HASHES = 1 << 32
_SMOOTHED = 0.5

_FORGOTTEN = 0.8
"""What remains of the cost of a token after a step without any: the last ones may have been unusual."""

_SAID_SECONDS = 60.0
_log = structlog.get_logger("gateway.explain.worker")


class _Interval(NamedTuple):
    """A step of a second or more: seconds, tokens of all requests, CPU seconds of the gateway and of explaining."""

    seconds: float
    asked: int
    own: float
    explaining: float


class CpuShare:
    """Decides which requests are explained.

    Args:
        most: CPU time of explaining, as a share of the gateway's; None: no limit.
        clock: Monotonic seconds.
        own: CPU seconds of this process.

    Attributes:
        most: As given.
        admitted: The share of conversations that are explained, above 0.
        has_room: Whether less than the limit was used in the last ten seconds.
    """

    def __init__(
        self,
        most: float | None,
        clock: Callable[[], float] = time.monotonic,
        own: Callable[[], float] = time.process_time,
    ) -> None:
        self.most = most
        self.admitted = 1.0
        self.has_room = True
        self._clock, self._own = clock, own
        self._steps: deque[_Interval] = deque()
        self._step_at, self._step_own = clock(), own()
        self._asked = self._explained = 0
        self._explaining = 0.0
        self._cost: float | None = None
        self._said_at = float("-inf")

    def admits(self, tokens: int, conversation: Callable[[], int]) -> bool:
        """Whether a request is explained.

        Args:
            tokens: Of its prompt.
            conversation: Gives the 32-bit hash of its conversation.
        """
        self._asked += tokens
        return self.admitted >= 1.0 or conversation() < self.admitted * _HASHES

    def spent(self, seconds: float, tokens: int) -> None:
        """The other process has explained prompts of so many tokens, in so much CPU time."""
        self._explaining += seconds
        self._explained += tokens
        now = self._clock()
        if now - self._step_at >= _STEP_SECONDS:
            self._adjust(now)

    def _adjust(self, now: float) -> None:
        own = self._own()
        last = _Interval(now - self._step_at, self._asked, own - self._step_own, self._explaining)
        self._steps.append(last)
        while sum(step.seconds for step in self._steps) - self._steps[0].seconds >= _WINDOW_SECONDS:
            self._steps.popleft()
        if self._explained:
            cost = self._explaining / self._explained
            # A rise counts at once: other traffic may cost forty times as much.
            self._cost = cost if self._cost is None else max(cost, self._cost + _SMOOTHED * (cost - self._cost))
        elif self._cost is not None:
            self._cost *= _FORGOTTEN
        self._step_at, self._step_own, self._asked, self._explained, self._explaining = now, own, 0, 0, 0.0
        self.admitted, self.has_room = self._share(last)
        if self.admitted < 1.0 and now - self._said_at >= _SAID_SECONDS:
            self._said_at = now
            _log.info("explain_limited", share=round(self.admitted, 4))

    def _share(self, last: _Interval) -> tuple[float, bool]:
        if self.most is None or self._cost is None:
            return 1.0, True
        seconds, asked, own, explaining = map(sum, zip(*self._steps, strict=True))
        # The seconds before the first request count as quiet ones.
        window = max(seconds, _WINDOW_SECONDS)
        allowed = max(self.most * own, _FREE_SHARE * window)
        if explaining > allowed / 2:
            # The mean of the window is late where traffic has just begun.
            wanted = self._cost * max(asked, last.asked * window / last.seconds)
        else:
            wanted = self._cost * asked
        admitted = 1.0 if wanted <= allowed else max(allowed / wanted, _LEAST_ADMITTED)
        return admitted, explaining < allowed
