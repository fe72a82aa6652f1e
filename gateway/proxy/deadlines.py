"""Ends what has waited for too long: one timer of the event loop for all that wait."""

import asyncio
import math

from gateway.proxy.response import ResponseRelay

_GAP_SECONDS = 0.01
"""Least time between two looks, which take time in proportion to all that wait: clients with very short deadlines must
not cause more of them. Only a deadline that soon after a look is seen late."""


class Deadlines:
    """Looks whose time is over.

    A deadline is moved by storing it, without touching the timer: the timer fires in time also for one that is moved to
    ``least_seconds`` from the moment of the move. A timer for each that waits would be set two or three times and
    cancelled for every request.

    Args:
        least_seconds: Least time that a moved deadline lies ahead, unless it is later than what it was before.

    Attributes:
        discard: To be called with what is to be watched no longer. The timer stays: most often something else waits
            when it fires.
    """

    def __init__(self, least_seconds: float) -> None:
        self._least_seconds = least_seconds
        self._watched: set[ResponseRelay] = set()
        self.discard = self._watched.discard
        self._due = math.inf
        self._next_look_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, watched: ResponseRelay, now: float) -> None:
        """Watch something from ``now`` on, in the loop's time."""
        self._watched.add(watched)
        due = max(min(watched.until, now + self._least_seconds), self._next_look_at)
        if due < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._set(due)

    def _set(self, due: float) -> None:
        self._due = due
        self._timer = asyncio.get_running_loop().call_at(due, self._fired)

    def _fired(self) -> None:
        self._timer, self._due = None, math.inf
        now = asyncio.get_running_loop().time()
        self._next_look_at = now + _GAP_SECONDS
        nearest = now + self._least_seconds
        for each in list(self._watched):
            if each.until <= now:
                self._watched.discard(each)
                each.time_over(now)
            elif each.until < nearest:
                nearest = each.until
        if self._watched:
            self._set(max(nearest, self._next_look_at))
