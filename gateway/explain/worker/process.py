"""The explain worker's process: ``python -m gateway.explain.worker.process [LISTEN_FD] FD``; see ``ExplainClient``.

One thread. It reads everything sent before it handles the next message, so questions can overtake work, and a closed
connection is noticed at once: then the process ends.

With ``LISTEN_FD`` one worker serves several gateways behind one port. They share the seen blocks and the journal, so
any of them can answer questions about all. Counts go back to the gateway that sent the request. The first connection is
that of the parent process, and the worker ends when it is closed; other connections come and go.
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
from typing import TYPE_CHECKING, cast

import msgspec

from gateway.explain.worker.explain_messages import (
    FrameSplitter,
    FromWorker,
    RawMessage,
    ToWorker,
    WorkerOptions,
    encode,
)
from gateway.explain.worker.explain_worker import ExplainWorker
from gateway.explain.worker.priority import WorkerPriority
from gateway.heap import return_large_blocks

if TYPE_CHECKING:
    from gateway.explain.worker.explain_parts import ExplainParts

_READ_BYTES = 256 * 1024
_EXPIRE_SECONDS = 5.0
_REPORT_SECONDS = 0.2

_REPORTS_WHEN_FULL = 16
"""Number of reports per ``max_waiting_bytes`` of work, so that the gateway learns early about free buffer."""

_LARGE_FRAME_BYTES = 16 * 1024 * 1024
"""Memory of smaller frames is used again: an agent's request of 1 MiB is copied three times, and writing to new memory
takes as long as all else. No request waits when a heap of that size is returned at once."""

_BEHIND_PART = 8
"""Part of ``max_waiting_bytes`` above which rules are not observed, so that explaining catches up."""

_PRESSED_PART = 8
"""Part of that above which the worker's priority is raised."""

_BEFORE_QUESTION_SECONDS = 0.05
"""CPU time spent on earlier work before a question overtakes the rest."""

_MAX_BEFORE_QUESTION = 100
"""With more messages waiting, a question does not wait at all: they would not be done in time."""

_SEND_SECONDS = 2.0
"""Timeout of a send, after which the connection is closed: a gateway that does not read delays the others."""


class ConnectionClosed(Exception):
    """The gateway's end of the connection is closed."""


class Session:
    """Serves one connection.

    Args:
        connection: The worker's end.
        worker: Handles the messages.
        clock: Monotonic seconds.
        worked: CPU seconds of this process.
        priority: The priority of this process, which ``run`` updates.
    """

    def __init__(
        self,
        connection: socket.socket,
        worker: ExplainWorker,
        clock: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = time.process_time,
        priority: WorkerPriority | None = None,
    ) -> None:
        self._connection = connection
        self._worker = worker
        self._clock = clock
        self._worked = worked
        self._priority = priority
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._frames = FrameSplitter()
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
            if self._priority is not None:
                self._priority.update(is_drained=self.is_drained, is_pressed=self.is_pressed, now=self._clock())

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
            self._worker.is_behind = self._waiting_bytes > self._behind_bytes
            self._handle(frame)
        else:
            for notice in self._worker.expire():
                self._send(notice)
        self._report()

    @property
    def is_drained(self) -> bool:
        """Whether all received messages are handled."""
        return not (self._work or self._questions)

    @property
    def is_pressed(self) -> bool:
        """Whether much of the work that may wait does, or rules cannot be observed before a tokenizer is loaded."""
        return self._waiting_bytes > self._behind_bytes // _PRESSED_PART or self._worker.is_loading

    def idle_seconds(self) -> float:
        """Time until the next action other than reading."""
        if not self.is_drained:
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
            message = cast(ToWorker, frame.decode())
        except msgspec.MsgspecError:
            if not frame.is_work:
                raise
            self._worker.count_undecodable()
            return
        if isinstance(message, WorkerOptions):
            self._stride = message.max_waiting_bytes // _REPORTS_WHEN_FULL
            self._behind_bytes = message.max_waiting_bytes // _BEHIND_PART
        for reply in self._worker.handle(message):
            self._send(reply)

    def _report(self) -> None:
        now = self._clock()
        if self._unreported_bytes and (
            self._unreported_bytes >= self._stride or now >= self._reported_at + _REPORT_SECONDS
        ):
            self._unreported_bytes = 0
            self._reported_at = now
            if (counted := self._worker.counted()) is not None:
                self._send(counted)

    def _send(self, message: FromWorker) -> None:
        frame = bytearray()
        encode(message, frame)
        try:
            self._connection.sendall(frame)
        except OSError:
            raise ConnectionClosed from None


class Sessions:
    """One session for every connection, taking turns.

    Args:
        first: The connection of the parent process.
        listener: The listening socket for other gateways.
        begin: Makes the session of a connection.
        priority: The priority of this process.
    """

    def __init__(
        self,
        first: socket.socket,
        listener: socket.socket,
        begin: Callable[[socket.socket], Session],
        priority: WorkerPriority,
    ) -> None:
        self._begin = begin
        self._priority = priority
        self._listener = listener
        listener.setblocking(False)
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._first = first.fileno()
        self._open: dict[int, tuple[socket.socket, Session]] = {}
        self._join(first)

    def run(self) -> None:
        """Serve all connections until the first is closed.

        Raises:
            ConnectionClosed: The parent process has closed its connection.
        """
        while True:
            idle = min(session.idle_seconds() for _, session in self._open.values())
            ready = self._poll.poll(idle * 1000)
            for number, _ in ready:
                if number == self._listener.fileno():
                    self._accept()
                else:
                    self._attempt(number, self._open[number][1].read)
            for number, (_, session) in list(self._open.items()):
                # An idle turn drops expired state, which the first session does for all.
                if not session.idle_seconds() or (number == self._first and not ready):
                    self._attempt(number, session.turn)
            sessions = [session for _, session in self._open.values()]
            self._priority.update(
                is_drained=all(session.is_drained for session in sessions),
                is_pressed=any(session.is_pressed for session in sessions),
                now=time.monotonic(),
            )

    def _attempt(self, number: int, step: Callable[[], None]) -> None:
        if number not in self._open:
            return
        try:
            step()
        except ConnectionClosed:
            if number == self._first:
                raise
            # The gateway counts its outstanding requests when it notices the loss.
            self._poll.unregister(number)
            self._open.pop(number)[0].close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # closed already
        connection.settimeout(_SEND_SECONDS)
        self._join(connection)

    def _join(self, connection: socket.socket) -> None:
        self._open[connection.fileno()] = connection, self._begin(connection)
        self._poll.register(connection, select.POLLIN)


def shared_parts(
    build: Callable[[WorkerOptions, float], "ExplainParts"],
) -> Callable[[WorkerOptions, float], "ExplainParts"]:
    """Makes all sessions use the same parts, configured with the latest options."""
    present: list[ExplainParts] = []

    def join(options: WorkerOptions, now: float) -> "ExplainParts":
        if present:
            present[0].configure(options, now)
        else:
            present.append(build(options, now))
        return present[0]

    return join


def run_until_closed(work: Callable[[], None]) -> None:
    """Run ``work``, such as ``Session.run``, until ``ConnectionClosed`` is raised, and end the process."""
    # A signal to the whole process group ends the gateway, which drains its requests first, and then closes this.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.excepthook = _report_without_values
    return_large_blocks(_LARGE_FRAME_BYTES)
    relax_garbage_collection()
    try:
        work()
    except ConnectionClosed:
        # The state is not needed any more: skip freeing it object by object.
        os._exit(0)


def relax_garbage_collection() -> None:
    """Make garbage collection rare: state is long-lived and hardly any of it is in cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _report_without_values(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:  # noqa: ARG001
    """Print an exception that ends the process, without its message, which may quote a prompt."""
    sys.stderr.write("".join(traceback.format_tb(trace)) + f"{kind.__name__} (message left out)\n")


def main() -> None:
    """Entry point of the command."""
    priority = WorkerPriority()
    priority.begin()  # first: what follows loads modules while the gateway answers its first requests
    from gateway.explain.worker.explain_parts import ExplainParts

    *listeners, connection = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    if listeners:
        build = shared_parts(ExplainParts)
        sessions = Sessions(connection, listeners[0], lambda each: Session(each, ExplainWorker(build)), priority)
        run_until_closed(sessions.run)
    else:
        run_until_closed(Session(connection, ExplainWorker(ExplainParts), priority=priority).run)


if __name__ == "__main__":
    main()
