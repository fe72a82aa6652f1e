"""A replica's circuit breaker: how long it gets no requests after failures.

A failure opens the breaker for a while. Then one request at a time is sent on trial: an answer closes the breaker, a
failure opens it for twice as long. Requests that fail together, because a process died, count as one failure.
No I/O, no clock.
"""

import math

from gateway.config.routing_settings import RelaySettings

_ODD_ANSWERS = 3
"""Answers with status 500 or 403 in a row that count as a failure of the replica. A single one may be caused by the
request: a client that repeats such a request must not eject one replica after the other."""

_STUCK_SECONDS = 10.0
"""Longest time between two trials of a replica that was silent: it may wake at any moment."""


class Breaker:
    """One replica's breaker. All times are monotonic seconds.

    Args:
        limits: ``suspect_seconds``, ``eject_after`` and ``eject_max_seconds``.

    Attributes:
        failures: Failures in a row.
        until: When the breaker stops being open.
        refusal: How the last failure refused the gateway, such as ``401: it refuses the gateway's key``; empty if it
            was another failure.
        since: When the replica last failed or was restarted; outcomes of requests sent earlier are ignored.
        is_stuck: Whether it was silent, and has not answered since.
    """

    def __init__(self, limits: RelaySettings) -> None:
        self._limits = limits
        self._odd = 0
        self.failures = 0
        self.until = 0.0
        self.refusal = ""
        self.since = -math.inf
        self.is_stuck = False

    def failed(self, now: float, sent_at: float, refusal: str = "") -> bool:
        """A request that was sent at ``sent_at`` failed, perhaps with a ``refusal``.

        Returns:
            Whether it counted: requests already in flight at the last failure do not.
        """
        if sent_at < self.since:
            return False
        self.failures += 1
        self.refusal = refusal
        self._odd = 0
        self.since = now
        longest = max(self._limits.eject_max_seconds, self._limits.suspect_seconds)
        self.until = now + min(self._limits.suspect_seconds * 2.0 ** min(self.failures - 1, 32), longest)
        return True

    def answered(self, sent_at: float) -> bool:
        """A request that was sent at ``sent_at`` was answered. Returns whether that closed the breaker."""
        if sent_at < self.since:
            return False
        self._odd = 0
        if not self.failures:
            return False  # an open breaker of a busy replica stays open
        self._close()
        return True

    def odd(self, now: float, sent_at: float, refusal: str = "") -> bool:
        """A request was answered with status 500 or 403; see ``failed``."""
        if sent_at < self.since:
            return False
        self._odd += 1
        return self._odd >= _ODD_ANSWERS and self.failed(now, sent_at, refusal)

    def silent(self, now: float) -> None:
        """Requests waited at it for nothing; see ``Silence``. Counts as a failure."""
        self.failed(now, now)
        self.is_stuck = True
        self.until = min(self.until, now + _STUCK_SECONDS)

    def busy(self, now: float, seconds: float) -> None:
        """It rejected a request for lack of capacity: open for ``seconds``. This is not a failure."""
        self.until = max(self.until, now + seconds)

    def reset(self, now: float) -> None:
        """The process was restarted at ``now``: forget its failures."""
        self._close()
        self.since = now

    def is_open(self, now: float) -> bool:
        """Whether the replica gets no requests."""
        return now < self.until

    def on_trial(self, now: float) -> bool:
        """Whether it gets one request at a time: it failed, and has not answered since."""
        return self.failures > 0 and now >= self.until

    @property
    def ejected(self) -> bool:
        """Whether it has failed ``eject_after`` times in a row."""
        return self.failures >= self._limits.eject_after

    def _close(self) -> None:
        self.refusal = ""
        self._odd = 0
        self.failures = 0
        self.until = 0.0
        self.is_stuck = False
