"""How fast caches are filled: so many requests a second, and so many at a time at one replica."""

import asyncio
from collections.abc import Awaitable, Callable

from gateway.core.ids import ReplicaId

AT_A_TIME = 2
"""Requests in flight at one replica. One more than it computes, so that it does not wait for the next; no more, because
clients' requests queue behind them."""

Clock = Callable[[], float]
"""Monotonic seconds."""

Sleep = Callable[[float], Awaitable[object]]
"""Waits so many seconds."""


class RateLimit:
    """Keeps events apart. Time that was not used is not made up for: there are no bursts.

    Args:
        per_second: Events a second.
        clock: What time it is.
        sleep: Waits.
    """

    def __init__(self, per_second: float, clock: Clock, sleep: Sleep) -> None:
        self._apart = 1 / per_second
        self._clock = clock
        self._sleep = sleep
        self._next = clock()

    async def wait(self) -> None:
        """Wait until the next event is due."""
        while (left := self._next - self._clock()) > 0:
            await self._sleep(left)

    def took(self) -> None:
        """The event has happened."""
        self._next = self._clock() + self._apart


class ReplicaSlots:
    """Bounds what is in flight at each replica, over everything that shares this object."""

    def __init__(self) -> None:
        self._taken: dict[ReplicaId, int] = {}
        self._freed = asyncio.Event()

    def take(self, replica: ReplicaId) -> bool:
        """Take a slot, if there is one."""
        taken = self._taken.get(replica, 0)
        if taken >= AT_A_TIME:
            return False
        self._taken[replica] = taken + 1
        return True

    def free(self, replica: ReplicaId) -> None:
        """Give a slot back."""
        left = self._taken.pop(replica) - 1
        if left:
            self._taken[replica] = left
        freed, self._freed = self._freed, asyncio.Event()
        freed.set()

    def freed(self) -> asyncio.Event:
        """Is set when the next slot is given back, at whatever replica."""
        return self._freed
