"""The explain worker's priority: requests come first, and work that has waited gets a share of the CPU.

Linux may group processes by session (autogroup, sched(7)). Then ``nice`` only compares processes of one session, and
the worker has a session of its own. The niceness of a session is written to a file; unlike that of a process it can be
lowered again without privileges. Elsewhere, as in containers, ``nice`` counts and the file has no effect.
"""

import os
from pathlib import Path

_NICE = 5
"""Niceness of the process."""

_LOW = 10
"""Niceness of the session while the worker keeps up: requests that arrive come first. On a machine whose cores are all
taken by other sessions, 19 would leave it so little that it counts as hanging."""

_EQUAL = 0
"""Niceness of the session once work cannot wait: it is done before texts have to be dropped."""

_PATIENCE_SECONDS = 1.0
"""Work that is left for longer has waited."""

_SESSION = Path("/proc/self/autogroup")


class WorkerPriority:
    """The priority of this process.

    Args:
        session: File with the niceness of the session.
    """

    def __init__(self, session: Path = _SESSION) -> None:
        self._session = session
        self._is_low = False
        self._drained_at = 0.0

    def begin(self) -> None:
        """Lower the priority of the process.

        Not of its session: on a machine that is busy with other sessions its modules and tokenizers would take many
        seconds to load, and nothing could be explained until then.
        """
        os.nice(_NICE)

    def update(self, *, is_drained: bool, is_pressed: bool, now: float) -> None:
        """Set the priority of the session after a message, and give way to a request that has arrived meanwhile.

        Args:
            is_drained: Whether no work is left.
            is_pressed: Whether there is work that cannot wait for an idle core.
            now: Monotonic seconds.
        """
        if is_drained and not is_pressed:
            self._drained_at = now
            if not self._is_low:
                self._is_low = self._write(_LOW)
            return
        if self._is_low and (is_pressed or now - self._drained_at > _PATIENCE_SECONDS):
            self._is_low = not self._write(_EQUAL)
        if not is_pressed:
            os.sched_yield()

    def _write(self, niceness: int) -> bool:
        """Returns whether it is set: there may be no such file, and changes are limited to ten per second."""
        try:
            self._session.write_bytes(b"%d" % niceness)
        except OSError:
            return False
        return True
