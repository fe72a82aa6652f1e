"""A replica's circuit breaker: how long it is left out after it failed requests.

One failure leaves it out for a moment. Then one request at a time tries it: an answer closes the breaker, a failure
leaves it out for twice as long. Requests that fail together, because a process died under them, count as one failure.
No I/O, no clock.
"""

import math
from dataclasses import dataclass

_ODD_ANSWERS = 3
"""Answers with status 500 in a row that count as a failure of the replica. A single one may be the fault of a request:
whoever sends such a request again and again must not be able to take out one replica after the other."""


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """What a breaker goes by.

    Attributes:
        suspect_seconds: How long a replica is left out after its first failure; doubles with each one in a row.
        eject_after: Failures in a row from which on it counts as ejected.
        eject_max_seconds: Longest time that it is left out at once.
    """

    suspect_seconds: float
    eject_after: int
    eject_max_seconds: float


DEFAULT_LIMITS = BreakerLimits(suspect_seconds=5, eject_after=3, eject_max_seconds=60)


class Breaker:
    """One replica's breaker. All times are monotonic seconds.

    Args:
        limits: What it goes by.

    Attributes:
        failures: Failures in a row.
        until: Until when the replica is left out.
        since: When it last failed, or was started again: what was sent before tells nothing of it.
    """

    def __init__(self, limits: BreakerLimits) -> None:
        self._limits = limits
        self._odd = 0
        self.failures = 0
        self.until = 0.0
        self.since = -math.inf

    def failed(self, now: float, sent_at: float) -> bool:
        """A request that was sent there at ``sent_at`` failed.

        Returns:
            Whether this was news: what was under way when another one failed tells nothing more.
        """
        if sent_at < self.since:
            return False
        self.failures += 1
        self._odd = 0
        self.since = now
        longest = max(self._limits.eject_max_seconds, self._limits.suspect_seconds)
        self.until = now + min(self._limits.suspect_seconds * 2.0 ** min(self.failures - 1, 32), longest)
        return True

    def answered(self, sent_at: float) -> bool:
        """A request that was sent there at ``sent_at`` was answered. Returns whether that closed the breaker."""
        if sent_at < self.since:
            return False
        self._odd = 0
        if not self.failures:
            return False  # it may be busy all the same
        self._close()
        return True

    def odd(self, now: float, sent_at: float) -> bool:
        """A request was answered with status 500; see ``failed``."""
        if sent_at < self.since:
            return False
        self._odd += 1
        return self._odd >= _ODD_ANSWERS and self.failed(now, sent_at)

    def busy(self, now: float, seconds: float) -> None:
        """It sent a request away because it has too many: leave it out for so long. That is no failure."""
        self.until = max(self.until, now + seconds)

    def reset(self, now: float) -> None:
        """It is another process from ``now`` on: nothing that the one before did is held against it."""
        self._close()
        self.since = now

    def is_open(self, now: float) -> bool:
        """Whether the replica is left out."""
        return now < self.until

    def on_trial(self, now: float) -> bool:
        """Whether it gets one request at a time: it failed, and has not answered since."""
        return self.failures > 0 and now >= self.until

    @property
    def ejected(self) -> bool:
        """Whether it failed so often in a row that this is no accident."""
        return self.failures >= self._limits.eject_after

    def _close(self) -> None:
        self._odd = 0
        self.failures = 0
        self.until = 0.0
