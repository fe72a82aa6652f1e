"""Start times of the engine behind one address: a restart, or several engines. No I/O, no clock."""

from collections import deque
from enum import StrEnum

SEVERAL_FIX = (
    "list each engine as a replica of its own, by the address of its pod; in Kubernetes use discovery or a headless "
    "service"
)
"""What to do about several engines behind one address."""

_MAX_SEEN = 16
_CERTAIN = 300
"""Reports of one start time in a row after which several engines count as gone, as after a rolling update."""


class Start(StrEnum):
    """What a reported start time says."""

    SAME = "same"
    NEW = "new"
    """The engine was restarted."""
    SEVERAL = "several"
    """Several engines answer at the address."""
    SINGLE = "single"
    """Only one of them is left."""


class StartTimes:
    """The start times that one address has reported.

    A restarted process has a later start time than the one before, and never one that was there before. Anything else
    is proof of several processes.

    Attributes:
        are_several: Whether several engines answer.
    """

    def __init__(self) -> None:
        self.are_several = False
        self._seen: deque[float] = deque(maxlen=_MAX_SEEN)
        self._in_a_row = 0

    def report(self, started_at: float) -> Start:
        """The address reports a start time, in Unix seconds."""
        last = self._seen[-1] if self._seen else started_at
        known = started_at in self._seen
        if known:
            self._seen.remove(started_at)
        self._seen.append(started_at)
        if started_at == last:
            self._in_a_row += 1
            if not self.are_several or self._in_a_row < _CERTAIN:
                return Start.SAME
            self.are_several = False
            return Start.SINGLE
        self._in_a_row = 0
        self.are_several = self.are_several or known or started_at < last
        return Start.SEVERAL if self.are_several else Start.NEW
