"""A client connection: HTTP/1.1 with limits on headers, framing and the time in which a request must arrive.

Requests of one connection are answered one after the other, in their order. What has arrived behind a request stays
unparsed until that one is answered, and nothing more is read meanwhile; nor while the client does not read what was
written. Malformed, oversized or late requests are refused in the API's error format, and the connection is closed.

What was received is parsed in portions, in turns that ``WorkBudget`` gives. A portion outside of a body of known length
ends with the first empty line: so it holds the end of one head or body at most, and no more than one request begins in
it.

The limit of bytes applies to what came since the beginning of a request's head or since the last part of its body: to
the request line, the headers, chunk framing and trailers.

A request's time runs from its first byte to its last, and a connection's from when it was made to its first byte. It
does not run while the gateway itself does not read, because another request of the connection has to be answered first.

Protocol: RFC 9112. Parser: httptools (llhttp).
"""

import asyncio
import time
from typing import cast

import httptools
import structlog

from gateway.api.error_responses import RequestTimeout, TooManyConnections, problem_body, problem_headers
from gateway.core.errors import GatewayError
from gateway.core.exchange import Exchange, Receiver
from gateway.lazy_timer import LazyTimer
from gateway.server.disconnect_watch import DisconnectWatch
from gateway.server.port import Port
from gateway.server.refusal import chunks_too_small, headers_too_large, malformed, send_refusal, too_many_headers
from gateway.server.request_head import parser_for, parts_of, problem_of, without_upgrade
from gateway.server.work_budget import (
    BYTES_BEYOND,
    LARGE_CHUNKS,
    LARGE_PORTION_BYTES,
    MAX_HEADERS,
    MAX_TINY_CHUNKS,
    PORTION_BYTES,
    TINY_CHUNK_BYTES,
    TURN_SECONDS,
)

_log = structlog.get_logger("gateway.api")

_HEAD_END = b"\r\n\r\n"

_MAX_DIGITS = 20
"""Of a length that the parser accepts, behind any number of zeros."""

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
        # What was received and is not parsed yet.
        self._input = b""
        self._at = 0  # where the rest of it begins
        self._tail = b""  # up to three bytes in front of it: an empty line may have begun there
        self._queued = False  # whether its turn is to come
        self._in_turn = False
        self._portion_bytes = PORTION_BYTES
        # The request that is being received.
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._received: Exchange | None = None
        self._framing_bytes = 0
        self._chunks = 0
        self._body_bytes = 0
        self._body_left = 0  # of a body with a content-length
        self._in_head = False
        self._in_body = False
        self._head_began = False  # whether a head began in the present turn
        self._silent = True  # whether nothing was received yet
        self._first = True  # whether no request was received yet
        self._body: list[bytes] = []  # parts of the body in the present turn
        # The request that is being answered.
        self._answered: Exchange | None = None
        self._reading = True
        self._body_paused = False
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
        limits = self._options.file_limits
        if files < limits.served and len(self.port.connections) <= limits.connections:
            self._timer.wait(self._options.receive_seconds)
            return
        self._problem = TooManyConnections()
        if files < limits.refused:
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
        self._input = b""
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
        if exchange.version == "1.0" or exchange.started:
            self._answered = None
            exchange.lost()  # now: what it writes until the connection is closed does not reach the client
            return False
        self._timer.stop()
        exchange.keep_alive = False
        self._watch_client(exchange).end()
        return True

    def _watch_client(self, exchange: Exchange) -> DisconnectWatch:
        if self._watch is None:
            is_old = exchange.version == "1.0"  # as in eof_received
            self._watch = DisconnectWatch(self.transport, self._may_probe, leaves_at_end=is_old)
        return self._watch

    def _may_probe(self) -> bool:
        """Whether an interim response may be sent: the next response has not begun, and its client accepts one."""
        exchange = self._answered
        return exchange is not None and not exchange.started and exchange.version != "1.0"

    @property
    def busy(self) -> bool:
        """Whether a request is being answered, or waits for that."""
        return self._answered is not None or bool(self._input)

    def shut_down(self) -> None:
        """The gateway stops: close now if the connection is idle, else after the response that is due."""
        if self._answered is not None:
            self._answered.keep_alive = False
        elif not self._input:
            self.transport.close()

    # Receiving

    def data_received(self, data: bytes) -> None:
        """Bytes were received."""
        if self._problem is None:
            self._silent = False
            self._input = self._input[self._at :] + data if self._input else data
            self._at = 0
        if not self._queued:
            self._queued = True
            self.port.work.received(self._turn, len(data))
        if self._queued:
            self._update_reading()

    def _turn(self) -> bool:
        """Parse what was received, for a short time. Returns whether more of it can be parsed at once."""
        self._queued = self._head_began = False
        if self._problem is not None or self._parser is None:
            self._update_reading()
            return False
        self._in_turn = True
        parsed, until = False, 0.0
        try:
            while self._input and self._may_parse:
                if parsed and not self._body_left:
                    now = time.perf_counter()
                    until = until or now + TURN_SECONDS
                    if now >= until:
                        self._queued = True
                        break
                self._parse_portion()
                parsed = True
            if self._body:
                self._pass_body_on()
        except Exception:
            self.transport.abort()  # as the event loop does if ``data_received`` raises
            raise
        finally:
            self._in_turn = False
        if self._answered is not None and self._answered.body_ended and not self._answered.keep_alive:
            self._input = b""  # it is not answered; unread, it would reset the connection as that is closed
        if self._problem is not None or self.transport.is_closing():
            return False
        if self._in_head or self._in_body or self._first:
            # Unless it waits for the same request already.
            if self._head_began or not self._timer.waits:
                self._timer.wait(self._options.receive_seconds)
        elif self._answered is None:
            if not self._timer.waits:
                self._timer.wait(self._options.keep_alive_seconds)
        elif self._timer.waits:
            self._timer.stop()
        if not self._reading or self._input:
            self._update_reading()
        return self._queued

    @property
    def _may_parse(self) -> bool:
        """Whether more may be parsed: what is answered is not complete, and the client reads."""
        return (
            (self._answered is None or not self._answered.body_ended)
            and not (self._body_paused or self.congested)
            and self._problem is None
            and not self.transport.is_closing()
        )

    def _parse_portion(self) -> None:
        data, start = self._input, self._at
        left = self._body_left
        end = min(start + left, len(data)) if left else self._portion_end(data, start)
        part: bytes | memoryview = data
        if start or end < len(data):
            part = memoryview(data)[start:end]
        self._at = end
        if end == len(data):
            self._input, self._at = b"", 0
        in_chunks, chunks = self._in_body and not left, self._chunks
        self._framing_bytes += end - start
        try:
            self._parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            self._decline_upgrade()
        except httptools.HttpParserError:
            self._refuse_bytes(self._problem or malformed())
        if self._problem is not None:
            return
        if in_chunks:
            few = self._chunks - chunks <= LARGE_CHUNKS
            self._portion_bytes = min(2 * self._portion_bytes, LARGE_PORTION_BYTES) if few else PORTION_BYTES
        if self._framing_bytes > self._options.max_header_bytes + self._in_head * BYTES_BEYOND:
            self._refuse_bytes(headers_too_large(self._options.max_header_bytes))

    def _portion_end(self, data: bytes, start: int) -> int:
        """Where a portion ends that begins at ``start``, outside of a body of known length."""
        tail, self._tail = self._tail, b""
        across = (tail + data[start : start + 3]).find(_HEAD_END) if tail else -1
        if across >= 0:
            return start + across + len(_HEAD_END) - len(tail)
        limit = start + (self._portion_bytes if self._in_body else PORTION_BYTES)
        found = data.find(_HEAD_END, start, limit)
        if found >= 0:
            return found + len(_HEAD_END)
        end = min(limit, len(data))
        self._tail = (tail + data[max(start, end - 3) : end])[-3:]
        return end

    def _decline_upgrade(self) -> None:
        """The request asks for another protocol: its head is read once more without the offer.

        CONNECT is answered as any other method, but nothing can follow it.
        """
        method, version = self._parser.get_method(), self._parser.get_http_version()
        if method == b"CONNECT":
            return
        self._parser = parser_for(self)
        self._in_head = False
        self._framing_bytes = 0
        try:
            self._parser.feed_data(without_upgrade(method, self._url, version, self._headers))
        except httptools.HttpParserError:
            self._refuse_bytes(self._problem or malformed())

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
            if len(self._headers) <= MAX_HEADERS:
                self._headers.append((name.lower(), value))
            elif name.lower() == b"transfer-encoding":
                self._headers[MAX_HEADERS] = (b"transfer-encoding", value)
        else:
            self._chunks += 1  # it costs as much

    def on_headers_complete(self) -> None:
        """The head is complete."""
        parser = self._parser
        method = parser.get_method()
        headers = self._headers
        if self._framing_bytes > self._options.max_header_bytes:
            self._problem = headers_too_large(self._options.max_header_bytes)
        if self._problem is not None:
            raise self._problem
        are_known, upgrades = len(headers) <= MAX_HEADERS, parser.should_upgrade()
        if upgrades and are_known and method != b"CONNECT":
            return
        version = parser.get_http_version()
        path, raw_path, query = parts_of(self._url)
        named = dict(headers)
        if not are_known:  # nothing is parsed behind a body whose end is not certain
            self._problem = too_many_headers(MAX_HEADERS) if upgrades or b"transfer-encoding" in named else None
        elif version != "1.1" or b"host" not in named or b"transfer-encoding" in named or len(named) < len(headers):
            self._problem = problem_of(version, headers)
        if self._problem is not None:
            raise self._problem
        is_old = version == "1.0"
        exchange = Exchange(
            self,
            method.decode("ascii"),
            path,
            raw_path,
            query,
            headers,
            named,
            version,
            keep_alive=not is_old and method != b"CONNECT" and parser.should_keep_alive(),
            expects_continue=b"expect" in named
            and not is_old
            and b"100-continue" in [value.lower() for name, value in headers if name == b"expect"],
        )
        self._in_head, self._in_body = False, True
        self._first = False
        self._framing_bytes = self._chunks = self._body_bytes = 0
        self._portion_bytes = PORTION_BYTES
        self._body_left = int(named.get(b"content-length", b"0")[-_MAX_DIGITS:])
        self._received = self._answered = exchange
        self.port.work.count_request()
        receiver = (self.port.handler if are_known else self._refuse_headers)(exchange)
        if not exchange.complete:
            exchange.receiver = receiver

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._chunks += 1

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        size = len(body)
        self._framing_bytes = 0
        self._body_bytes += size
        if self._body_left:
            self._body_left -= size
        if self._chunks > MAX_TINY_CHUNKS and self._body_bytes < self._chunks * TINY_CHUNK_BYTES:
            self._problem = chunks_too_small(MAX_TINY_CHUNKS, TINY_CHUNK_BYTES)
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
        if exchange.receiver is not None:
            exchange.receiver.body_complete()

    def _pass_body_on(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        exchange = self._received
        if exchange is not None and exchange.receiver is not None and self._problem is None:
            exchange.receiver.body_received(body)

    # Responding

    def pause_reading(self) -> None:
        """See ``ExchangeOwner``."""
        self._body_paused = True
        self._update_reading()

    def resume_reading(self) -> None:
        """See ``ExchangeOwner``."""
        if self._body_paused:
            self._body_paused = False
            self._go_on()

    def response_complete(self, *, keep: bool) -> None:
        """See ``ExchangeOwner``."""
        waited = self._timer.waits and self._held_up
        self._answered = None
        self._body_paused = False
        if not keep:
            self._input = b""
            self.transport.close()
            return
        if self.transport.is_closing():
            return
        if waited:  # what follows may not have been read until now
            self._timer.wait(self._options.receive_seconds)
        elif not (self._in_head or self._in_body):
            self._timer.wait(self._options.keep_alive_seconds)
        self._go_on()

    def _go_on(self) -> None:
        """What held this connection up may be over. Not from here: it would be worked on in another request's task."""
        if self._input and not (self._in_turn or self._queued) and self._may_parse:
            self._queued = True
            self.port.work.resume(self._turn)
        if not self._reading:
            self._update_reading()

    @property
    def _held_up(self) -> bool:
        """Whether what follows is not read before an answer is complete or read. Other pauses are short."""
        behind = self._answered is not None and self._answered.body_ended and bool(self._input)
        return self._body_paused or self.congested or behind

    def _update_reading(self) -> None:
        reading = not (self._input or self._queued or self._body_paused or self.congested)
        if self.transport.is_closing():
            return
        if self._input and self._answered is not None:  # a disconnect does not show until it is answered
            self._watch_client(self._answered)
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
        self._update_reading()

    def resume_writing(self) -> None:
        """The client has read what was written."""
        self.congested = False
        if self._answered is not None and self._answered.receiver is not None:
            self._answered.receiver.writing_resumed()
        self._go_on()

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

    def _refuse_headers(self, exchange: Exchange) -> Receiver | None:
        """Answer a request with too many headers. Its framing is known, so others may follow it."""
        problem, own = too_many_headers(MAX_HEADERS), self.port.cors.answer_headers(exchange.headers)
        named = [(name.encode(), value.encode()) for name, value in problem_headers(problem, None).items()]
        exchange.respond(problem.status, [*named, *own], problem_body(problem))
        return None

    def _refuse_bytes(self, problem: GatewayError) -> None:
        """Refuse what was received; what follows is not parsed."""
        self._problem = problem
        self._input = b""
        self._refuse(problem)
        self._update_reading()  # to the end of what the client sends, or it might not see the answer

    def _refuse(self, problem: GatewayError) -> None:
        """Send the error and close the connection; if a response is still due on it, only close it after that."""
        self._timer.stop()
        _log.info("connection_refused", code=problem.code, peer=self.peer)
        exchange = self._answered
        if self._in_body and exchange is not None:
            if exchange.started:
                self.transport.close()
                return
            exchange.lost()  # the error is sent here
        elif exchange is not None:
            exchange.keep_alive = False
            return
        elif self._in_body:
            self.transport.close()  # the request was answered before it was complete
            return
        # To the request it is about belongs what arrived of its headers.
        send_refusal(self._loop, self.transport, problem, self.port.cors.answer_headers(self._headers))
