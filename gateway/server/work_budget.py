"""How much work clients can cause before their requests are admitted: in one request, and in one event-loop iteration.

What a byte costs depends on what it is part of: a byte of a body a few nanoseconds, of a chunk of one byte a hundred,
of a request that is refused some microseconds. So work counts by the time that it takes: reading, parsing, declined
upgrades, refusals, and the beginning of requests.

A connection works in turns. Its first turn after it has received something comes before all further turns of
connections that sent more than one turn can parse: a small request does not wait for large ones.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

Turn = Callable[[], bool]
"""One turn of a connection. Returns whether more can be done at once."""

MAX_TINY_CHUNKS = 16_384
TINY_CHUNK_BYTES = 64
"""A body of more chunks than this that are smaller on average is refused: its framing costs more than its content."""

MAX_HEADERS = 200

BYTES_BEYOND = 8 * 1024
"""Read of a head that is too large already: browsers send ``origin`` last, and show a refusal only if it answers it."""

PORTION_BYTES = 1024
"""Parsed at once, of a head or of a chunked body: at most 170 calls of the parser, for headers or chunks of 6 bytes."""

LARGE_PORTION_BYTES = 16 * 1024
"""The same while the chunks of a body are large."""

LARGE_CHUNKS = 4
"""Chunks in a portion up to which the next portion is twice as large."""

TURN_SECONDS = 0.00005
"""Time after its first portion in which a turn parses further ones. With a hundred connections that all send what costs
most, a round takes 20 ms."""

_SECONDS_PER_ITERATION = 0.004
"""An iteration also does what the begun requests need: three of them (reading, beginning, writing) fit into the 50 ms
that another client may wait."""

_SECONDS_PER_BYTE = 4e-9
"""Of reading, before the connection gets the bytes: copying, and memory that the process has not touched before."""

_SECONDS_PER_REQUEST = 0.0001
"""What a begun request causes after its turn, at least: its task, its log line, sending its answer."""


class WorkBudget:
    """Gives the connections of a port their turns, for a few milliseconds in each iteration of the event loop.

    Args:
        clock: Monotonic seconds.
    """

    __slots__ = ("_clock", "_first", "_further", "_left", "_scheduled")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._left = _SECONDS_PER_ITERATION
        self._first: deque[tuple[Turn, int]] = deque()
        self._further: deque[Turn] = deque()
        self._scheduled = False

    def received(self, turn: Turn, size: int) -> None:
        """A connection has received ``size`` bytes: its turn is now, or when it is next."""
        if self._left > 0 and not self._first:
            self._take(turn, size)
        else:
            self._first.append((turn, size))
        # Not in each iteration: an iteration that begins with half of its time has enough for ordinary requests.
        if not self._scheduled and (self._first or self._further or self._left < _SECONDS_PER_ITERATION / 2):
            self._schedule()

    def resume(self, turn: Turn) -> None:
        """A connection can work on what it received before."""
        self._further.append(turn)
        if not self._scheduled:
            self._schedule()

    def count_request(self) -> None:
        """A request begins in the present turn."""
        self._left -= _SECONDS_PER_REQUEST

    def _take(self, turn: Turn, size: int) -> None:
        # Its bytes count now, and not when they came: a connection that waits for its turn reads again after it.
        began = self._clock() - size * _SECONDS_PER_BYTE
        if turn():
            self._further.append(turn)
        self._left -= self._clock() - began

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._next_iteration)

    def _next_iteration(self) -> None:
        self._scheduled = False
        self._left = _SECONDS_PER_ITERATION
        try:
            while self._first and self._left > 0:
                self._take(*self._first.popleft())
            # At least one: connections with first turns only must not hold up the others for ever.
            while self._further:
                self._take(self._further.popleft(), 0)
                if self._left <= 0:
                    break
        finally:
            if self._first or self._further:
                self._schedule()
