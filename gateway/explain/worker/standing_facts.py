"""What still holds of what happened to caches: a new process has to be told."""

from collections.abc import Sequence

from gateway.core.explanation import CacheEvent, CacheHistory

_KEPT = 10_000
"""Where pods get new names, every roll-out leaves as many behind."""


class StandingFacts:
    """Which replicas are gone."""

    def __init__(self) -> None:
        self._gone: dict[str, CacheEvent] = {}

    def note(self, event: CacheEvent) -> None:
        """Something happened."""
        if event.what is CacheHistory.LEFT:
            self._gone.pop(event.name, None)
            if len(self._gone) >= _KEPT:
                del self._gone[next(iter(self._gone))]
            self._gone[event.name] = event
        elif event.what is CacheHistory.RETURNED:
            self._gone.pop(event.name, None)

    def events(self) -> Sequence[CacheEvent]:
        """What holds, as the events by which it came to be."""
        return list(self._gone.values())
