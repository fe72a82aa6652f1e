"""Exchanges with replicas over pooled connections."""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.http_client.connection import (
    Broken,
    Connection,
    NotConnected,
    ResponseReceiver,
    ResponseTooLarge,
    TransportError,
)


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


class HttpExchange:
    """One request and its response.

    Args:
        head: The request's head.
        body: Its body.
        receiver: Gets the response.
    """

    __slots__ = ("_body", "_connecting", "_connection", "_head", "_receiver")

    def __init__(self, head: bytes, body: bytes, receiver: ResponseReceiver) -> None:
        self._head = head
        self._body = body
        self._receiver: ResponseReceiver | None = receiver
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None

    def send(self, connection: Connection) -> None:
        """Send the request on an idle connection."""
        assert self._receiver is not None
        self._connection = connection
        connection.send(self._head, self._body, self._receiver)
        self._body = b""  # the connection holds the unsent part

    def connect(self, connecting: "asyncio.Task[Connection]") -> None:
        """Send the request on a connection that is being made."""
        self._connecting = connecting
        connecting.add_done_callback(self._connected)

    def pause(self) -> None:
        """Receive nothing for now."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Go on receiving."""
        if self._connection is not None:
            self._connection.resume()

    def close(self) -> None:
        """End the exchange; without effect once it has ended. An incomplete one closes its connection at once, so that
        the replica stops computing."""
        receiver, self._receiver = self._receiver, None
        self._body = b""
        if self._connecting is not None:
            self._connecting.cancel()
        elif self._connection is not None and self._connection.receiver is receiver is not None:
            self._connection.abort()

    def _connected(self, connecting: "asyncio.Task[Connection]") -> None:
        self._connecting = None
        receiver = self._receiver
        if connecting.cancelled():
            return
        error = connecting.exception()
        if receiver is None:
            if error is None:
                connecting.result().abort()
        elif error is not None:
            receiver.failed(error if isinstance(error, Exception) else NotConnected(str(error)))
        elif connecting.result().closed:
            receiver.failed(Broken("the connection was closed"))
        else:
            self.send(connecting.result())


class HttpResponse(NamedTuple):
    """A whole response; names of headers are in lower case."""

    status: int
    headers: Headers
    body: bytes


class _WholeResponse:
    """A ``ResponseReceiver`` that collects a response.

    Args:
        path: The requested path with the origin's, for errors.
        max_bytes: Largest body that is accepted.

    Attributes:
        result: The response.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        self.result: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        self._path = path
        self._room = max_bytes
        self._max_bytes = max_bytes
        self._status = 0
        self._headers: Headers = ()
        self._pieces: list[bytes] = []

    def response_begun(self, status: int, headers: Headers) -> None:
        """See ``ResponseReceiver``."""
        self._status = status
        self._headers = headers

    def body_received(self, data: bytes, chunk: bytes | None = None) -> None:  # noqa: ARG002
        """See ``ResponseReceiver``."""
        self._room -= len(data)
        if self._room < 0:
            raise ResponseTooLarge(f"{self._path} answered more than {self._max_bytes >> 10} KiB")
        self._pieces.append(data)

    def response_complete(self) -> None:
        """See ``ResponseReceiver``."""
        if not self.result.done():
            self.result.set_result(HttpResponse(self._status, self._headers, b"".join(self._pieces)))

    def failed(self, error: Exception) -> None:
        """See ``ResponseReceiver``."""
        if not self.result.done():
            self.result.set_exception(error)


class HttpClient:
    """Connections to all replicas.

    Args:
        connect_timeout_seconds: Limit for making a connection.
    """

    def __init__(self, connect_timeout_seconds: float) -> None:
        self._connect_timeout = connect_timeout_seconds
        self._idle: dict[Origin, deque[tuple[float, Connection]]] = {}

    def send(  # noqa: PLR0917 - as the parts stand in a request
        self, method: str, origin: Origin, path: str, headers: Headers, body: bytes, receiver: ResponseReceiver
    ) -> HttpExchange:
        """Send a request: at once on an idle connection, else on a new one as soon as that is made.

        Args:
            method: HTTP method.
            origin: The replica's address.
            path: Path below the origin's.
            headers: All but ``host`` and ``content-length``. Their values must hold no line breaks.
            body: The whole body.
            receiver: Gets the response, or ``NotConnected`` or ``Broken``; never before this returns.
        """
        lines = [f"{method} {origin.path}{path} HTTP/1.1\r\nhost: {origin.authority}\r\n".encode("latin-1")]
        lines += [b"%b: %b\r\n" % header for header in headers]
        if body or method != "GET":
            lines.append(b"content-length: %d\r\n" % len(body))
        lines.append(b"\r\n")
        exchange = HttpExchange(b"".join(lines), body, receiver)
        connection = self._idle_connection(origin)
        if connection is not None:
            exchange.send(connection)
        else:
            exchange.connect(asyncio.get_running_loop().create_task(self._connect(origin), name="connect"))
        return exchange

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
        """One short exchange: status and body. Arguments and errors are those of ``fetch_response``."""
        response = await self.fetch_response(
            method, origin, path, headers, body, timeout_seconds=timeout_seconds, max_bytes=max_bytes
        )
        return response.status, response.body

    async def fetch_response(
        self,
        method: str,
        origin: Origin,
        path: str,
        headers: Headers,
        body: bytes = b"",
        *,
        timeout_seconds: float,
        max_bytes: int = 2**20,
    ) -> HttpResponse:
        """One short exchange: the whole response.

        Args:
            method: HTTP method.
            origin: The replica's address.
            path: Path below the origin's.
            headers: As of ``send``.
            body: The whole body.
            timeout_seconds: Limit for the whole exchange.
            max_bytes: Largest body that is accepted.

        Raises:
            ResponseTooLarge: the body is larger.
            TransportError: no complete answer within the time.
        """
        response = _WholeResponse(f"{origin.path}{path}", max_bytes)
        exchange = self.send(method, origin, path, headers, body, response)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await response.result
        except TimeoutError as error:
            raise TransportError(f"no answer within {timeout_seconds:g} seconds") from error
        finally:
            exchange.close()

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
        release = partial(self._release, origin)
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop, origin.authority, release),
                    origin.host,
                    origin.port,
                    ssl=origin.ssl_context,
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
