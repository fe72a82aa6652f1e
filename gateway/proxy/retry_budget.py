"""Limits retries to a share of requests, so that retries cannot multiply an overload.

No I/O, no clock. As the retry budgets of Finagle and gRPC: a share of the requests, and a floor.
"""

from collections import deque

_WINDOW_SECONDS = 10


class RetryBudget:
    """Requests and retries of the last ten seconds.

    Args:
        share: Retries allowed per request.
        floor: Retries allowed in ten seconds with any number of requests: the requests of a replica that died are all
            retried at once.
    """

    def __init__(self, share: float, floor: int) -> None:
        self._share = share
        self._floor = floor
        self._seconds: deque[list[int]] = deque()
        self._requests = 0
        self._repeated = 0

    def request(self, now: float) -> None:
        """Count a request at ``now`` (monotonic seconds)."""
        seconds = self._seconds
        # Nothing becomes too old within a second.
        (seconds[-1] if seconds and seconds[-1][0] == int(now) else self._second(now))[1] += 1
        self._requests += 1

    def is_left(self, now: float) -> bool:
        """Whether one more retry is allowed at ``now``."""
        self._second(now)
        return self._repeated < self._floor + self._share * self._requests

    def take(self, now: float) -> None:
        """Count a retry."""
        self._second(now)[2] += 1
        self._repeated += 1

    def _second(self, now: float) -> list[int]:
        """The counters of the present second: its number, requests, retries."""
        number = int(now)
        while self._seconds and self._seconds[0][0] <= number - _WINDOW_SECONDS:
            _, requests, repeated = self._seconds.popleft()
            self._requests -= requests
            self._repeated -= repeated
        # Times may be slightly out of order: an earlier time counts for the latest second.
        if not self._seconds or self._seconds[-1][0] < number:
            self._seconds.append([number, 0, 0])
        return self._seconds[-1]
