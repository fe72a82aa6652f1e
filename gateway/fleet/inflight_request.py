"""A request on its way to a replica, as long as it can still be called back."""

import asyncio


class InflightRequest:
    """One attempt. Lives inside ``async with asyncio.timeout(...)``.

    Args:
        timeout: Ends the attempt.
        now: Monotonic seconds of the running loop.

    Attributes:
        sent_at: When it began.
        heard_at: When the replica was last heard of in this attempt: when it began, or when the last byte came.
        called_back: Whether it was ended because its replica is gone.
    """

    __slots__ = ("_timeout", "called_back", "heard_at", "sent_at")

    def __init__(self, timeout: asyncio.Timeout, now: float) -> None:
        self._timeout = timeout
        self.sent_at = now
        self.heard_at = now
        self.called_back = False

    def call_back(self) -> None:
        """End it now."""
        if not (self.called_back or self._timeout.expired()):
            self.called_back = True
            self._timeout.reschedule(self.heard_at)
