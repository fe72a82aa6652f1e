"""What the process that explains runs: ``python -m gateway.explain.worker.process FD``, started by ``ExplainClient``.

One thread, one socket. It takes in whatever has been sent before it does the next piece of work, so a question need not
wait behind all that came before it, and the gateway's end being closed is noticed at once: then it ends, however the
gateway did.
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
"""Reports for as much as may wait: the gateway learns early enough that there is room again."""
_BEHIND_PART = 8
"""An eighth of what may wait does: explaining comes first then, and what rules save is left out."""
_BEFORE_QUESTION_SECONDS = 0.05
"""How long, by its own CPU time, it works on what came before a question. That then overtakes what is left."""
_MOST_BEFORE_QUESTION = 100
"""More messages than these would not be done by then, so a question does not wait for them at all."""
_POLITE = 5
"""Niceness: where cores are short, answering requests comes first."""


class ConnectionClosed(Exception):
    """The gateway's end of the connection is closed."""


class Session:
    """Everything between two ends of a connection.

    Args:
        connection: The child's end.
        office: Does the work.
        clock: Monotonic seconds.
        worked: Seconds that this process has worked.
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
        # Each with how much may have been worked until it is its turn, and how many messages came before it.
        self._questions: deque[tuple[RawMessage, float, int]] = deque()
        self._done = 0
        self._stride = 0
        self._waiting_bytes = 0
        self._behind_bytes = 0
        self._unreported_bytes = 0
        self._reported_at = 0.0

    def run(self) -> None:
        """Work until the gateway is gone.

        Raises:
            Gone: it is.
        """
        while True:
            if self._poll.poll(self.idle_seconds() * 1000):
                self.read()
            self.turn()

    def turn(self) -> None:
        """Do the next piece of work, if there is one.

        Raises:
            Gone: the gateway is.
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
        """How long there is nothing to do but read."""
        if self._work or self._questions:
            return 0
        if self._unreported_bytes:
            return max(self._reported_at + _REPORT_SECONDS - self._clock(), 0)
        return _EXPIRE_SECONDS

    def read(self) -> None:
        """Take in what has come.

        Raises:
            Gone: the gateway is.
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
                waits = len(self._work) <= _MOST_BEFORE_QUESTION
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
    """Work until the gateway is gone, and end the process.

    Args:
        fd: The file descriptor of the connection.
        office: Does the work.
    """
    until_gone(lambda: Session(socket.socket(fileno=fd), office).run())


def until_gone(work: Callable[[], None]) -> None:
    """Work until ``ConnectionClosed`` is raised, and end the process."""
    # Whoever ends everything at once ends the gateway, which still has requests to answer, and then this.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.excepthook = _tell_without_values
    os.nice(_POLITE)
    return_large_blocks()
    _relax_garbage_collection()
    try:
        work()
    except ConnectionClosed:
        # What it knows is of no use to anybody any more: no need to take it apart object by object.
        os._exit(0)


def _relax_garbage_collection() -> None:
    """What is kept is kept for long, and hardly any of it in cycles: looking through it all again is time wasted."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _tell_without_values(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:  # noqa: ARG001
    """An exception that ends the process, without its message, which may quote a prompt."""
    sys.stderr.write("".join(traceback.format_tb(trace)) + f"{kind.__name__} (message left out)\n")


def main() -> None:
    """The command."""
    from gateway.explain.worker.build import ExplainParts

    run(int(sys.argv[1]), ExplainWorker(ExplainParts))


if __name__ == "__main__":
    main()
