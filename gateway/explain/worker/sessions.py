"""An explain worker for several gateways behind one port: ``python -m gateway.explain.worker.sessions DOOR_FD FD``.

The gateways share the seen blocks and the journal, so any of them can answer questions about all. Counts go back to the
gateway that sent the request. The first connection is that of the parent process, and the worker ends when it is
closed; other connections come and go.
"""

import select
import socket
import sys
from collections.abc import Callable

from gateway.explain.worker.explain_messages import WorkerOptions
from gateway.explain.worker.explain_worker import ExplainWorker, WorkerParts
from gateway.explain.worker.process import ConnectionClosed, Session, until_gone

_SEND_SECONDS = 2.0
"""Timeout of a send, after which the connection is closed: a gateway that does not read delays the others."""


class Sessions:
    """One session for every connection, taking turns.

    Args:
        first: The connection of the parent process.
        door: The listening socket for other gateways.
        begin: Makes the session of a connection.
    """

    def __init__(self, first: socket.socket, door: socket.socket, begin: Callable[[socket.socket], Session]) -> None:
        self._begin = begin
        self._door = door
        door.setblocking(False)
        self._poll = select.poll()
        self._poll.register(door, select.POLLIN)
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
                if number == self._door.fileno():
                    self._accept()
                else:
                    self._attempt(number, self._open[number][1].read)
            for number, (_, session) in list(self._open.items()):
                # An idle turn drops expired state, which the first session does for all.
                if not session.idle_seconds() or (number == self._first and not ready):
                    self._attempt(number, session.turn)

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
            connection, _ = self._door.accept()
        except OSError:
            return  # closed already
        connection.settimeout(_SEND_SECONDS)
        self._join(connection)

    def _join(self, connection: socket.socket) -> None:
        self._open[connection.fileno()] = connection, self._begin(connection)
        self._poll.register(connection, select.POLLIN)


def shared(build: Callable[[WorkerOptions, float], WorkerParts]) -> Callable[[WorkerOptions, float], WorkerParts]:
    """Makes all sessions use the same parts, configured with the latest options."""
    present: list[WorkerParts] = []

    def join(terms: WorkerOptions, now: float) -> WorkerParts:
        if present:
            present[0].configure(terms, now)
        else:
            present.append(build(terms, now))
        return present[0]

    return join


def main() -> None:
    """Entry point of the command."""
    from gateway.explain.worker.build import ExplainParts

    door, first = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    build = shared(ExplainParts)
    until_gone(lambda: Sessions(first, door, lambda connection: Session(connection, ExplainWorker(build))).run())


if __name__ == "__main__":
    main()
