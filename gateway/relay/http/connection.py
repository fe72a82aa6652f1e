"""One connection to a replica, with one exchange on it at a time."""

import asyncio
import select
from typing import cast

import httptools

from gateway.relay.http.errors import Broken, TransportError

_HIGH_WATER = 256 * 1024
"""Bytes of an answer held before the replica is told to wait, for a client that reads slowly."""

_LARGEST_HEAD = 256 * 1024
"""Bytes of names and values in an answer's head; more is no head of any engine."""


class Connection(asyncio.Protocol):
    """The receiving side of an answer: parses, holds pieces until they are read, remembers how it ended.

    Attributes:
        closed: Whether the connection is gone.
        complete: Whether the present answer is complete.
        status: Status of the present answer; 0 until its head is complete.
        headers: Headers of the present answer, names in lower case.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._pieces: list[bytes] = []
        self._held = 0
        self._head_bytes = 0
        self._paused = False
        self._keep_alive = False
        self._error: TransportError | None = None
        self._readable = select.poll()
        self.closed = False
        self.complete = True
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []

    def send(self, head: bytes, body: bytes) -> None:
        """Begin an exchange.

        Raises:
            Broken: the connection is gone.
        """
        if self.closed or self._transport is None:
            raise Broken("the connection was closed")
        self._parser = httptools.HttpResponseParser(self)
        self.complete = False
        self._keep_alive = False
        self.status = 0
        self.headers = []
        self._head_bytes = 0
        self._transport.writelines((head, body) if body else (head,))

    async def wait_for_head(self) -> None:
        """Wait until status and headers are there.

        Raises:
            Broken: they will not come.
        """
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def read(self) -> bytes | None:
        """The next piece of the body as soon as there is one; None at the end.

        Raises:
            Broken: the answer will not be completed.
        """
        while not self._pieces:
            if self.complete:
                return None
            if self._error is not None:
                raise self._error
            await self._wait()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._held = 0
        if self._paused and not self.closed:
            self._paused = False
            assert self._transport is not None
            self._transport.resume_reading()
        return data

    @property
    def reusable(self) -> bool:
        """Whether another request may be sent: the last answer is complete and nobody means to close."""
        return self.complete and not self.closed and not self._pieces and self._error is None and self._keep_alive

    @property
    def stale(self) -> bool:
        """Whether an idle connection has something to read: then the replica has closed it, and it is not yet noticed.

        A request sent now would be lost, and it would look as if the replica had failed it.
        """
        return bool(self._readable.poll(0))

    def abort(self) -> None:
        """Close at once, whatever is under way: the replica notices and stops computing."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, reason: str) -> None:
        if self._error is None:
            self._error = Broken(reason)
        self._wake()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from asyncio's
        self._readable.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self.complete or self._parser is None:
            # Nobody asked for anything: what stands in for the next answer would be taken for it.
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the answer is not HTTP: {error}")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.closed = True
        if self.complete:
            return
        if self.status and exc is None and self._ends_with_the_connection():
            self.complete = True
            self._wake()
        else:
            self._fail("the replica closed the connection" if exc is None else f"the connection broke: {exc}")

    def _ends_with_the_connection(self) -> bool:
        """Whether the answer's length was left open (RFC 9112, section 6.3)."""
        return not any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > _LARGEST_HEAD:
            raise httptools.HttpParserError("the head is too large")
        if not self.status:  # what comes later is a trailer
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 200:
            self.headers = []  # an interim answer; the real one follows
            return
        self.status = status
        self._wake()

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._pieces.append(data)
        self._held += len(data)
        if self._held > _HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        """The answer is complete."""
        if self.status:
            assert self._parser is not None
            self._keep_alive = self._parser.should_keep_alive()
            self.complete = True
            self._wake()
