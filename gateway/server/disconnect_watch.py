"""Whether a client from which nothing is read still waits for its answer.

The end of what a client sends (a TCP FIN) looks the same for a client that waits and one that has disconnected, before
the answer begins. A disconnected client is recognized by the reset with which its system answers any data. So interim
answers (``100 Continue``, which every HTTP/1.1 client has to pass over) are sent at growing intervals as long as
nothing else has been. Some clients take only a few of them; after these, TCP's keepalive finds out, in about a minute.

A client's end does not arrive as long as the socket's buffers are full of what it sent before: one that disconnects
then is noticed when it is read again, or answered.
"""

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable

_LOOK_SECONDS = 0.1
_PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FIRST_PAUSE_SECONDS = 1.0
_MAX_PROBES = 4
"""Maximum interim answers: Go's client fails at the sixth."""

_END = getattr(select, "POLLRDHUP", 0)
"""Reported when the client sends nothing more, also while earlier bytes are unread; on Linux only."""

_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds of silence before the first probe, seconds between probes, and probes without a reply."""


class DisconnectWatch:
    """Watches one connection, and aborts it when the client has disconnected. Looks first after ``_LOOK_SECONDS``.

    Args:
        transport: The connection.
        may_probe: Whether an interim answer may be sent now.
        leaves_at_end: Whether the client counts as disconnected once it sends nothing more.

    Attributes:
        ended: Whether the client sends nothing more. Before that there are no interim answers.
    """

    def __init__(self, transport: asyncio.Transport, may_probe: Callable[[], bool], *, leaves_at_end: bool) -> None:
        self.ended = False
        self._leaves_at_end = leaves_at_end
        self._transport = transport
        self._may_probe = may_probe
        self._loop = asyncio.get_running_loop()
        self._probes = 0
        self._probe_at = self._loop.time()
        self._poll = select.poll()
        # Errors and hang-ups are always reported.
        self._poll.register(transport.get_extra_info("socket").fileno(), _END)
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(_LOOK_SECONDS, self._look)

    def end(self) -> None:
        """The client sends nothing more."""
        if self.ended:
            return
        self.ended = True
        sock = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # a Unix socket has no such options, and needs none
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if hasattr(socket, name):  # not on every system
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._probe()

    def stop(self) -> None:
        """The connection is closed, or is read again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._transport.is_closing():
            return
        reported = self._poll.poll(0)
        if reported and (self._leaves_at_end or reported[0][1] & ~_END):
            self._transport.abort()
            return
        if reported:
            self.end()
        if self.ended:
            self._probe()
        self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)

    def _probe(self) -> None:
        now = self._loop.time()
        if self._probes < _MAX_PROBES and now >= self._probe_at and self._may_probe():
            self._transport.write(_PROBE)
            self._probe_at = now + _FIRST_PAUSE_SECONDS * 2**self._probes
            self._probes += 1
