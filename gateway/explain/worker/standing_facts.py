"""Cache events that still apply and must be sent to a new worker process."""

from collections.abc import Sequence

from gateway.core.explanation import CacheEvent, CacheHistory

_KEPT = 10_000
"""A bound is needed where pods get new names: every roll-out adds as many departed replicas."""


class GoneReplicas:
    """The replicas that have left."""

    def __init__(self) -> None:
        self._gone: dict[str, CacheEvent] = {}

    def note(self, event: CacheEvent) -> None:
        """Record an event."""
        if event.what is CacheHistory.LEFT:
            self._gone.pop(event.name, None)
            if len(self._gone) >= _KEPT:
                del self._gone[next(iter(self._gone))]
            self._gone[event.name] = event
        elif event.what is CacheHistory.RETURNED:
            self._gone.pop(event.name, None)

    def events(self) -> Sequence[CacheEvent]:
        """The events of replicas that have left and not returned."""
        return list(self._gone.values())
