"""How many requests may be tried again: when everything fails, every request sent twice makes it worse.

No I/O, no clock. The idea is that of Finagle's and gRPC's retry budgets: a share of the requests, and a floor.
"""

from collections import deque

_WINDOW_SECONDS = 10


class RetryBudget:
    """Requests and repetitions of the last ten seconds.

    Args:
        share: Repetitions per request that are borne.
        floor: Repetitions in ten seconds that are borne however few requests there are: those of a replica that died
            are all repeated at once.
    """

    def __init__(self, share: float, floor: int) -> None:
        self._share = share
        self._floor = floor
        self._seconds: deque[list[int]] = deque()
        self._requests = 0
        self._repeated = 0

    def request(self, now: float) -> None:
        """A request came at ``now`` (monotonic seconds)."""
        self._second(now)[1] += 1
        self._requests += 1

    def take(self, now: float) -> bool:
        """Whether one more may be tried again; if so, it is counted."""
        second = self._second(now)
        if self._repeated >= self._floor + self._share * self._requests:
            return False
        second[2] += 1
        self._repeated += 1
        return True

    def _second(self, now: float) -> list[int]:
        """The present second: its number, requests, repetitions."""
        number = int(now)
        while self._seconds and self._seconds[0][0] <= number - _WINDOW_SECONDS:
            _, requests, repeated = self._seconds.popleft()
            self._requests -= requests
            self._repeated -= repeated
        # A request's own time may be a little before one that was counted already; it then counts with that.
        if not self._seconds or self._seconds[-1][0] < number:
            self._seconds.append([number, 0, 0])
        return self._seconds[-1]
