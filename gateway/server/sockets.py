"""Connections as the system sees them: whether a client still waits for its answer, and how many files may be open.

The end of what a client sends (a TCP FIN) looks the same for a client that waits and one that has disconnected, before
the answer begins. A disconnected client is recognized by the reset with which its system answers any data. So interim
answers (``100 Continue``, which every HTTP/1.1 client has to pass over) are sent at growing intervals as long as
nothing else has been. Some clients take only a few of them; after these, TCP's keepalive finds out, in about a minute.
"""

import asyncio
import contextlib
import math
import resource
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass

_MOST = 2**20
"""Upper bound of the requested limit: some systems allow a thousand times more, and programs iterate over all."""


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Numbers of open files up to which new connections are accepted. The rest is reserved for connections to replicas.

    Attributes:
        served: Up to this number a new connection is served.
        refused: Up to this number it gets an error; beyond, it is closed.
    """

    served: float
    refused: float

    @classmethod
    def of(cls, open_files: float) -> "FileLimits":
        """The limits of a process that may have this number of open files."""
        return cls(open_files * 3 // 4, open_files * 7 // 8)

    @classmethod
    def endless(cls) -> "FileLimits":
        """For any number."""
        return cls(math.inf, math.inf)


def raise_open_files() -> None:
    """Let this process, and those that it starts from now on, have as many files open as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has another limit, which it does not report
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_files() -> float:
    """This process's limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if soft == resource.RLIM_INFINITY else soft


_LOOK_SECONDS = 0.1
_PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FIRST_PAUSE_SECONDS = 1.0
_MAX_PROBES = 4
"""Maximum interim answers: Go's client fails at the sixth."""

_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds of silence before the first probe, seconds between probes, and probes without a reply."""


class HalfClosed:
    """Watches one half-closed connection, and aborts it when the client has disconnected.

    Args:
        transport: The connection.
        may_probe: Whether an interim answer may be sent now.
    """

    def __init__(self, transport: asyncio.Transport, may_probe: Callable[[], bool]) -> None:
        self._transport = transport
        self._may_probe = may_probe
        self._loop = asyncio.get_running_loop()
        self._probes = 0
        self._probe_at = self._loop.time()
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):  # not on every system
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._poll = select.poll()
        self._poll.register(sock.fileno(), 0)  # errors and hang-ups are always reported
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    def stop(self) -> None:
        """The connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if self._transport.is_closing():
            return
        if self._poll.poll(0):
            self._transport.abort()
            return
        now = self._loop.time()
        if self._probes < _MAX_PROBES and now >= self._probe_at and self._may_probe():
            self._transport.write(_PROBE)
            self._probe_at = now + _FIRST_PAUSE_SECONDS * 2**self._probes
            self._probes += 1
        self._timer = self._loop.call_later(_LOOK_SECONDS, self._look)
