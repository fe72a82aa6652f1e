"""Exchanges with replicas over pooled connections."""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from urllib.parse import urlsplit

from gateway.http_client.connection import Connection, NotConnected, ResponseTooLarge, TransportError


@dataclass(frozen=True, slots=True)
class Origin:
    """A replica's base URL, taken apart once.

    Attributes:
        host: Name or address to connect to.
        port: Port to connect to.
        tls: Whether the connection is encrypted; certificates are checked against the system's.
        path: Prefix of every path, without a trailing slash.
        authority: Value of the ``host`` header.
    """

    host: str
    port: int
    tls: bool
    path: str
    authority: str

    @classmethod
    def parse(cls, url: str) -> "Origin":
        """Take apart an http or https URL."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        return cls(
            host=parts.hostname or "",
            port=parts.port or (443 if tls else 80),
            tls=tls,
            path=parts.path.rstrip("/"),
            authority=parts.netloc.rpartition("@")[2],
        )

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context for asyncio; None for http."""
        return _default_context() if self.tls else None


@cache
def _default_context() -> ssl.SSLContext:
    return ssl.create_default_context()


Headers = Sequence[tuple[bytes, bytes]]

_IDLE_SECONDS = 4.0
"""Connections idle longer are not used again. Engines close theirs after 5 seconds (uvicorn's default, which vLLM and
SGLang keep); a request sent at that moment would fail, and it would be unknown whether it was computed."""


class Response:
    """A response whose head was received.

    Attributes:
        status: HTTP status.
        headers: Names in lower case, values as they came.
        read: The next piece of the body as soon as there is one; None at the end. Raises ``TransportError``.
    """

    __slots__ = ("headers", "read", "status")

    def __init__(self, connection: Connection) -> None:
        self.status = connection.status
        self.headers = connection.headers
        self.read = connection.read


class HttpExchange:
    """One request and its answer: ``async with client.request(…) as response``.

    Leaving keeps the connection for the next request if the answer was read to its end; otherwise it is closed at
    once, also when the task is cancelled, so that the replica stops computing.
    """

    __slots__ = ("_body", "_client", "_connection", "_head", "_origin")

    def __init__(self, client: "HttpClient", origin: Origin, head: bytes, body: bytes) -> None:
        self._client = client
        self._origin = origin
        self._head = head
        self._body = body
        self._connection: Connection | None = None

    async def __aenter__(self) -> Response:
        connection = self._client._idle_connection(self._origin) or await self._client._connect(self._origin)
        self._connection = connection
        try:
            connection.send(self._head, self._body)
            self._body = b""  # the connection holds the unsent part
            await connection.wait_for_head()
        except BaseException:
            connection.abort()
            raise
        return Response(connection)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._connection is not None
        self._client._release(self._origin, self._connection)


class HttpClient:
    """Connections to all replicas.

    Args:
        connect_timeout_seconds: Limit for making a connection.
    """

    def __init__(self, connect_timeout_seconds: float) -> None:
        self._connect_timeout = connect_timeout_seconds
        self._idle: dict[Origin, deque[tuple[float, Connection]]] = {}

    def request(self, method: str, origin: Origin, path: str, headers: Headers, body: bytes = b"") -> HttpExchange:
        """An exchange, as an asynchronous context manager.

        Args:
            method: HTTP method.
            origin: The replica's address.
            path: Path below the origin's.
            headers: All but ``host`` and ``content-length``. Their values must hold no line breaks.
            body: The whole body.

        Entering raises ``NotConnected`` or ``Broken``.
        """
        lines = [f"{method} {origin.path}{path} HTTP/1.1\r\nhost: {origin.authority}\r\n".encode("latin-1")]
        lines += [name + b": " + value + b"\r\n" for name, value in headers]
        if body or method != "GET":
            lines.append(b"content-length: %d\r\n" % len(body))
        lines.append(b"\r\n")
        return HttpExchange(self, origin, b"".join(lines), body)

    async def fetch(
        self,
        method: str,
        origin: Origin,
        path: str,
        headers: Headers,
        body: bytes = b"",
        *,
        timeout_seconds: float,
        max_bytes: int = 2**20,
    ) -> tuple[int, bytes]:
        """One short exchange: status and body.

        Args:
            method: HTTP method.
            origin: The replica's address.
            path: Path below the origin's.
            headers: As of ``request``.
            body: The whole body.
            timeout_seconds: Limit for the whole exchange.
            max_bytes: Largest body that is accepted.

        Raises:
            ResponseTooLarge: the body is larger.
            TransportError: no complete answer within the time.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                async with self.request(method, origin, path, headers, body) as response:
                    pieces = []
                    size = 0
                    while (piece := await response.read()) is not None:
                        size += len(piece)
                        if size > max_bytes:
                            raise ResponseTooLarge(f"{path} answered more than {max_bytes >> 10} KiB")
                        pieces.append(piece)
                    return response.status, b"".join(pieces)
        except TimeoutError as error:
            raise TransportError(f"no answer within {timeout_seconds:g} seconds") from error

    def forget(self, origin: Origin) -> None:
        """Close the idle connections to an origin that is no longer used."""
        for _, connection in self._idle.pop(origin, ()):
            connection.abort()

    def close(self) -> None:
        """Close all idle connections."""
        for connections in self._idle.values():
            for _, connection in connections:
                connection.abort()
        self._idle.clear()

    def _idle_connection(self, origin: Origin) -> Connection | None:
        connections = self._idle.get(origin)
        now = time.monotonic()
        while connections:
            since, connection = connections.pop()
            if connection.closed:
                continue
            if now - since <= _IDLE_SECONDS and not connection.stale:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: Origin) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop, origin.authority), origin.host, origin.port, ssl=origin.ssl_context
                )
        except TimeoutError as error:
            raise NotConnected(f"no connection within {self._connect_timeout:g} seconds") from error
        except (OSError, ssl.SSLError) as error:
            raise NotConnected(str(error)) from error
        return connection

    def _release(self, origin: Origin, connection: Connection) -> None:
        if not connection.reusable:
            connection.abort()
            return
        now = time.monotonic()
        # Checks all origins: an exchange may have ended at one that was removed.
        self._close_unused([origin] if origin in self._idle else list(self._idle), now)
        self._idle.setdefault(origin, deque()).append((now, connection))

    def _close_unused(self, origins: Sequence[Origin], now: float) -> None:
        """Close connections that are idle for too long; the next request takes the one used last."""
        for origin in origins:
            connections = self._idle[origin]
            while connections and (connections[0][1].closed or now - connections[0][0] > _IDLE_SECONDS):
                connections.popleft()[1].abort()
            if not connections:
                del self._idle[origin]
