"""A limit for tests of what would take minutes if its time grew with the square of the text."""

import contextlib
import signal


@contextlib.contextmanager
def cpu_seconds(limit):
    """Fails where the process computes for longer. Not a measure: far above what the search takes anywhere."""

    def too_long(*_):
        raise AssertionError(f"more than {limit} s of computing")

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
