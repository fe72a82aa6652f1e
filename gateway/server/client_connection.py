"""A client connection: HTTP/1.1 with limits on headers, framing and the time in which a request must arrive.

Requests of one connection are answered one after the other, in their order; later ones that have arrived already wait,
and reading pauses. Malformed, oversized or late requests are refused in the API's error format, and the connection is
closed.

The limit of bytes applies to what came since the beginning of a request's head or since the last part of its body: to
the request line, the headers, chunk framing and trailers. A request that comes in one read costs a counter; only one
that is split or large is added up.

A request's time runs from its first byte to its last, and a connection's from when it was made to its first byte. It
does not run while the gateway itself does not read, because another request of the connection has to be answered first.

Protocol: RFC 9112. Parser: httptools (llhttp).
"""

import asyncio
from collections import deque
from typing import cast

import httptools
import structlog

from gateway.api.error_responses import RequestTimeout, TooManyConnections
from gateway.core.errors import GatewayError
from gateway.core.exchange import Exchange
from gateway.lazy_timer import LazyTimer
from gateway.server.disconnect_watch import DisconnectWatch
from gateway.server.port import Port
from gateway.server.read_budget import LARGE_READ_BYTES
from gateway.server.refusal import chunks_too_small, headers_too_large, malformed, send_refusal
from gateway.server.request_head import head_bytes, parser_for, parts_of, without_upgrade

_log = structlog.get_logger("gateway.api")

_MAX_TINY_CHUNKS = 16_384
_TINY_CHUNK_BYTES = 64
"""A body of more chunks than this that are smaller on average is refused: its framing costs more than its content."""

_BEGUN_PER_READ = 16
"""Answers that begin while a read is parsed; those to later requests in it begin one in each iteration of the event
loop. A read may hold thousands of requests that are refused at once, and other clients would wait for all of them."""

_STOOD_STILL_SECONDS = 1.0
"""If a timer is this late, the process has stood still, and has not read what has arrived."""


class ClientConnection(asyncio.Protocol):
    """One client connection.

    Args:
        port: What it shares with the others of its port.

    Attributes:
        port: The same.
        client: See ``ExchangeOwner``.
        peer: See ``ExchangeOwner``.
        congested: See ``ExchangeOwner``.
        transport: The socket's transport.
    """

    def __init__(self, port: Port) -> None:
        self.port = port
        self._options = port.options
        self._loop = asyncio.get_running_loop()
        self._parser = parser_for(self)
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.client: tuple[str, int] | None = None
        self.peer = ""
        self.congested = False
        # The request that is being received.
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._received: Exchange | None = None
        self._framing_bytes = 0
        self._chunks = 0
        self._body_bytes = 0
        self._in_head = False
        self._in_body = False
        self._head_began = False  # whether a head began in the present read
        self._answers_begun = 0  # at once, in the present read
        self._suspect = False  # whether the present read may end a head that is too large
        self._silent = True  # whether nothing was received yet
        self._first = True  # whether no request was received yet
        self._body: list[bytes] = []  # parts of the body in the present read
        # The request that is being answered, and those behind it.
        self._answered: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._reading = True
        self._body_paused = False
        self._over_budget = False  # whether others read before this connection reads again
        self._timer = LazyTimer(self._loop, self._late)
        self._watch: DisconnectWatch | None = None  # while nothing is read
        self._problem: GatewayError | None = None  # of a refused connection; later bytes are ignored

    # Lifetime

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is established."""
        self.transport = cast(asyncio.Transport, transport)
        self.port.connections.add(self)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer = str(peer[0])
            self.client = (self.peer, int(peer[1]))
        # A new file has the lowest number that is free, so this is how many are open.
        files: int = transport.get_extra_info("socket").fileno()
        if files < self._options.file_limits.served:
            self._timer.wait(self._options.receive_seconds)
            return
        self._problem = TooManyConnections()
        if files < self._options.file_limits.refused:
            self._refuse(self._problem)
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The connection is closed."""
        self.port.connections.discard(self)
        self._timer.cancel()
        if self._watch is not None:
            self._watch.stop()
            self._watch = None  # it refers to this object
        self._waiting.clear()
        exchange, self._answered, self._received = self._answered, None, None
        self.congested = False
        if exchange is not None:
            exchange.lost()
        # A parser refers to its protocol: without this only the garbage collector would free both.
        self._parser = cast(httptools.HttpRequestParser, None)

    def eof_received(self) -> bool:
        """The client sends nothing more. Returns whether the connection stays open, for the responses that are due.

        A client of HTTP/1.0 counts as disconnected: it accepts no interim response with which it could be probed, and
        proxies that speak it close their connections when their own clients leave. So does a client whose last response
        has begun: clients that only end their own side do so with the request, and between two chunks nothing may be
        sent that would probe it.
        """
        exchange = self._answered
        if exchange is None or self._in_body or self._problem is not None:
            return False
        if self._last.version == "1.0" or (exchange.started and not self._waiting):
            self._answered = None
            exchange.lost()  # now: what it writes until the connection is closed does not reach the client
            return False
        self._timer.stop()
        self._last.keep_alive = False
        self._watch_client().end()
        return True

    def _watch_client(self) -> DisconnectWatch:
        if self._watch is None:
            is_old = self._last.version == "1.0"  # as in eof_received
            self._watch = DisconnectWatch(self.transport, self._may_probe, leaves_at_end=is_old)
        return self._watch

    @property
    def _last(self) -> Exchange:
        """The last request that was received."""
        last = self._waiting[-1] if self._waiting else self._answered
        assert last is not None
        return last

    def _may_probe(self) -> bool:
        """Whether an interim response may be sent: the next response has not begun."""
        return self._answered is not None and not self._answered.started

    def shut_down(self) -> None:
        """The gateway stops: close now if the connection is idle, else after the responses that are due."""
        if self._answered is None:
            self.transport.close()
        else:
            self._last.keep_alive = False

    # Receiving

    def data_received(self, data: bytes) -> None:
        """Bytes were received."""
        if len(data) >= LARGE_READ_BYTES and not self._over_budget and self.port.read_budget.spend(self, len(data)):
            self._over_budget = True
            self._update_reading()
        if self._problem is not None:
            return
        max_header_bytes = self._options.max_header_bytes
        self._silent = self._head_began = False
        self._answers_begun = 0
        self._framing_bytes += len(data)
        self._suspect = self._in_head or len(data) > max_header_bytes
        unread: list[bytes | memoryview] = [data]  # the next part last
        while unread and self._problem is None:
            part = unread.pop()
            try:
                self._parser.feed_data(part)
            except httptools.HttpParserUpgrade as offer:
                unread += self._decline_upgrade(memoryview(part)[offer.args[0] :])
            except httptools.HttpParserError:
                self._problem = self._problem or malformed()
                self._refuse(self._problem)
            if self._body:
                self._pass_body_on()
        if self._framing_bytes > max_header_bytes and self._problem is None:
            self._problem = headers_too_large(max_header_bytes)
            self._refuse(self._problem)
        if self._problem is not None or self.transport.is_closing():
            return
        if self._in_head or self._in_body or self._first:
            # Unless it waits for the same request already.
            if self._head_began or not self._timer.waits:
                self._timer.wait(self._options.receive_seconds)
        elif self._answered is None:
            if not self._timer.waits:
                self._timer.wait(self._options.keep_alive_seconds)
        elif self._timer.waits:
            self._timer.stop()

    def _decline_upgrade(self, behind: memoryview) -> tuple[bytes | memoryview, ...]:
        """The request asks for another protocol: it is read once more without the offer, and then what follows it.

        CONNECT is answered as any other method, but nothing can follow it.

        Args:
            behind: What follows the head in the present read.

        Returns:
            What is to be parsed, the next part last.
        """
        method, version = self._parser.get_method(), self._parser.get_http_version()
        if method == b"CONNECT":
            if self._answered is not None:
                self._last.keep_alive = False
            return ()
        self._parser = parser_for(self)
        self._in_head = False
        return behind, without_upgrade(method, self._url, version, self._headers)

    # Callbacks of the parser. It takes what they raise for malformed HTTP.

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head = self._head_began = True
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        """A part of the request's URL."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or one trailer, which is ignored: it comes after everything was decided by the headers."""
        if self._in_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        parser = self._parser
        method = parser.get_method()
        if self._suspect and head_bytes(method, self._url, self._headers) > self._options.max_header_bytes:
            self._problem = headers_too_large(self._options.max_header_bytes)
            raise self._problem
        if parser.should_upgrade() and method != b"CONNECT":
            return
        if self.transport.is_closing():
            return  # it follows the last response, and is not answered
        version = parser.get_http_version()
        path, raw_path, query = parts_of(self._url)
        headers = self._headers
        named = dict(headers)
        exchange = Exchange(
            self,
            method.decode("ascii"),
            path,
            raw_path,
            query,
            headers,
            named,
            version,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            expects_continue=b"expect" in named
            and b"100-continue" in [value.lower() for name, value in headers if name == b"expect"],
        )
        self._in_head, self._in_body = False, True
        self._first = False
        self._framing_bytes = self._chunks = self._body_bytes = 0
        self._received = exchange
        if self._answered is None:
            self._answered = exchange
            self._answers_begun += 1
            if self._answers_begun <= _BEGUN_PER_READ:
                self._begin(exchange)
            else:
                self._loop.call_soon(self._begin, exchange)
        else:
            self._waiting.append(exchange)
            self._update_reading()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._framing_bytes = 0
        self._chunks += 1
        self._body_bytes += len(body)
        if self._chunks > _MAX_TINY_CHUNKS and self._body_bytes < self._chunks * _TINY_CHUNK_BYTES:
            self._problem = chunks_too_small(_MAX_TINY_CHUNKS, _TINY_CHUNK_BYTES)
            raise self._problem
        # Joined once: the parser reports each chunk, however small.
        self._body.append(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if not self._in_body:
            return
        if self._body:
            self._pass_body_on()
        self._in_body = False
        self._framing_bytes = 0
        self._timer.stop()
        exchange, self._received = self._received, None
        if exchange is None:
            return
        exchange.body_ended = True
        if exchange is self._answered and not exchange.complete and exchange.receiver is not None:
            exchange.receiver.body_complete()

    def _pass_body_on(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        exchange = self._received
        if exchange is None or exchange.complete or self._problem is not None:
            return
        if exchange is self._answered and exchange.receiver is not None:
            exchange.receiver.body_received(body)
        else:
            exchange.waiting_body.append(body)

    # Responding

    def pause_reading(self) -> None:
        """See ``ExchangeOwner``."""
        self._body_paused = True
        self._update_reading()

    def resume_reading(self) -> None:
        """See ``ExchangeOwner``."""
        self._body_paused = False
        self._update_reading()

    def continue_reading(self) -> None:
        """See ``read_budget.Reader``."""
        self._over_budget = False
        self._update_reading()

    def response_complete(self, *, keep: bool) -> None:
        """See ``ExchangeOwner``."""
        self._answered = None
        self._body_paused = False
        if not keep:
            self._waiting.clear()
            self.transport.close()
            return
        if self.transport.is_closing():
            return
        waited = self._timer.waits and self._held_up
        if self._waiting:
            exchange = self._answered = self._waiting.popleft()
            # Not from here: the next request would be worked on in this one's task.
            self._loop.call_soon(self._begin, exchange)
        if self._waiting or not self._reading:
            self._update_reading()
        if waited:  # what follows may not have been read until now
            self._timer.wait(self._options.receive_seconds)
        elif self._answered is None and not (self._in_head or self._in_body):
            self._timer.wait(self._options.keep_alive_seconds)

    def _begin(self, exchange: Exchange) -> None:
        """Begin to answer a request: it is its turn."""
        if exchange is not self._answered or exchange.gone or self.transport.is_closing():
            return
        receiver = self.port.handler(exchange)
        if not exchange.complete:
            exchange.receiver = receiver
        if exchange.waiting_body:
            pieces, exchange.waiting_body = exchange.waiting_body, []
            for piece in pieces:
                if not exchange.complete:
                    receiver.body_received(piece)
        if exchange.body_ended and not exchange.complete:
            receiver.body_complete()

    @property
    def _held_up(self) -> bool:
        """Whether the gateway does not read, or a request waits for its turn. Pauses of the read budget are short."""
        return self._body_paused or bool(self._waiting)

    def _update_reading(self) -> None:
        reading = not (self._waiting or self._body_paused or self._over_budget)
        if self.transport.is_closing():
            return
        if self._waiting:  # a disconnect does not show until they are answered
            self._watch_client()
        if reading is self._reading:
            return
        self._reading = reading
        (self.transport.resume_reading if reading else self.transport.pause_reading)()
        if reading and self._watch is not None and not self._watch.ended:
            self._watch.stop()
            self._watch = None

    def pause_writing(self) -> None:
        """The client reads slowly."""
        self.congested = True
        if self._answered is not None and self._answered.receiver is not None:
            self._answered.receiver.writing_paused()

    def resume_writing(self) -> None:
        """The client has read what was written."""
        self.congested = False
        if self._answered is not None and self._answered.receiver is not None:
            self._answered.receiver.writing_resumed()

    # Time

    def _late(self) -> None:
        """Nothing more has come in time."""
        if self._problem is not None or self.transport.is_closing():
            return
        if self._held_up or self._timer.overdue > _STOOD_STILL_SECONDS:
            self._timer.wait(self._options.receive_seconds)
        elif self._silent or not (self._first or self._in_head or self._in_body):
            self.transport.close()
        else:
            self._problem = RequestTimeout(self._options.receive_seconds)
            self._refuse(self._problem)

    # Refusing

    def _refuse(self, problem: GatewayError) -> None:
        """Send the error and close the connection; if other responses are still due on it, after the last of them."""
        self._timer.stop()
        _log.info("connection_refused", code=problem.code, peer=self.peer)
        exchange = self._answered
        if self._in_body and exchange is not None:
            if exchange.started or self._waiting:
                self.transport.close()
                return
            exchange.lost()  # the error is sent here
        elif exchange is not None:
            self._last.keep_alive = False
            return
        elif self._in_body:
            self.transport.close()  # the request was answered before it was complete
            return
        # To the request it is about belongs what arrived of its headers.
        send_refusal(self._loop, self.transport, problem, self.port.cors.answer_headers(self._headers))
