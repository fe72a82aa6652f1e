"""Silence of a replica: its requests wait for their first content far longer than they should, and it answers nothing.

An engine whose scheduler hangs passes its health checks. Only its requests show it: those that wait, and those whose
clients left without an answer. Anything that the engine computes ends a silence, so a busy or slow replica is not
silent; what its peers achieve at the same time says how long is too long. No I/O, no clock.
"""

import math
from collections.abc import Iterable
from typing import Protocol

LOOK_SECONDS = 0.5
"""Time between two looks at the requests in flight."""

_TIMES = 5.0
"""Multiple of the expected wait, at the pace of the peers, from which on a silence is too long."""

_LEAST_SECONDS, _LEAST_AT_START = 2.0, 10.0
"""Shorter silences are none: a busy machine; before the first answer an engine may still compile."""

_ENOUGH = 3
"""Late requests that are full evidence. Fewer have to wait longer in proportion: one may be a prompt like no other."""

_MARGIN = 4.0
"""A peer that is silent itself for more than this part of the time proves nothing: perhaps all are slow."""


class InflightRequest(Protocol):
    """An attempt in flight, as the checks of its replica see it."""

    @property
    def sent_at(self) -> float:
        """When it was sent, in monotonic seconds."""
        ...

    @property
    def last_byte_at(self) -> float:
        """When the last piece of its answer other than comments was received; ``sent_at`` before the first one."""
        ...

    @property
    def content_at(self) -> float | None:
        """When the first content of its answer was received; None before. Comments, empty events, the role that opens
        an answer, and refusals are no content: an engine that hangs may send them."""
        ...

    @property
    def expected_seconds(self) -> float:
        """Expected time to the first content; infinite as long as too little is known of the model's replicas."""
        ...

    def call_back(self, problem: str) -> None:
        """End it now, because of a problem of its replica."""
        ...


class Silence:
    """What the requests of one replica say about it. All times are monotonic seconds.

    Attributes:
        seconds: How long requests have waited beyond their time since the replica last computed anything.
        pace: Time to first content in multiples of what was expected; rises at once, and falls slowly.
        paced_at: When the last request was sent that got content.
        is_reported: Whether this silence was logged.
    """

    def __init__(self) -> None:
        self.pace = 0.0
        self.paced_at = self._began_at = self._looked_at = -math.inf
        self._expected = math.inf
        self.progressed(-math.inf)

    def progressed(self, now: float) -> None:
        """The replica has computed something."""
        self._since = now
        self.seconds = 0.0
        self._late = self._left = 0
        self.is_reported = False

    def ended(self, flight: InflightRequest, now: float) -> None:
        """A request is over, with or without an answer."""
        if flight.content_at is not None:
            self._answered(flight, flight.content_at)
        elif self._is_late(flight, now):
            self._left += 1

    def look(self, flights: Iterable[InflightRequest], now: float, elapsed: float) -> None:
        """Look at the requests in flight. ``elapsed``: time since the last look that counts; less than the real time if
        this process stood still."""
        waiting = []
        for flight in flights:
            if flight.content_at is not None:
                self._answered(flight, flight.content_at)
            elif flight.expected_seconds < math.inf:
                waiting.append(flight)
        self._looked_at, self._late = now, 0
        first = min(waiting, key=lambda flight: flight.sent_at, default=None)
        if first is not None and self._is_late(first, now):  # prompts are computed in turn
            self._late = sum(self._is_late(flight, now) for flight in waiting)
            self._expected = first.expected_seconds
            if not self.seconds:
                self._began_at = max(first.sent_at, self._since)
        if self._late or self._left >= _ENOUGH:
            self.seconds += elapsed
        elif first is None:
            self.seconds /= 2  # a few clients that left prove little: further requests show more

    def is_too_long(self, pace: float, *, on_trial: bool = False) -> bool:
        """Whether a working replica would have answered by now, given the pace of its peers. ``on_trial``: it was
        silent before, and is tried with one request."""
        late = _ENOUGH if on_trial else min(self._late + self._left, _ENOUGH)
        least = _LEAST_SECONDS if on_trial or self.paced_at > -math.inf else _LEAST_AT_START
        return self.seconds * late > _ENOUGH * max(least, _TIMES * self._expected * pace)

    def peers_pace(self, peers: Iterable["Silence"]) -> float | None:
        """The pace of the fastest peer that has answered a request sent during this silence, at least 1; None if none
        has: then all may be slow."""
        paces = [p.pace for p in peers if p.paced_at >= self._began_at and p.seconds * _MARGIN < self.seconds]
        return max(min(paces), 1.0) if paces else None

    def _is_late(self, flight: InflightRequest, now: float) -> bool:
        return now - max(flight.sent_at, self._since) > flight.expected_seconds

    def _answered(self, flight: InflightRequest, content_at: float) -> None:
        if flight.last_byte_at > self._since:
            self.progressed(flight.last_byte_at)
        if content_at >= self._looked_at:
            ratio = (content_at - flight.sent_at) / flight.expected_seconds
            self.pace = max(ratio, (self.pace + ratio) / 2)
            self.paced_at = max(self.paced_at, flight.sent_at)
