"""Start times of the engine behind one address: a restart, or several engines. No I/O, no clock."""

from collections import deque

SEVERAL_FIX = "list each pod as a replica, or use discovery (in Kubernetes with a headless service)"
"""What to do about several engines behind one address."""

_MAX_SEEN = 16
_CERTAIN = 300
"""Reports of one start time in a row after which several engines count as gone, as after a rolling update."""


class StartTimes:
    """The start times that one address has reported, and whether they prove that several engines answer there.

    A restarted process has a later start time than all before it. Anything else is proof.
    """

    def __init__(self) -> None:
        self.are_several = False
        self._seen: deque[float] = deque(maxlen=_MAX_SEEN)
        self._last: float | None = None
        self._in_a_row = 0

    def moved(self) -> None:
        """The address is another one: a start time other than the last one is another process, and proves nothing."""
        self._seen.clear()
        self.are_several = False

    def is_restart(self, started_at: float | None) -> bool:
        """Whether a reported start time (Unix seconds, None without one) shows a restart."""
        if started_at is None or started_at == self._last:
            self._in_a_row += 1
            self.are_several = self.are_several and self._in_a_row < _CERTAIN
            return False
        is_first, self._last = self._last is None, started_at
        self._in_a_row = 0
        self.are_several = self.are_several or started_at < max(self._seen, default=started_at)
        self._seen.append(started_at)
        return not is_first and not self.are_several
