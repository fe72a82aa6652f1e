"""A timer that is set again often and rarely fires: for the next bytes of a connection."""

import asyncio
import math
from collections.abc import Callable

_RESOLUTION_SECONDS = 0.001
"""The least time for which a timer of the loop is set again. uvloop rounds to milliseconds: a timer for less would fire
at once, over and over until the time is over."""


class LazyTimer:
    """Calls back when a time is over.

    Stopping it, or waiting for a later time, leaves the loop's timer as it is: setting one for each request costs more
    than one that does nothing.

    Args:
        loop: The event loop.
        over: Called when the time is over.

    Attributes:
        waits: Whether a time is running.
        overdue: Seconds by which the loop was late when it fired last.
    """

    __slots__ = ("_deadline", "_due", "_handle", "_loop", "_over", "overdue", "waits")

    def __init__(self, loop: asyncio.AbstractEventLoop, over: Callable[[], None]) -> None:
        self._loop = loop
        self._over = over
        self._deadline = math.inf
        self._due = math.inf  # of the loop's timer; may be before the deadline: then that is set again
        self._handle: asyncio.TimerHandle | None = None
        self.waits = False
        self.overdue = 0.0

    def wait(self, seconds: float) -> None:
        """Let a time run from now on; it takes the place of the one that runs."""
        self.waits = True
        deadline = self._deadline = self._loop.time() + seconds
        if deadline < self._due:
            self._set()

    def stop(self) -> None:
        """Let no time run."""
        self.waits = False

    def cancel(self) -> None:
        """Let no time run any more. Setting it again has no effect."""
        self.waits = False
        self._over = _nothing  # the callback refers to the owner of this timer: a cycle would keep both
        self._due = -math.inf
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _set(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._due = self._deadline
        self._handle = self._loop.call_at(self._deadline, self._fired)

    def _fired(self) -> None:
        self._handle = None
        due, self._due = self._due, math.inf
        if not self.waits:
            return
        now = self._loop.time()
        if self._deadline > now:
            self._deadline = max(self._deadline, now + _RESOLUTION_SECONDS)
            self._set()
        else:
            self.overdue = now - due
            self.waits = False
            self._over()


def _nothing() -> None:
    pass
