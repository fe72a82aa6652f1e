"""Ends a process without waiting for threads, at once or after a timeout."""

import contextlib
import logging
import os
import sys
import threading
from typing import NoReturn

import structlog

_log = structlog.get_logger("gateway.server.forced_end")


def end_process(code: int) -> NoReturn:
    """End the process at once.

    The interpreter's own end joins every thread of every executor, and libuv's joins the threads of its own: one that
    waits for a disk, a name server, or a template that never ends would keep the process from ending.
    """
    logging.shutdown()  # writes the waiting lines of the log
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


class ForcedEnd:
    """A watchdog: ends the process if it has not ended in time.

    Args:
        seconds: Timeout from now on.
        code: Exit code.
    """

    def __init__(self, seconds: float, code: int) -> None:
        self._seconds = seconds
        self._code = code
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """Cancel: the process ends normally."""
        self._timer.cancel()

    def _end(self) -> None:
        threads = sorted(thread.name for thread in threading.enumerate() if thread is not threading.current_thread())
        _log.error("exit_forced", seconds=self._seconds, problem="something does not end", threads=threads)
        end_process(self._code)
