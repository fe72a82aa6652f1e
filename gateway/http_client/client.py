"""Exchanges with replicas over pooled connections."""

import asyncio
import math
import ssl
import time
from collections import deque
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from gateway.http_client.connection import (
    Broken,
    Connection,
    NotConnected,
    ResponseReceiver,
    ResponseTooLarge,
    TransportError,
)

TlsFiles = tuple[Path | None, Path | None, Path | None]
"""Authorities to trust in place of the system's, own certificate, and its key (None: in the certificate's file)."""

NO_FILES: TlsFiles = (None, None, None)


class Origin(msgspec.Struct, frozen=True, cache_hash=True):
    """A replica's base URL, taken apart once.

    Attributes:
        host: Name or address to connect to.
        port: Port to connect to.
        tls: Whether the connection is encrypted.
        path: Prefix of every path, without a trailing slash.
        authority: Value of the ``host`` header.
        files: Of an encrypted connection.
        changed_at: When each of them was changed: with other files it is another origin, without idle connections.
    """

    host: str
    port: int
    tls: bool
    path: str
    authority: str
    files: TlsFiles = NO_FILES
    changed_at: tuple[int, ...] = ()

    @classmethod
    def parse(cls, url: str, files: TlsFiles = NO_FILES) -> "Origin":
        """Take apart an http or https URL."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        return cls(
            host=parts.hostname or "",
            port=parts.port or (443 if tls else 80),
            tls=tls,
            path=parts.path.rstrip("/"),
            authority=parts.netloc.rpartition("@")[2],
            files=files,
            changed_at=changed_at(files),
        )

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context for asyncio; None for http. Raises OSError if a file cannot be used."""
        return tls_context(self.files, self.changed_at) if self.tls else None


def changed_at(files: TlsFiles) -> tuple[int, ...]:
    """When each of them was changed, those that exist."""
    return tuple(file.stat().st_mtime_ns for file in files if file is not None and file.exists())


@lru_cache(256)
def tls_context(files: TlsFiles, changed: tuple[int, ...]) -> ssl.SSLContext:  # noqa: ARG001 - a key
    """The context for such files. Raises OSError (not kept) if one cannot be read, or holds no certificate or key."""
    authorities, certificate, key = files
    context = ssl.create_default_context(cafile=authorities)
    if certificate is not None:
        context.load_cert_chain(certificate, key, password="")  # else OpenSSL asks for one at the terminal
    return context


Headers = Sequence[tuple[bytes, bytes]]

_IDLE_SECONDS = 4.0
"""Connections idle longer are not used again. Engines close theirs after 5 seconds (uvicorn's default, which vLLM and
SGLang keep); a request sent at that moment would fail, and it would be unknown whether it was computed."""


class HttpExchange(msgspec.Struct, eq=False):
    """One request and its response.

    Attributes:
        receiver: Gets the response; None once the exchange is closed.
        connection: Where the request was sent; None as long as that is being made.
        connecting: The task that makes a connection.
        unsent: Head and body of a request that waits for its connection.
    """

    receiver: ResponseReceiver | None
    connection: Connection | None = None
    connecting: asyncio.Task[Connection] | None = None
    unsent: tuple[bytes, bytes] = (b"", b"")

    def connect(self, connecting: "asyncio.Task[Connection]", head: bytes, body: bytes) -> None:
        """Send the request on a connection that is being made."""
        self.connection = None
        self.unsent = head, body
        self.connecting = connecting
        connecting.add_done_callback(self._connected)

    def pause(self) -> None:
        """Receive nothing for now."""
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """Go on receiving."""
        if self.connection is not None:
            self.connection.resume()

    def close(self) -> None:
        """End the exchange; without effect once it has ended. An incomplete one closes its connection at once, so that
        the replica stops computing."""
        receiver, self.receiver = self.receiver, None
        if self.connecting is not None:
            self.unsent = b"", b""
            self.connecting.cancel()
        elif self.connection is not None and self.connection.receiver is receiver is not None:
            self.connection.abort()

    def _connected(self, connecting: "asyncio.Task[Connection]") -> None:
        self.connecting = None
        (head, body), self.unsent = self.unsent, (b"", b"")  # the connection holds what it has not sent
        receiver = self.receiver
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
            self.connection = connecting.result()
            self.connection.send(head, body, receiver)


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
        max_files: Number of open files of this process from which on there are no further connections.
    """

    def __init__(self, connect_timeout_seconds: float, max_files: float = math.inf) -> None:
        self._connect_timeout = connect_timeout_seconds
        self._max_files = max_files
        self._idle: dict[Origin, deque[tuple[float, Connection]]] = {}

    def send(  # noqa: PLR0917 - as the parts stand in a request
        self,
        method: str,
        origin: Origin,
        path: str,
        headers: Headers,
        body: bytes,
        receiver: ResponseReceiver,
        *,
        fresh: bool = False,
    ) -> HttpExchange:
        """Send a request: at once on an idle connection, else on a new one as soon as that is made.

        An idle connection may end just as the request is sent. If it ends before a byte of the response, the request
        is sent once more, on a new connection.

        Args:
            method: HTTP method.
            origin: The replica's address.
            path: Path below the origin's.
            headers: All but ``host`` and ``content-length``. Their values must hold no line breaks.
            body: The whole body.
            receiver: Gets the response, or ``NotConnected`` or ``Broken``; never before this returns.
            fresh: Whether to send it on a new connection only, and so only once.
        """
        lines = [f"{method} {origin.path}{path} HTTP/1.1\r\nhost: {origin.authority}".encode("latin-1")]
        lines += map(b": ".join, headers)
        if body or method != "GET":
            lines.append(b"content-length: %d" % len(body))
        lines += (b"", b"")
        head = b"\r\n".join(lines)
        connection = None if fresh else self._idle_connection(origin)
        exchange = HttpExchange(receiver, connection)
        if connection is not None:
            connection.send(head, body, receiver, partial(self._send_anew, exchange, origin, head, body))
        else:
            self._send_anew(exchange, origin, head, body)
        return exchange

    def _send_anew(self, exchange: HttpExchange, origin: Origin, head: bytes, body: bytes) -> None:
        """Send a request on a new connection."""
        connecting = asyncio.get_running_loop().create_task(self._connect(origin), name="connect")
        exchange.connect(connecting, head, body)

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
        fresh: bool = False,
    ) -> tuple[int, bytes]:
        """One short exchange: status and body. Arguments and errors are those of ``fetch_response``."""
        response = await self.fetch_response(
            method, origin, path, headers, body, timeout_seconds=timeout_seconds, max_bytes=max_bytes, fresh=fresh
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
        fresh: bool = False,
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
            fresh: As of ``send``.

        Raises:
            ResponseTooLarge: the body is larger.
            TransportError: no complete answer within the time.
        """
        response = _WholeResponse(f"{origin.path}{path}", max_bytes)
        exchange = self.send(method, origin, path, headers, body, response, fresh=fresh)
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
                transport, connection = await loop.create_connection(
                    lambda: Connection(loop, origin.authority, release),
                    origin.host,
                    origin.port,
                    ssl=origin.ssl_context,
                )
        except TimeoutError as error:
            raise NotConnected(f"no connection within {self._connect_timeout:g} seconds") from error
        except (OSError, ssl.SSLError) as error:
            raise NotConnected(str(error)) from error
        if transport.get_extra_info("socket").fileno() >= self._max_files:  # the lowest number that was free
            connection.abort()
            raise NotConnected("the gateway has too many open files (ulimit -n)")
        return connection

    def _release(self, origin: Origin, connection: Connection) -> None:
        if not connection.reusable:
            connection.abort()
            return
        now = time.monotonic()
        idle = self._idle.get(origin)
        if idle is None:
            # Checks all origins: an exchange may have ended at one that was removed.
            for other in list(self._idle):
                if not _without_unused(self._idle[other], now):
                    del self._idle[other]
            idle = self._idle[origin] = deque()
        elif idle:
            _without_unused(idle, now)
        idle.append((now, connection))


def _without_unused(idle: "deque[tuple[float, Connection]]", now: float) -> "deque[tuple[float, Connection]]":
    """Close connections that are idle for too long; the next request takes the one used last. Returns the others."""
    while idle and (idle[0][1].closed or now - idle[0][0] > _IDLE_SECONDS):
        idle.popleft()[1].abort()
    return idle
