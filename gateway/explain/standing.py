"""What still holds of what happened to caches: a new process has to be told."""

from collections.abc import Sequence

from gateway.values.explain import Happened, Past

_ENDS = {Past.RETURNED: Past.LEFT, Past.CACHED: Past.UNCACHED}


class StandingFacts:
    """Which replicas are gone, and which reuse no prefixes."""

    def __init__(self) -> None:
        self._facts: dict[tuple[Past, str], Happened] = {}

    def note(self, event: Happened) -> None:
        """Something happened."""
        if event.what in _ENDS.values():
            self._facts[event.what, event.name] = event
        elif (ended := _ENDS.get(event.what)) is not None:
            self._facts.pop((ended, event.name), None)

    def events(self) -> Sequence[Happened]:
        """What holds, as the events by which it came to be."""
        return list(self._facts.values())
