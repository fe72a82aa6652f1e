"""Sliding windows of requests and tokens. They read no clock: every call takes the time.

Unlike fixed windows they admit no burst of twice the limit at a boundary. Times are monotonic seconds and must not
decrease between calls.
"""

from collections import deque
from dataclasses import dataclass


class RequestWindow:
    """Admits at most ``count`` requests in any period. Exact: keeps the time of each request in the window.

    Takes about 40 bytes per request admitted within the period.

    Args:
        count: Maximum number of requests.
        period_seconds: Length of the half-open period: a request admitted at t is free again at t + period.
    """

    def __init__(self, count: int, period_seconds: float) -> None:
        self.count = count
        self._period = period_seconds
        self._times: deque[float] = deque()

    def change(self, count: int, period_seconds: float) -> None:
        """Replace the limit; admitted requests stay counted."""
        self.count, self._period = count, period_seconds

    def wait_seconds(self, now: float) -> float:
        """Seconds until another request may be admitted; 0 if immediately."""
        self._expire(now)
        excess = len(self._times) - self.count
        return self._times[excess] + self._period - now if excess >= 0 else 0.0

    def admit(self, now: float) -> None:
        """Count a request that may be admitted."""
        self._expire(now)  # requests counted from other gateways come without a call of wait_seconds
        self._times.append(now)

    def take_back(self, admitted: float) -> None:
        """Remove the request admitted at this time, because it was refused later; ignored if it has expired."""
        for position in range(len(self._times) - 1, -1, -1):  # usually one of the last
            if self._times[position] <= admitted:
                if self._times[position] == admitted:
                    del self._times[position]
                return

    def remaining(self, now: float) -> tuple[int, float]:
        """Number of requests that may be admitted now, and seconds until the window is empty."""
        self._expire(now)
        times = self._times
        return max(self.count - len(times), 0), times[-1] + self._period - now if times else 0.0

    def _expire(self, now: float) -> None:
        times, period = self._times, self._period
        while times and times[0] + period <= now:
            times.popleft()


@dataclass(slots=True)
class Charge:
    """Tokens of requests that arrived within a quarter of a second, and expire together.

    Attributes:
        opened: Time of the first request.
        latest: Time of the last request, from which expiry is counted.
        tokens: Sum of the tokens.
        counted: Whether the charge is still in the window.
    """

    opened: float
    latest: float
    tokens: int
    counted: bool = True


class TokenWindow:
    """Admits at most ``limit`` tokens in any minute.

    Requests within ``MOMENT_SECONDS`` share one charge, to bound memory. It expires a minute after its last request, so
    the limit is never exceeded, and a token may count up to ``MOMENT_SECONDS`` too long.

    Args:
        limit: Tokens per minute.
    """

    PERIOD_SECONDS = 60.0
    MOMENT_SECONDS = 0.25

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._charges: deque[Charge] = deque()
        self._used = 0

    def wait_seconds(self, tokens: int, now: float) -> float:
        """Seconds until a number of tokens, at most the limit, fits; 0 if immediately."""
        self._expire(now)
        excess = self._used + tokens - self.limit
        wait = 0.0
        for charge in self._charges:
            if excess <= 0:
                break
            excess -= charge.tokens
            wait = charge.latest + self.PERIOD_SECONDS - now
        return wait

    def charge(self, tokens: int, now: float) -> Charge:
        """Count tokens that fit. Returns the charge for ``correct``."""
        self._expire(now)  # as in RequestWindow.admit
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
        """Add tokens to a charge (or, below 0, subtract), unless it has expired.

        This may exceed the limit, because the tokens were already computed; later requests have to wait.
        """
        if charge.counted:
            charge.tokens += change
            self._used += change

    def remaining(self, now: float) -> tuple[int, float]:
        """Number of tokens that fit now, and seconds until the window is empty."""
        self._expire(now)
        charges = self._charges
        return max(self.limit - self._used, 0), charges[-1].latest + self.PERIOD_SECONDS - now if charges else 0.0

    def _expire(self, now: float) -> None:
        charges = self._charges
        while charges and charges[0].latest + self.PERIOD_SECONDS <= now:
            charge = charges.popleft()
            charge.counted = False
            self._used -= charge.tokens
