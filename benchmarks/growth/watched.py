"""A gateway whose event loop is watched: ``watched FILE serve --config CONFIG``.

A timer of one millisecond runs all the time. A turn of it that is late is written to the file: when it ended
(``time.monotonic``), the seconds between the two turns, and the CPU time that the loop's thread used in between. An
iteration of the event loop is never longer than that.
"""

import sys
import time

from gateway.__main__ import main
from gateway.server import run

_PERIOD_SECONDS = 0.001
_LATE_SECONDS = 0.003


class WatchedLoop(run.Loop):
    """The gateway's event loop, with the timer."""

    def __init__(self) -> None:
        super().__init__()
        self._file = open(sys.argv[1], "w", buffering=1)  # noqa: SIM115 - open until the process ends
        self._at, self._used = time.monotonic(), time.thread_time()
        self.call_later(_PERIOD_SECONDS, self._turn)

    def _turn(self) -> None:
        now, used = time.monotonic(), time.thread_time()
        if now - self._at > _LATE_SECONDS:
            self._file.write(f"{now} {now - self._at} {used - self._used}\n")
        self._at, self._used = now, used
        self.call_later(_PERIOD_SECONDS, self._turn)


if __name__ == "__main__":
    run.Loop = WatchedLoop  # type: ignore[misc]
    sys.exit(main(sys.argv[2:]))
