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

_LEAST_SECONDS = 2.0
"""Shorter silences are none: a captured graph, a garbage collection, a busy machine."""

_LEAST_SECONDS_AT_START = 10.0
"""The same for an engine that has not answered since its start: it may still compile."""

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
        """When the last piece of its answer was received; ``sent_at`` before the first one."""
        ...

    @property
    def content_at(self) -> float | None:
        """When the first content of its answer was received; None before."""
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
        seconds: How long requests have waited beyond their time since the replica last showed progress.
        began_at: When the silence began.
        pace: Time to first content in multiples of what was expected; rises at once, and falls slowly.
        paced_at: When the last request was sent that got content.
        is_reported: Whether this silence was logged.
    """

    __slots__ = (
        "_expected",
        "_late",
        "_left",
        "_looked_at",
        "_since",
        "began_at",
        "is_reported",
        "pace",
        "paced_at",
        "seconds",
    )

    def __init__(self) -> None:
        self.seconds = self.pace = 0.0
        self.began_at = self.paced_at = self._since = self._looked_at = -math.inf
        self._expected = math.inf
        self._late = self._left = 0
        self.is_reported = False

    def progressed(self, now: float) -> None:
        """The replica has computed something."""
        self._since = now
        self.seconds = 0.0
        self._late = self._left = 0
        self.is_reported = False

    def ended(self, flight: InflightRequest, now: float) -> None:
        """A request is over, with or without an answer."""
        if flight.content_at is None:
            self._left += now - max(flight.sent_at, self._since) > flight.expected_seconds
        elif flight.last_byte_at > self._since:
            self._answered(flight, flight.content_at)

    def look(self, flights: Iterable[InflightRequest], now: float, elapsed: float) -> None:
        """Look at the requests in flight.

        Args:
            flights: They.
            now: The present.
            elapsed: Time since the last look that counts; less than the real time if this process stood still.
        """
        waiting = []
        for flight in flights:
            if flight.content_at is None:
                waiting.append(flight)
            elif flight.last_byte_at > self._since:
                self._answered(flight, flight.content_at)
        self._looked_at = now
        self._late = 0
        if waiting:
            # Prompts are computed in turn: those behind a long one may wait as long as that one.
            self._expected = expected = max(flight.expected_seconds for flight in waiting)
            self._late = sum(now - max(flight.sent_at, self._since) > expected for flight in waiting)
            if self._late and not self.seconds:
                self.began_at = max(min(flight.sent_at for flight in waiting), self._since)
        if self._late or self._left >= _ENOUGH:
            self.seconds += elapsed
        elif not waiting:
            self.seconds /= 2  # a few clients that left prove little: further requests show more

    def is_too_long(self, pace: float, *, on_trial: bool = False) -> bool:
        """Whether a working replica would have answered by now.

        Args:
            pace: Pace of the peers; see ``peers_pace``.
            on_trial: Whether it was silent before, and is tried with one request.
        """
        late = _ENOUGH if on_trial else min(self._late + self._left, _ENOUGH)
        least = _LEAST_SECONDS if on_trial or self.paced_at > -math.inf else _LEAST_SECONDS_AT_START
        return self.seconds * late >= _ENOUGH * max(least, _TIMES * self._expected * pace)

    def peers_pace(self, peers: Iterable["Silence"]) -> float | None:
        """The pace of the fastest peer that has answered a request sent during this silence, at least 1; None if none
        has: then all may be slow."""
        paces = [
            peer.pace
            for peer in peers
            if peer is not self and peer.paced_at > self.began_at and peer.seconds * _MARGIN < self.seconds
        ]
        return max(min(paces), 1.0) if paces else None

    def _answered(self, flight: InflightRequest, content_at: float) -> None:
        self.progressed(flight.last_byte_at)
        if content_at > self._looked_at:
            ratio = (content_at - flight.sent_at) / flight.expected_seconds
            self.pace = max(ratio, (self.pace + ratio) / 2)
            self.paced_at = max(self.paced_at, flight.sent_at)
