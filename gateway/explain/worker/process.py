"""The explain worker's main loop: ``python -m gateway.explain.worker.process FD``, started by ``ExplainClient``.

One thread, one socket. It reads everything sent before it handles the next message, so questions can overtake work, and
a closed connection is noticed at once: then the process ends.
"""

import gc
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import cast

import msgspec

from gateway.explain.worker.explain_messages import FromChild, MessageSplitter, RawMessage, ToChild, WorkerOptions, pack
from gateway.explain.worker.explain_worker import ExplainWorker
from gateway.heap import return_large_blocks

_READ_BYTES = 256 * 1024
_EXPIRE_SECONDS = 5.0
_REPORT_SECONDS = 0.1
_REPORTS_WHEN_FULL = 16
"""Number of reports per ``max_waiting_bytes`` of work, so that the gateway learns early about free buffer."""
_BEHIND_PART = 8
"""Part of ``max_waiting_bytes`` above which rules are not observed, so that explaining catches up."""
_BEFORE_QUESTION_SECONDS = 0.05
"""CPU time spent on earlier work before a question overtakes the rest."""
_MAX_BEFORE_QUESTION = 100
"""With more messages waiting, a question does not wait at all: they would not be done in time."""
_POLITE = 5
"""Niceness: the gateway takes precedence if CPU cores are short."""


class ConnectionClosed(Exception):
    """The gateway's end of the connection is closed."""


class Session:
    """Serves one connection.

    Args:
        connection: The worker's end.
        office: Handles the messages.
        clock: Monotonic seconds.
        worked: CPU seconds of this process.
    """

    def __init__(
        self,
        connection: socket.socket,
        office: ExplainWorker,
        clock: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = time.process_time,
    ) -> None:
        self._connection = connection
        self._office = office
        self._clock = clock
        self._worked = worked
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._frames = MessageSplitter()
        self._work: deque[RawMessage] = deque()
        # Each with the CPU time at which it overtakes work, and the number of messages before it.
        self._questions: deque[tuple[RawMessage, float, int]] = deque()
        self._done = 0
        self._stride = 0
        self._waiting_bytes = 0
        self._behind_bytes = 0
        self._unreported_bytes = 0
        self._reported_at = 0.0

    def run(self) -> None:
        """Handle messages until the connection is closed.

        Raises:
            ConnectionClosed: The gateway has closed the connection.
        """
        while True:
            if self._poll.poll(self.idle_seconds() * 1000):
                self.read()
            self.turn()

    def turn(self) -> None:
        """Handle the next message, if there is one.

        Raises:
            ConnectionClosed: The gateway has closed the connection.
        """
        if self._questions and (self._done >= self._questions[0][2] or self._worked() >= self._questions[0][1]):
            self._handle(self._questions.popleft()[0])
        elif self._work:
            frame = self._work.popleft()
            self._done += 1
            self._unreported_bytes += frame.size
            self._waiting_bytes -= frame.size
            self._office.is_behind = self._waiting_bytes > self._behind_bytes
            self._handle(frame)
        else:
            for notice in self._office.expire():
                self._send(notice)
        self._report()

    def idle_seconds(self) -> float:
        """Time until the next action other than reading."""
        if self._work or self._questions:
            return 0
        if self._unreported_bytes:
            return max(self._reported_at + _REPORT_SECONDS - self._clock(), 0)
        return _EXPIRE_SECONDS

    def read(self) -> None:
        """Read received bytes.

        Raises:
            ConnectionClosed: The gateway has closed the connection.
        """
        try:
            data = self._connection.recv(_READ_BYTES)
        except OSError:
            data = b""
        if not data:
            raise ConnectionClosed
        for frame in self._frames.feed(data):
            if frame.is_work:
                self._work.append(frame)
                self._waiting_bytes += frame.size
            elif frame.is_question:
                waits = len(self._work) <= _MAX_BEFORE_QUESTION
                most = self._worked() + (_BEFORE_QUESTION_SECONDS if waits else 0)
                self._questions.append((frame, most, self._done + len(self._work)))
            else:
                self._handle(frame)

    def _handle(self, frame: RawMessage) -> None:
        try:
            message = cast(ToChild, frame.message())
        except msgspec.MsgspecError:
            if not frame.is_work:
                raise
            self._office.unreadable()
            return
        if isinstance(message, WorkerOptions):
            self._stride = message.max_waiting_bytes // _REPORTS_WHEN_FULL
            self._behind_bytes = message.max_waiting_bytes // _BEHIND_PART
        for reply in self._office.handle(message):
            self._send(reply)

    def _report(self) -> None:
        now = self._clock()
        if self._unreported_bytes and (
            self._unreported_bytes >= self._stride or now >= self._reported_at + _REPORT_SECONDS
        ):
            self._unreported_bytes = 0
            self._reported_at = now
            if (counted := self._office.counted()) is not None:
                self._send(counted)

    def _send(self, message: FromChild) -> None:
        frame = bytearray()
        pack(message, frame)
        try:
            self._connection.sendall(frame)
        except OSError:
            raise ConnectionClosed from None


def run(fd: int, office: ExplainWorker) -> None:
    """Handle messages until the gateway closes the connection, and end the process.

    Args:
        fd: The file descriptor of the connection.
        office: Handles the messages.
    """
    until_gone(lambda: Session(socket.socket(fileno=fd), office).run())


def until_gone(work: Callable[[], None]) -> None:
    """Run ``work`` until ``ConnectionClosed`` is raised, and end the process."""
    # A signal to the whole process group ends the gateway, which drains its requests first, and then closes this.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.excepthook = _report_without_values
    os.nice(_POLITE)
    return_large_blocks()
    _relax_garbage_collection()
    try:
        work()
    except ConnectionClosed:
        # The state is not needed any more: skip freeing it object by object.
        os._exit(0)


def _relax_garbage_collection() -> None:
    """Make garbage collection rare: state is long-lived and hardly any of it is in cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _report_without_values(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:  # noqa: ARG001
    """Print an exception that ends the process, without its message, which may quote a prompt."""
    sys.stderr.write("".join(traceback.format_tb(trace)) + f"{kind.__name__} (message left out)\n")


def main() -> None:
    """Entry point of the command."""
    from gateway.explain.worker.build import ExplainParts

    run(int(sys.argv[1]), ExplainWorker(ExplainParts))


if __name__ == "__main__":
    main()
