"""Delays answers without a ready replica. Pure.

A source that suddenly reports no ready replica is more often broken than right (a restarted name server, a mistyped
selector of a service), so such an answer is accepted only after it has lasted for a while.
"""

import math
from collections.abc import Sequence

from gateway.discovery.discovered import Condition, DiscoveredReplica


class EmptyGuard:
    """The accepted answer of one source. All times are monotonic seconds.

    Args:
        empty_after_seconds: How long an answer without a ready replica has to last.
    """

    def __init__(self, empty_after_seconds: float) -> None:
        self._empty_after = empty_after_seconds
        self._believed: Sequence[DiscoveredReplica] = ()
        self._doubted: Sequence[DiscoveredReplica] = ()
        self._doubted_since = math.inf

    @property
    def due(self) -> float:
        """When the delayed answer will be accepted, if no other arrives; infinite if there is none."""
        return self._doubted_since + self._empty_after

    def answered(self, found: Sequence[DiscoveredReplica], now: float) -> Sequence[DiscoveredReplica]:
        """The source answered; returns the accepted answer."""
        if _any_ready(found) or not _any_ready(self._believed):
            self._believed = found
            self._doubted_since = math.inf
            return found
        if self._doubted_since == math.inf:
            self._doubted_since = now
        self._doubted = found
        return self.at(now)

    def at(self, now: float) -> Sequence[DiscoveredReplica]:
        """The accepted answer at a time, if no new one has arrived."""
        if now >= self.due:
            self._believed = self._doubted
            self._doubted_since = math.inf
        return self._believed

    def failed(self) -> None:
        """The source failed: drop the delayed answer."""
        self._doubted_since = math.inf


def _any_ready(found: Sequence[DiscoveredReplica]) -> bool:
    return any(each.condition is Condition.READY for each in found)
