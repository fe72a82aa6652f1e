"""Which answer of a source counts. Pure.

A source that suddenly knows of no replica that could get requests is more often broken than right (a name server that
was started anew, a service whose selector was mistyped), so this is believed only once it has lasted.
"""

import math
from collections.abc import Sequence

from gateway.discovery.discovered import Condition, DiscoveredReplica


class EmptyGuard:
    """What is believed of one source. All times are monotonic seconds.

    Args:
        empty_after_seconds: How long no replica may be ready until that is believed.
    """

    def __init__(self, empty_after_seconds: float) -> None:
        self._empty_after = empty_after_seconds
        self._believed: Sequence[DiscoveredReplica] = ()
        self._doubted: Sequence[DiscoveredReplica] = ()
        self._doubted_since = math.inf

    @property
    def due(self) -> float:
        """When the answer that is not yet believed will be, if no other comes; infinite if there is none."""
        return self._doubted_since + self._empty_after

    def answered(self, found: Sequence[DiscoveredReplica], now: float) -> Sequence[DiscoveredReplica]:
        """The source answered; returns what is believed now."""
        if _any_ready(found) or not _any_ready(self._believed):
            self._believed = found
            self._doubted_since = math.inf
            return found
        if self._doubted_since == math.inf:
            self._doubted_since = now
        self._doubted = found
        return self.at(now)

    def at(self, now: float) -> Sequence[DiscoveredReplica]:
        """What is believed at a time, if the source says nothing new."""
        if now >= self.due:
            self._believed = self._doubted
            self._doubted_since = math.inf
        return self._believed

    def failed(self) -> None:
        """The source does not answer: what it said before and was not believed yet need not hold any more."""
        self._doubted_since = math.inf


def _any_ready(found: Sequence[DiscoveredReplica]) -> bool:
    return any(each.condition is Condition.READY for each in found)
