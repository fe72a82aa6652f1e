"""The server of one port, its socket, and the limit for clients that do not read.

A closed connection stays open until its client has read all data, which it may never do: ``SlowClients`` aborts it.
"""

import asyncio
import contextlib
import fcntl
import math
import socket
import struct
import termios
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import structlog
import uvicorn

from gateway.api.cors import Cors
from gateway.config.settings import Settings
from gateway.core.errors import ConfigInvalid
from gateway.server.http_protocol import limited_protocol
from gateway.server.sockets import FileLimits, open_files

_LAST_WORDS_SECONDS = 1
"""Seconds after the grace period in which open answers send their error, before their connections are closed."""

_TICKS_A_SECOND = 10
_LOOK_SECONDS = 5
"""Interval of the check for clients that do not read."""

_LOOK_AGAIN_SECONDS = 0.5
"""Time in which a client of a stopping server has to read something."""


class HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling: two servers share a process.

    Args:
        app: The application.
        settings: The configuration.
        uds: Path of the Unix socket to listen at; its clients are proxies that name the real client. None: it listens
            at the sockets that ``serve`` gets.
        cors: Allowed origins for errors of the HTTP layer; None: no page.
    """

    def __init__(self, app: Any, settings: Settings, uds: str | None = None, cors: Cors | None = None) -> None:
        server = settings.server
        super().__init__(
            uvicorn.Config(
                app,
                uds=uds,
                http=limited_protocol(
                    server.max_header_bytes, server.receive_seconds, FileLimits.of(open_files()), cors
                ),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=uds is not None,
                forwarded_allow_ips="*",
                timeout_keep_alive=math.ceil(server.keep_alive_seconds),
                timeout_graceful_shutdown=math.ceil(server.shutdown_grace_seconds) + _LAST_WORDS_SECONDS,
            )
        )
        self._listening = asyncio.Event()
        self._leaving = SlowClients()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        self._listening.set()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second while it serves."""
        if counter % (_LOOK_SECONDS * _TICKS_A_SECOND) == 0:
            self._leaving.look(self.server_state.connections, asyncio.get_running_loop().time())
        return await super().on_tick(counter)

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
        """Close every connection after its next answer, so that clients reconnect to another gateway."""
        ends = (b"connection", b"close")
        self.config.encoded_headers.append(ends)
        self.server_state.default_headers = [*self.server_state.default_headers, ends]
        for connection in self.server_state.connections:
            cycle = getattr(connection, "cycle", None)
            if cycle is not None and not cycle.response_started:
                cycle.keep_alive = False

    def cut_stalled(self, before: Mapping[Any, int] | None = None) -> None:
        """Abort connections whose client does not read: the server could not stop before. Looks again until all are
        closed.

        Args:
            before: Unread bytes by connection at the last look; a client that has read none of them since is cut.
        """
        unread = {each: _not_taken(each.transport) for each in list(self.server_state.connections)}
        for connection, size in unread.items():
            if before is not None and 0 < before.get(connection, 0) <= size:
                connection.transport.abort()
        if unread:
            asyncio.get_running_loop().call_later(_LOOK_AGAIN_SECONDS, self.cut_stalled, unread)

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]  # uvicorn's own is untyped in the same way
        """Leave the signals alone."""
        yield


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


_LINGER_SECONDS = 10.0
"""Seconds without progress after which a closed connection is aborted."""

_log = structlog.get_logger("gateway.api")


class OpenConnection(Protocol):
    """A connection."""

    @property
    def transport(self) -> asyncio.Transport:
        """Its transport."""
        ...


class SlowClients:
    """Aborts closed connections whose clients do not read."""

    def __init__(self) -> None:
        self._left: dict[OpenConnection, tuple[int, float]] = {}

    def look(self, connections: Iterable[OpenConnection], now: float) -> None:
        """Check all connections; to be called regularly.

        Args:
            connections: The server's connections.
            now: Monotonic seconds.
        """
        left: dict[OpenConnection, tuple[int, float]] = {}
        for connection in connections:
            transport = connection.transport
            if not transport.is_closing():
                continue
            size = _not_taken(transport)
            before, since = self._left.get(connection, (size + 1, now))
            if size < before:
                since = now
            if now - since >= _LINGER_SECONDS:
                _log.info("connection_cut", bytes_left=size)
                transport.abort()
            else:
                left[connection] = size, since
        self._left = left


def _not_taken(transport: asyncio.Transport) -> int:
    """Bytes that the client has not read: those buffered here and, where the system reports them, those in its
    buffers."""
    size = transport.get_write_buffer_size()
    with contextlib.suppress(OSError, AttributeError):
        sock = transport.get_extra_info("socket")
        (sent,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))
        size += sent
    return size
