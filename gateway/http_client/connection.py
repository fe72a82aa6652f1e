"""One connection to a replica, with one exchange on it at a time, and its errors."""

import asyncio
import select
from http import HTTPStatus
from typing import cast

import httptools
import structlog


class TransportError(Exception):
    """No complete answer was received."""


class NotConnected(TransportError):
    """No connection could be made; nothing was sent."""


class Broken(TransportError):
    """The connection broke, or the received bytes are not HTTP. The request may have been computed."""


class ResponseTooLarge(TransportError):
    """The body has more bytes than the caller accepts."""


_HIGH_WATER = 256 * 1024
"""Bytes of a response body that are held before reading is paused, for a client that reads slowly."""

_MAX_PIECES = 4096
"""Pieces of a response body that are held before reading is paused. A chunk of one byte costs about as much time and
memory as one of 1,000."""

_PORTION_BYTES = 8 * 1024
"""Bytes that the parser gets in one call. They have at most 1,400 chunks, which take about a millisecond."""

_PIECES_PER_TURN = 1024
"""Pieces after which the remaining bytes of a read wait for the next turn of the event loop."""

_MAX_OVERHEAD = 64 * 1024
"""Bytes of a response that are no body: its heads (with interim ones), or chunk sizes, chunk extensions and trailers
between two pieces of the body. The parser joins the parts of a header again for every read, so this also bounds the
bytes it copies. uvicorn's own limit for requests is the same."""

_FRAMING_PER_BODY_BYTE = 8
"""Bytes of chunk framing per byte of the body, over a whole response and beyond ``_MAX_OVERHEAD``. A chunk of one byte
has five, chunks of one token less than one."""

_MAX_INTERIM = 16
"""Interim (1xx) responses before the final one. Engines send none; a proxy sends one or two."""

_LOWEST_STATUS = 100
_FIRST_FINAL_STATUS = 200
_HIGHEST_STATUS = 599

_IDLE_TIMEOUT = b" 408 "
"""Some proxies announce with this response that they close an idle connection."""

_NOTHING = memoryview(b"")

_log = structlog.get_logger("gateway.proxy")


class Connection(asyncio.Protocol):
    """The receiving side of a response: parses, holds pieces until they are read, records how it ended.

    A response belongs to the request that is under way when it arrives; HTTP/1.1 has nothing else to match them by.
    Bytes that cannot belong to it (behind a complete response, or while the connection is idle) close the connection,
    and so does a response that begins before its request was written. What remains: a second response that the replica
    sends later, after the next request was written, is taken for the answer to that.

    Args:
        loop: The running loop.
        peer: Address of the replica, for log lines.

    Attributes:
        closed: Whether the connection is gone.
        complete: Whether the present answer is complete.
        status: Status of the present answer; 0 until its head is complete.
        headers: Headers of the present answer, names in lower case.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: str) -> None:
        self._loop = loop
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._pieces: list[bytes] = []
        self._held = 0
        self._unparsed = _NOTHING
        self._continuation: asyncio.Handle | None = None
        self._lost_by: tuple[Exception | None] | None = None
        self._wire_bytes = 0
        self._body_bytes = 0
        self._header_bytes = 0
        self._overhead = 0
        self._interim = 0
        self._early = False
        self._paused = False
        self._keep_alive = False
        self._broken: str | None = None
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
        self._wire_bytes = self._body_bytes = self._header_bytes = self._overhead = self._interim = 0
        self._early = False
        self._transport.writelines((head, body) if body else (head,))

    async def wait_for_head(self) -> None:
        """Wait for status and headers.

        Raises:
            Broken: the connection failed before.
        """
        while not self.status:
            if self._broken is not None:
                raise Broken(self._broken)
            await self._wait()

    async def read(self) -> bytes | None:
        """The next piece of the body as soon as there is one; None at the end.

        Raises:
            Broken: the answer will not be completed.
        """
        while not self._pieces:
            if self.complete:
                return None
            if self._broken is not None:
                raise Broken(self._broken)
            # One future per wait: written out, because a stream waits here for each of its chunks.
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._held = 0
        if self._paused:
            self._go_on()
        return data

    @property
    def reusable(self) -> bool:
        """Whether another request may be sent: the last one was written and answered completely, and both ends keep
        the connection.

        A replica may refuse a request before it has read all of it. The rest would then be sent in front of the next
        request.
        """
        return (
            self.complete
            and self._keep_alive
            and not (self.closed or self._early or self._pieces or self._unparsed)
            and self._broken is None
            and not self._unwritten
        )

    @property
    def _unwritten(self) -> bool:
        """Whether a part of the request is still to be written."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    @property
    def stale(self) -> bool:
        """Whether an idle connection has unread input: the replica has closed it, and asyncio has not reported it yet.

        A request sent now would be lost and count as a failure of the replica.
        """
        return bool(self._readable.poll(0))

    def abort(self) -> None:
        """Close at once, also within an exchange: the replica notices and stops computing."""
        self.closed = True
        self._unparsed = _NOTHING
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
        if self._broken is None:
            self._broken = reason
        self._wake()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is established."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from asyncio's
        self._readable.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        """Bytes were received."""
        if self.complete or self._parser is None:
            if _IDLE_TIMEOUT not in data[:16]:
                self._warn_of_surplus()
            self.abort()
            return
        if not self.status and self._unwritten:
            self._early = True
        self._unparsed = memoryview(bytes(self._unparsed) + data if self._unparsed else data)
        if not self._paused:
            self._parse()

    def _parse(self) -> None:
        """Parse the received bytes, up to the limits for one turn of the event loop and for what is held."""
        before = len(self._pieces)
        while self._unparsed:
            if self.complete:
                self._warn_of_surplus()
                self.abort()
                return
            if self._is_full or len(self._pieces) - before >= _PIECES_PER_TURN:
                break
            portion, self._unparsed = self._unparsed[:_PORTION_BYTES], self._unparsed[_PORTION_BYTES:]
            self._feed(portion)
        if self._unparsed or self._paused or self._is_full:
            self._go_on()

    def _feed(self, data: memoryview) -> None:
        """Parse bytes; the exchange fails if they are not HTTP, or if the framing exceeds its limits."""
        assert self._parser is not None
        self._overhead += len(data)
        self._wire_bytes += len(data)
        try:
            self._parser.feed_data(data)
            framing = self._wire_bytes - self._body_bytes
            if (
                self._overhead > _MAX_OVERHEAD or framing > _MAX_OVERHEAD + _FRAMING_PER_BODY_BYTE * self._body_bytes
            ) and not self.complete:
                raise httptools.HttpParserError(f"more than {_MAX_OVERHEAD >> 10} KiB of it are no body")
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"the answer is not HTTP: {error.__context__ or error}")
            self.abort()

    @property
    def _is_full(self) -> bool:
        """Whether parsing pauses until the reader has taken the held pieces."""
        return self._held > _HIGH_WATER or len(self._pieces) >= _MAX_PIECES

    def _go_on(self) -> None:
        """Resume parsing and reading as far as the limits of held pieces allow."""
        wait = bool(self._unparsed) or self._is_full
        if wait is not self._paused:
            self._paused = wait
            if self._transport is not None and not self.closed:
                (self._transport.pause_reading if wait else self._transport.resume_reading)()
        if self._unparsed and not self._is_full and self._continuation is None:
            self._continuation = self._loop.call_soon(self._continue)
        if self._lost_by is not None and not self._unparsed:
            self._end_by_loss(*self._lost_by)

    def _continue(self) -> None:
        self._continuation = None
        self._parse()

    def _warn_of_surplus(self) -> None:
        _log.warning(
            "replica_sent_surplus_data",
            address=self._peer,
            effect="the connection is closed; if this repeats, responses may reach the wrong requests",
            fix="replace the HTTP server or proxy at this address, or let it close connections after each response",
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; what was received before is parsed first."""
        self.closed = True
        if self._unparsed:
            self._lost_by = (exc,)
        else:
            self._end_by_loss(exc)

    def _end_by_loss(self, exc: Exception | None) -> None:
        """End the exchange because the connection is gone."""
        self._lost_by = None
        if self.complete:
            return
        if self.status and exc is None and self._ends_with_the_connection():
            self.complete = True
            self._wake()
        else:
            self._fail("the replica closed the connection" if exc is None else f"the connection broke: {exc}")

    def _ends_with_the_connection(self) -> bool:
        """Whether the answer ends with the connection (RFC 9112, section 6.3)."""
        return not any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    # httptools

    def on_message_begin(self) -> None:
        """A response begins."""
        if self.complete:
            self._warn_of_surplus()
            raise httptools.HttpParserError("more bytes follow its end")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MAX_OVERHEAD:
            raise httptools.HttpParserError(f"its headers have more than {_MAX_OVERHEAD >> 10} KiB")
        if not self.status:  # later headers are trailers
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """A head is complete."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if not _LOWEST_STATUS <= status <= _HIGHEST_STATUS or status == HTTPStatus.SWITCHING_PROTOCOLS:
            raise httptools.HttpParserError(f"its status is {status:03}")
        if status < _FIRST_FINAL_STATUS:
            self._interim += 1
            if self._interim > _MAX_INTERIM:
                raise httptools.HttpParserError(f"more than {_MAX_INTERIM} interim responses")
            self.headers = []
            return
        self.status = status
        self._wake()

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._overhead = 0
        self._pieces.append(data)
        self._held += len(data)
        self._body_bytes += len(data)
        if self._waiter is not None:
            self._wake()

    def on_message_complete(self) -> None:
        """The answer is complete."""
        if self.status:
            assert self._parser is not None
            self._keep_alive = self._parser.should_keep_alive()
            self.complete = True
            self._wake()
