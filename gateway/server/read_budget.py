"""How many bytes of large bodies are read in one iteration of the event loop, over all connections of a port.

Beyond the first read of each connection, which shows how large its body is.

In each iteration uvloop reads up to 256,000 bytes from every connection. Without a limit a hundred bodies that arrive
together make iterations of 25 MB, whose copies and new pages take tens of milliseconds, and other clients wait for the
end of each.
"""

import asyncio
from collections import deque
from typing import Protocol

LARGE_READ_BYTES = 64_000
"""Reads from this size on count."""

_BYTES_PER_ITERATION = 1024 * 1024
_CONTINUED_PER_ITERATION = 4
"""Connections that read next: each reads about a quarter of the budget."""


class Reader(Protocol):
    """A connection that reads."""

    def continue_reading(self) -> None:
        """It may read again."""
        ...


class ReadBudget:
    """Bytes that may be read in the present iteration. Once they are exceeded, connections read one after the other:
    each pauses after a large read, until those that paused before it have read."""

    __slots__ = ("_left", "_paused", "_scheduled")

    def __init__(self) -> None:
        self._left = _BYTES_PER_ITERATION
        self._paused: deque[Reader] = deque()
        self._scheduled = False

    def spend(self, reader: Reader, count: int) -> bool:
        """A connection has read bytes.

        Args:
            reader: The connection.
            count: How many, at least ``LARGE_READ_BYTES``.

        Returns:
            Whether the connection has to pause, until ``continue_reading`` is called.
        """
        self._left -= count
        if not self._scheduled:
            self._schedule()
        if self._left > 0 and not self._paused:
            return False
        self._paused.append(reader)
        return True

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._next_iteration)

    def _next_iteration(self) -> None:
        self._left = _BYTES_PER_ITERATION
        self._scheduled = False
        for _ in range(min(len(self._paused), _CONTINUED_PER_ITERATION)):
            self._paused.popleft().continue_reading()
        if self._paused:
            self._schedule()
