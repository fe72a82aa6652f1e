"""What still holds of what happened to caches: a new process has to be told."""

from collections.abc import Sequence

from gateway.core.explanation import Happened, Past

_KEPT = 10_000
"""Where pods get new names, every roll-out leaves as many behind."""


class StandingFacts:
    """Which replicas are gone."""

    def __init__(self) -> None:
        self._gone: dict[str, Happened] = {}

    def note(self, event: Happened) -> None:
        """Something happened."""
        if event.what is Past.LEFT:
            self._gone.pop(event.name, None)
            if len(self._gone) >= _KEPT:
                del self._gone[next(iter(self._gone))]
            self._gone[event.name] = event
        elif event.what is Past.RETURNED:
            self._gone.pop(event.name, None)

    def events(self) -> Sequence[Happened]:
        """What holds, as the events by which it came to be."""
        return list(self._gone.values())
