"""The server of one port, its socket, and the limit for clients that do not read.

What writes to a connection waits for its client, and a closed connection stays open until its client has read all
data, which it may never do: ``SlowClients`` aborts it.
"""

import asyncio
import contextlib
import fcntl
import socket
import struct
import termios
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import structlog

from gateway.api.cors import Cors
from gateway.core.errors import ConfigInvalid
from gateway.server.asgi_adapter import AsgiHandler
from gateway.server.client_connection import ClientConnection
from gateway.server.port import Port, PortOptions
from gateway.server.public_handler import PublicHandler

_LAST_WORDS_SECONDS = 1
"""Seconds after the grace period in which open answers send their error, before their tasks are cancelled."""

_BACKLOG = 2048
"""Connections that the system accepts before this process does."""

_DATE_SECONDS = 1.0
"""Interval at which the ``date`` header is renewed."""

_CHECKS = 4
"""Checks within the time that a client may read nothing: it is exceeded by a quarter at most."""

_MIN_CHECK_SECONDS = 0.05
_MAX_CHECK_SECONDS = 5.0
"""Bounds of the interval of these checks. One takes some microseconds for each response that is being sent."""

_HURRIED_SECONDS = 0.5
"""Time in which a client of a stopping server has to read something."""

_POLL_SECONDS = 0.05
"""Interval at which a stopping server checks whether its connections have ended."""


class HttpServer:
    """Serves one port.

    Args:
        handler: Answers requests.
        options: How it treats its connections.
        uds: Path of the Unix socket to listen at. None: it listens at the sockets that ``serve`` gets.
        cors: Allowed origins for errors of the HTTP layer; None: no page.

    Attributes:
        port: Its connections.
    """

    def __init__(
        self,
        handler: AsgiHandler | PublicHandler,
        options: PortOptions,
        uds: str | None = None,
        cors: Cors | None = None,
    ) -> None:
        self.port = Port(handler, options, cors)
        self._handler = handler
        self._uds = uds
        self._grace_seconds = options.grace_seconds + _LAST_WORDS_SECONDS
        self._listeners: list[asyncio.Server] = []
        self._listening = asyncio.Event()
        self._stopping = asyncio.Event()
        self._slow_clients = SlowClients(options.unread_seconds)
        self._check_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def serve(self, sockets: Sequence[socket.socket] = ()) -> None:
        """Serve until ``stop`` is called and the open responses have ended.

        Args:
            sockets: Bound sockets; closed in the end.
        """
        await self.listen(sockets)
        await self._stopping.wait()
        await self.close()
        for sock in sockets:
            sock.close()

    async def listen(self, sockets: Sequence[socket.socket] = ()) -> None:
        """Begin to accept connections."""
        loop = asyncio.get_running_loop()
        connection = partial(ClientConnection, self.port)
        if self._uds is not None:
            self._listeners.append(await loop.create_unix_server(connection, self._uds, backlog=_BACKLOG))
        for sock in sockets:
            self._listeners.append(await loop.create_server(connection, sock=sock, backlog=_BACKLOG))
        self._tick()
        self._listening.set()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self.port.renew_date()
        pause = min(max(self._slow_clients.seconds / _CHECKS, _MIN_CHECK_SECONDS), _MAX_CHECK_SECONDS)
        if now >= self._check_at:
            self._check_at = now + pause
            self._slow_clients.look(self.port.connections, now)
        self._timer = loop.call_later(min(pause, _DATE_SECONDS), self._tick)

    async def close(self) -> None:
        """Accept no more connections, and wait for the open responses; those that take too long are cancelled."""
        for listener in self._listeners:
            listener.close()
        self.port.leaving = True
        for connection in list(self.port.connections):
            connection.shut_down()
        try:
            async with asyncio.timeout(self._grace_seconds):
                while self.port.connections or self._handler.tasks:  # noqa: ASYNC110 - once, when it stops
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            _log.warning("requests_cancelled", count=len(self._handler.tasks))
            for task in list(self._handler.tasks):
                task.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stop(self) -> None:
        """Have ``serve`` end."""
        self._stopping.set()

    async def listens(self, serving: asyncio.Task[None]) -> None:
        """Wait until connections are accepted.

        Args:
            serving: The task in which it serves.

        Raises:
            Exception: the server failed to start.
        """
        listening = asyncio.get_running_loop().create_task(self._listening.wait())
        either: list[asyncio.Future[Any]] = [serving, listening]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if serving.done():
            await serving

    def leave(self) -> None:
        """Close every connection after its next response, so that clients reconnect to another gateway."""
        self.port.leaving = True

    def hurry_clients(self) -> None:
        """Abort connections whose client reads nothing for a short time: the server could not stop before."""
        self._slow_clients.seconds = min(self._slow_clients.seconds, _HURRIED_SECONDS)
        if self._timer is not None:
            self._timer.cancel()
            self._check_at = 0.0
            self._tick()


def bound(key: str, host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound socket. It does not listen yet: until a gateway is ready, clients are refused, and not kept waiting.

    Args:
        key: The setting that names the port.
        host: The address.
        port: The port.
        shared: Whether other processes of this user may listen at the same port; connections are spread over them.

    Raises:
        ConfigInvalid: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off, which would hold small answers back for 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise ConfigInvalid(
            [f"{key}: cannot listen on {host}:{port}: {error.strerror}. Set {key} to a free port."]
        ) from error
    sock.setblocking(False)
    return sock


def url_of(sock: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


_BYTES_ACKED = 120
"""Offset of ``tcpi_bytes_acked``."""

_log = structlog.get_logger("gateway.api")


class SlowClients:
    """Aborts connections whose clients do not read. The requests that were being answered are settled by that.

    Args:
        seconds: Time in which a client has to read something of what was written.

    Attributes:
        seconds: The same.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._taken: dict[ClientConnection, tuple[int, float]] = {}

    def look(self, connections: Iterable[ClientConnection], now: float) -> None:
        """Check all connections; to be called regularly.

        Args:
            connections: The server's connections.
            now: Monotonic seconds.
        """
        seen: dict[ClientConnection, tuple[int, float]] = {}
        for connection in connections:
            transport = connection.transport
            if not (connection.busy or transport.get_write_buffer_size()):
                continue  # the limit of idle connections ends it
            unread = _unread(transport)
            if not unread:
                continue
            taken = _taken(transport, unread)
            before, since = self._taken.get(connection, (taken, now))
            if taken != before:
                since = now
            if now - since >= self.seconds:
                _log.info("connection_cut", bytes_left=unread)
                transport.abort()
            else:
                seen[connection] = taken, since
        self._taken = seen


def _unread(transport: asyncio.Transport) -> int:
    """Bytes that the client's system has not taken: those buffered here and, where it reports them, in this system's
    buffers."""
    size = transport.get_write_buffer_size()
    with contextlib.suppress(OSError, AttributeError):
        sock = transport.get_extra_info("socket")
        (sent,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))
        size += sent
    return size


def _taken(transport: asyncio.Transport, unread: int) -> int:
    """A number that changes when the client's system takes bytes: how many it has taken, of ``tcp_info`` in
    ``linux/tcp.h`` (4.1); elsewhere what is derived from the bytes that are left."""
    with contextlib.suppress(OSError, AttributeError, struct.error):
        sock = transport.get_extra_info("socket")
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED + 8)
        (taken,) = struct.unpack_from("Q", info, _BYTES_ACKED)
        return int(taken)
    return -unread
