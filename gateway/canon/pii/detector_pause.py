"""When a detector that gives no answers is not asked, so that requests do not wait for it in vain."""

FAILURES_IN_A_ROW = 3
"""Calls without an answer until it is not asked. A single one may be caused by its text."""
PAUSE_SECONDS = 2.0
"""Short, because a detector that stalls for a moment fails all calls in flight."""


class DetectorPause:
    """Pauses a detector after calls in a row without an answer, and then admits one call at a time on trial.

    An answer to any call ends the pause; a call on trial without one begins another. Every call that was admitted ends
    with ``answered``, ``failed`` or ``abandoned``. All times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0
        self._on_trial = False

    def admits(self, now: float) -> bool:
        """Whether the detector may be asked now."""
        if self._failures < FAILURES_IN_A_ROW:
            return True
        if self._on_trial or now < self._until:
            return False
        self._on_trial = True
        return True

    def answered(self) -> None:
        """A call was answered, be the answer valid or not."""
        self._failures = 0
        self._on_trial = False

    def failed(self, now: float) -> None:
        """A call got no answer."""
        self._failures += 1
        self._until = now + PAUSE_SECONDS
        self._on_trial = False

    def abandoned(self) -> None:
        """A call ended without showing whether the detector answers: its client left, for example."""
        self._on_trial = False
