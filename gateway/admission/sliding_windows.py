"""Sliding windows: how much was taken in the time just past. No clock: every call is told the time.

Nothing is reset on the minute, so there is no moment at which a burst of twice the limit gets through. Times are
monotonic seconds, none earlier than that of the call before.
"""

from collections import deque
from dataclasses import dataclass


class RequestWindow:
    """Admits at most so many requests in any time of a given length. Exact: it knows the time of each that counts.

    Memory grows with ``count``, by some 40 bytes for each request that was admitted within the period.

    Args:
        count: How many.
        period_seconds: In which time: any half-open one, so what was admitted at t is free again at t plus this.
    """

    def __init__(self, count: int, period_seconds: float) -> None:
        self.count = count
        self._period = period_seconds
        self._times: deque[float] = deque()

    def change(self, count: int, period_seconds: float) -> None:
        """Another limit from now on; what was admitted stays counted."""
        self.count, self._period = count, period_seconds

    def wait_seconds(self, now: float) -> float:
        """Until another request may be admitted; 0 if one may be at once."""
        self._forget(now)
        excess = len(self._times) - self.count
        return self._times[excess] + self._period - now if excess >= 0 else 0.0

    def admit(self, now: float) -> None:
        """Count a request that may be admitted."""
        self._forget(now)  # of what is admitted elsewhere alone, nobody asks here
        self._times.append(now)

    def take_back(self, admitted: float) -> None:
        """The request admitted at this time was refused after all: it does not count. Nothing if it is long past."""
        for position in range(len(self._times) - 1, -1, -1):  # it is mostly one of the last
            if self._times[position] <= admitted:
                if self._times[position] == admitted:
                    del self._times[position]
                return

    def standing(self, now: float) -> tuple[int, float]:
        """How many more may be admitted at once, and the seconds until nothing admitted so far counts any more."""
        self._forget(now)
        times = self._times
        return max(self.count - len(times), 0), times[-1] + self._period - now if times else 0.0

    def _forget(self, now: float) -> None:
        times, period = self._times, self._period
        while times and times[0] + period <= now:
            times.popleft()


@dataclass(slots=True)
class Charge:
    """Tokens of one or more requests that came within a moment, and count together.

    Attributes:
        opened: When the first came.
        latest: When the last came: with it they all stop to count.
        tokens: How many.
        counted: Whether they still count.
    """

    opened: float
    latest: float
    tokens: int
    counted: bool = True


class TokenWindow:
    """Takes at most so many tokens in any minute.

    What comes within a moment is kept as one, so that memory is bounded, and stops to count together, when the last of
    it is a minute old. So the limit is never exceeded, and a token counts up to a moment longer than it had to.

    Args:
        limit: Tokens in any minute.
    """

    PERIOD_SECONDS = 60.0
    MOMENT_SECONDS = 0.25

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._charges: deque[Charge] = deque()
        self._used = 0

    def wait_seconds(self, tokens: int, now: float) -> float:
        """Until so many tokens fit, which must not be more than the limit; 0 if they fit at once."""
        self._forget(now)
        excess = self._used + tokens - self.limit
        wait = 0.0
        for charge in self._charges:
            if excess <= 0:
                break
            excess -= charge.tokens
            wait = charge.latest + self.PERIOD_SECONDS - now
        return wait

    def charge(self, tokens: int, now: float) -> Charge:
        """Count tokens that fit. Returns what ``correct`` wants to know."""
        self._forget(now)  # as above
        last = self._charges[-1] if self._charges else None
        if last is not None and now - last.opened < self.MOMENT_SECONDS:
            last.tokens += tokens
            last.latest = now
        else:
            last = Charge(now, now, tokens)
            self._charges.append(last)
        self._used += tokens
        return last

    def correct(self, charge: Charge, change: int) -> None:
        """So many more (or, below 0, fewer) tokens were there than charged, unless the charge is over a minute old.

        More may go beyond the limit: they were computed, and what comes next has to wait for it.
        """
        if charge.counted:
            charge.tokens += change
            self._used += change

    def standing(self, now: float) -> tuple[int, float]:
        """How many tokens would fit, and the seconds until nothing taken so far counts any more."""
        self._forget(now)
        charges = self._charges
        return max(self.limit - self._used, 0), charges[-1].latest + self.PERIOD_SECONDS - now if charges else 0.0

    def _forget(self, now: float) -> None:
        charges = self._charges
        while charges and charges[0].latest + self.PERIOD_SECONDS <= now:
            charge = charges.popleft()
            charge.counted = False
            self._used -= charge.tokens
