"""One connection to a replica, with one exchange on it at a time, and its errors.

A response is passed on as it arrives, synchronously: from the read of the socket to the receiver.
"""

import asyncio
import select
from collections.abc import Callable, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol, cast

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


class ResponseReceiver(Protocol):
    """Gets a response as it arrives. No method waits; what one raises ends the exchange, and ``failed`` gets it."""

    def response_begun(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """The head was received; names are in lower case."""
        ...

    def body_received(self, data: bytes, chunk: bytes | None = None) -> None:
        """A part of the body; never empty.

        Args:
            data: The part.
            chunk: The same with its framing, if it came alone and as one whole chunk of HTTP/1.1.
        """
        ...

    def response_complete(self) -> None:
        """The response is complete; nothing follows."""
        ...

    def failed(self, error: Exception) -> None:
        """The response will not be completed; nothing follows."""
        ...


_PORTION_BYTES = 8 * 1024
"""Bytes that the parser gets in one call. They have at most 1,400 chunks, which take about a millisecond."""

_PIECES_PER_TURN = 1024
"""Pieces after which the remaining bytes of a read wait for the next turn of the event loop."""

_MAX_OVERHEAD = 64 * 1024
"""Bytes of a response that are no body: its heads (with interim ones), or chunk sizes, chunk extensions and trailers
between two pieces of the body. The parser joins the parts of a header again for every read, so this also bounds the
bytes it copies. uvicorn's own limit for requests is the same."""

_BYTES_PER_BODY_BYTE = 9
"""Bytes per byte of the body, over a whole response and beyond ``_MAX_OVERHEAD``: itself, and eight of chunk framing. A
chunk of one byte has five of them, chunks of one token less than one."""

_MAX_INTERIM = 16
"""Interim (1xx) responses before the final one. Engines send none; a proxy sends one or two."""

_KNOWN_SIZES = 1024
"""Sizes of chunks whose first line is kept. The chunks of a stream have few different ones."""

_LOWEST_STATUS = 100
_FIRST_FINAL_STATUS = 200
_SWITCHING_PROTOCOLS = int(HTTPStatus.SWITCHING_PROTOCOLS)  # looking up the member calls a Python function
_HIGHEST_STATUS = 599

_IDLE_TIMEOUT = b" 408 "
"""Some proxies announce with this response that they close an idle connection."""

_NOTHING = memoryview(b"")

_log = structlog.get_logger("gateway.proxy")


@lru_cache(_KNOWN_SIZES)
def _size_line(received: int) -> bytes:
    """The first line of the one whole chunk that has so many bytes with its framing; empty if there is none."""
    for digits in range(1, len(b"%x" % received) + 1):
        length = received - digits - len("\r\n\r\n")
        if length > 0 and digits == len(b"%x" % length):
            return b"%x\r\n" % length
    return b""


class Connection(asyncio.Protocol):
    """The receiving side of a response: parses, passes on, and records how it ended.

    A read of one whole chunk, as most are in a stream, is passed on without the parser, if that has read all of the
    chunk before: its state is the same behind the chunk as in front of it.

    A response belongs to the request that is under way when it arrives; HTTP/1.1 has nothing else to match them by.
    Bytes that cannot belong to it (behind a complete response, or while the connection is idle) close the connection,
    and so does a response that begins before its request was written. What remains: a second response that the replica
    sends later, after the next request was written, is taken for the answer to that.

    Args:
        loop: The running loop.
        peer: Address of the replica, for log lines.
        on_complete: Called when a response is complete, before its receiver is.

    Attributes:
        closed: Whether the connection is gone.
        receiver: Gets the response under way; None while idle.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: str, on_complete: "Callable[[Connection], None]") -> None:
        self._loop = loop
        self._peer = peer
        self._on_complete = on_complete
        self._transport = cast(asyncio.Transport, None)
        self._parser: httptools.HttpResponseParser | None = None
        self._status = 0  # 0 until the head of the response is complete
        self._headers: list[tuple[bytes, bytes]] = []
        self._begun = False
        self._complete = True
        self._pieces: list[bytes] = []  # of the body, to be passed on
        self._unparsed = _NOTHING
        self._between_chunks = False  # as far as was parsed
        self._chunk_receiver: ResponseReceiver | None = None  # None: what is read next has to be parsed, or held
        self._continuation: asyncio.Handle | None = None
        self._lost_by: tuple[Exception | None] | None = None
        self._header_bytes = 0
        self._overhead = 0
        self._bytes_left = 0  # that the response may have until more of its body comes
        self._interim = 0
        self._early = False
        self._paused = False
        self._reading = True
        self._keep_alive = False
        self._broken: str | None = None
        self._readable = select.poll()
        self._send_again: Callable[[], None] | None = None
        self.closed = False
        self.receiver: ResponseReceiver | None = None

    def send(
        self, head: bytes, body: bytes, receiver: ResponseReceiver, again: Callable[[], None] | None = None
    ) -> None:
        """Begin an exchange. The connection must be idle, and not closed. If it ends before a byte of the response,
        ``again`` is called and ``receiver`` gets nothing."""
        self._send_again = again
        self._parser = httptools.HttpResponseParser(self)
        self.receiver = receiver
        self._begun = self._complete = self._keep_alive = self._early = False
        self._status = 0
        self._headers = []
        self._header_bytes = self._overhead = self._interim = 0
        self._bytes_left = _MAX_OVERHEAD
        self._between_chunks = False
        self._transport.writelines((head, body) if body else (head,))

    def pause(self) -> None:
        """Pass nothing on for now."""
        self._paused = True
        self._chunk_receiver = None
        self._update_reading()

    def resume(self) -> None:
        """Go on passing on, from the next iteration of the event loop on."""
        if self._paused:
            self._paused = False
            self._go_on_soon()

    def abort(self) -> None:
        """Close at once, also within an exchange: the replica notices and stops computing. The receiver gets nothing
        more."""
        self.closed = True
        self.receiver = self._chunk_receiver = self._send_again = None
        self._unparsed = _NOTHING
        self._transport.abort()

    @property
    def reusable(self) -> bool:
        """Whether another request may be sent: the last one was written and answered completely, and both ends keep
        the connection.

        A replica may refuse a request before it has read all of it. The rest would then be sent in front of the next
        request.
        """
        return (
            self._complete
            and self._keep_alive
            and not (self.closed or self._early or self._unparsed or self._transport.get_write_buffer_size())
            and self._broken is None
        )

    @property
    def stale(self) -> bool:
        """Whether an idle connection has unread input: the replica has closed it, and asyncio has not reported it yet.

        A request sent now would be lost and count as a failure of the replica.
        """
        return bool(self._readable.poll(0))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is established."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from asyncio's
        self._readable.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        """Bytes were received."""
        receiver = self._chunk_receiver
        if receiver is not None:
            received = len(data)
            line = _size_line(received)
            start = len(line)
            if start and data[:start] == line and data[-2:] == b"\r\n":
                body = data[start:-2]
                self._bytes_left += _BYTES_PER_BODY_BYTE * len(body) - received
                try:
                    receiver.body_received(body, data)
                except Exception as error:  # noqa: BLE001 - it must not be lost in the event loop
                    self._fail(receiver, error)
                return
        self._send_again = None
        if self._complete:
            if _IDLE_TIMEOUT not in data[:16]:
                self._warn_of_surplus()
            self.abort()
            return
        if not self._status and self._transport.get_write_buffer_size():
            self._early = True  # a part of the request is still to be written
        self._unparsed = memoryview(bytes(self._unparsed) + data if self._unparsed else data)
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; what was received before is passed on first."""
        self.closed = True
        self._lost_by = (exc,)
        self._go_on()

    # Passing on

    def _go_on(self) -> None:
        """Parse what was received and pass it on, up to the limits for one iteration of the event loop."""
        while self._unparsed and not self._paused and len(self._pieces) < _PIECES_PER_TURN:
            if self._complete:
                self._warn_of_surplus()
                self.closed = True
                self._unparsed = _NOTHING
                break
            portion, self._unparsed = self._unparsed[:_PORTION_BYTES], self._unparsed[_PORTION_BYTES:]
            self._feed(portion)
        self._pass_on()
        held = self._paused or self._unparsed or not self._between_chunks
        self._chunk_receiver = None if held else self.receiver
        if self._unparsed or self._paused or not self._reading:
            self._update_reading()
        if self._unparsed:
            if not self._paused:
                self._go_on_soon()
        elif not self._paused and self.receiver is not None and (self._complete or self._broken or self._lost_by):
            self._end(self.receiver)

    def _go_on_soon(self) -> None:
        if self._continuation is None:
            self._continuation = self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._continuation = None
        self._go_on()

    def _update_reading(self) -> None:
        reading = not (self._paused or self._unparsed)
        if reading is not self._reading and not self.closed:
            self._reading = reading
            (self._transport.resume_reading if reading else self._transport.pause_reading)()

    def _feed(self, data: memoryview) -> None:
        """Parse bytes; the exchange fails if they are not HTTP, or if the framing exceeds its limits."""
        assert self._parser is not None
        self._overhead += len(data)
        self._bytes_left -= len(data)
        try:
            self._parser.feed_data(data)
            if (self._overhead > _MAX_OVERHEAD or self._bytes_left < 0) and not self._complete:
                raise httptools.HttpParserError(f"more than {_MAX_OVERHEAD >> 10} KiB of it are no body")
            if self._between_chunks:
                self._between_chunks = bytes(data[-2:]) == b"\r\n"  # otherwise a part of the next chunk's size follows
                self._overhead = 0
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._broken = f"the answer is not HTTP: {error.__context__ or error}"
            self._between_chunks = False
            self._unparsed = _NOTHING

    def _pass_on(self) -> None:
        """Pass on what was parsed."""
        receiver = self.receiver
        pieces = self._pieces
        if receiver is None:
            pieces.clear()
            return
        try:
            if self._status and not self._begun:
                self._begun = True
                receiver.response_begun(self._status, self._headers)
            if pieces:
                data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                pieces.clear()
                receiver.body_received(data)
        except Exception as error:  # noqa: BLE001 - it must not be lost in the event loop
            self._fail(receiver, error)

    def _fail(self, receiver: ResponseReceiver, error: Exception) -> None:
        self.abort()
        receiver.failed(error)

    def _end(self, receiver: ResponseReceiver) -> None:
        """Report how the exchange ended."""
        exc = self._lost_by[0] if self._lost_by is not None else None
        if not self._complete and self._broken is None and exc is None and self._status:
            self._complete = self._ends_with_the_connection()
        self.receiver = self._chunk_receiver = None
        if self._complete:
            self._on_complete(self)
            receiver.response_complete()
            return
        again = self._send_again
        self.abort()
        if again is not None:
            again()
            return
        if self._broken is None:
            self._broken = "the replica closed the connection" if exc is None else f"the connection broke: {exc}"
        receiver.failed(Broken(self._broken))

    def _ends_with_the_connection(self) -> bool:
        """Whether the answer ends with the connection (RFC 9112, section 6.3)."""
        return not any(name in (b"content-length", b"transfer-encoding") for name, _ in self._headers)

    def _warn_of_surplus(self) -> None:
        _log.warning(
            "replica_sent_surplus_data",
            address=self._peer,
            effect="the connection is closed; if this repeats, responses may reach the wrong requests",
            fix="replace the HTTP server or proxy at this address, or let it close connections after each response",
        )

    # httptools

    def on_message_begin(self) -> None:
        """A response begins."""
        if self._complete:
            self._warn_of_surplus()
            raise httptools.HttpParserError("more bytes follow its end")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MAX_OVERHEAD:
            raise httptools.HttpParserError(f"its headers have more than {_MAX_OVERHEAD >> 10} KiB")
        if not self._status:  # later headers are trailers
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """A head is complete."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if not _LOWEST_STATUS <= status <= _HIGHEST_STATUS or status == _SWITCHING_PROTOCOLS:
            raise httptools.HttpParserError(f"its status is {status:03}")
        if status < _FIRST_FINAL_STATUS:
            self._interim += 1
            if self._interim > _MAX_INTERIM:
                raise httptools.HttpParserError(f"more than {_MAX_INTERIM} interim responses")
            self._headers = []
            return
        self._status = status

    def on_chunk_header(self) -> None:
        """The size of a chunk is complete, also that of the last one, which is empty."""
        self._between_chunks = False

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if not self._status:
            raise httptools.HttpParserError("an interim response has a body")
        self._overhead = 0
        self._pieces.append(data)
        self._bytes_left += _BYTES_PER_BODY_BYTE * len(data)

    def on_chunk_complete(self) -> None:
        """The line break behind a chunk was read."""
        self._between_chunks = True

    def on_message_complete(self) -> None:
        """The answer is complete."""
        if self._status:
            assert self._parser is not None
            self._keep_alive = self._parser.should_keep_alive()
            self._complete = True
