"""Explaining for several gateways, those behind one port: ``python -m gateway.explain.worker.sessions DOOR_FD FD``.

They share what was seen and the journal, so that the answer to a question is about all of them, whoever asks. What was
counted goes back to whom it came from: each counts its own requests. The first connection is that of whoever started
the process, and when it is closed, everything ends; the others come and go.
"""

import select
import socket
import sys
from collections.abc import Callable

from gateway.explain.worker.explain_messages import WorkerOptions
from gateway.explain.worker.explain_worker import ExplainWorker, WorkerParts
from gateway.explain.worker.process import ConnectionClosed, Session, until_gone

_SEND_SECONDS = 2.0
"""How long one that does not read may keep the others waiting; then its connection is closed."""


class Sessions:
    """One session for every connection, taking turns.

    Args:
        first: The connection of whoever started the process.
        door: Where the others connect.
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
        """Work until whoever started the process is gone.

        Raises:
            Gone: they are.
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
                # Where there is nothing to do, a turn lets go of what is old, which one of them does for all.
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
            # What still waits there is counted by the gateway itself, when it notices.
            self._poll.unregister(number)
            self._open.pop(number)[0].close()

    def _accept(self) -> None:
        try:
            connection, _ = self._door.accept()
        except OSError:
            return  # it has left already
        connection.settimeout(_SEND_SECONDS)
        self._join(connection)

    def _join(self, connection: socket.socket) -> None:
        self._open[connection.fileno()] = connection, self._begin(connection)
        self._poll.register(connection, select.POLLIN)


def shared(hire: Callable[[WorkerOptions, float], WorkerParts]) -> Callable[[WorkerOptions, float], WorkerParts]:
    """Has all sessions work with the same staff, which goes by the terms that came last."""
    present: list[WorkerParts] = []

    def join(terms: WorkerOptions, now: float) -> WorkerParts:
        if present:
            present[0].configure(terms, now)
        else:
            present.append(hire(terms, now))
        return present[0]

    return join


def main() -> None:
    """The command: the socket at which gateways connect, and the connection of whoever started it."""
    from gateway.explain.worker.build import ExplainParts

    door, first = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    hire = shared(ExplainParts)
    until_gone(lambda: Sessions(first, door, lambda connection: Session(connection, ExplainWorker(hire))).run())


if __name__ == "__main__":
    main()
