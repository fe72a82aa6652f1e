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
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import cast
from urllib.parse import unquote

import httptools
import structlog

from gateway.api.cors import Cors
from gateway.api.error_responses import RequestTimeout, TooManyConnections, problem_body, problem_headers
from gateway.config.server_settings import ServerSettings
from gateway.core.errors import BadRequest, GatewayError, HeadersTooLarge
from gateway.core.exchange import Exchange, Receiver
from gateway.server.sockets import FileLimits, HalfClosed, open_files

_log = structlog.get_logger("gateway.api")

_LINGER_SECONDS = 2.0
"""How long a refused client may go on sending. Closed at once, with bytes of it unread, its connection would be reset,
and it might never see the answer."""

_MAX_TINY_CHUNKS = 16_384
_TINY_CHUNK_BYTES = 64
"""A body of more chunks than this that are smaller on average is refused: its framing costs more than its content."""

_STOOD_STILL_SECONDS = 1.0
"""If a timer is this late, the process has stood still, and has not read what has arrived."""

_STATUS_LINES = {
    400: "HTTP/1.1 400 Bad Request",
    408: "HTTP/1.1 408 Request Timeout",
    431: "HTTP/1.1 431 Request Header Fields Too Large",
    503: "HTTP/1.1 503 Service Unavailable",
}

Handler = Callable[[Exchange], Receiver]
"""Begins to answer a request whose head is complete."""


@dataclass(frozen=True, slots=True)
class PortOptions:
    """How a port treats its connections.

    Attributes:
        max_header_bytes: Maximum bytes of a request's line and headers together. More is answered with 431.
        receive_seconds: In which a request has to arrive. A later one is answered with 408; a connection on which
            nothing arrived is closed.
        keep_alive_seconds: After which an idle connection is closed.
        grace_seconds: In which open responses may end when the server stops.
        file_limits: Limits of open files for new connections.
    """

    max_header_bytes: int
    receive_seconds: float = 60.0
    keep_alive_seconds: float = 5.0
    grace_seconds: float = 30.0
    file_limits: FileLimits = field(default_factory=FileLimits.endless)

    @classmethod
    def of(cls, server: ServerSettings) -> "PortOptions":
        """Those of the configuration, and of this process's limit of open files."""
        return cls(
            server.max_header_bytes,
            server.receive_seconds,
            server.keep_alive_seconds,
            server.shutdown_grace_seconds,
            FileLimits.of(open_files()),
        )


class Port:
    """What the connections of one port share.

    Args:
        handler: Answers requests.
        options: How it treats its connections.
        cors: Allowed origins, for errors that are sent before there is a request.

    Attributes:
        connections: Those that are open.
        leaving: Whether each connection is closed after its next response.
    """

    def __init__(self, handler: Handler, options: PortOptions, cors: Cors | None = None) -> None:
        self.handler = handler
        self.options = options
        self.cors = cors or Cors(())
        self.connections: set[ClientConnection] = set()
        self.leaving = False
        self.common_lines = b""
        self.renew_date()

    def renew_date(self) -> None:
        """Set the ``date`` header of responses; to be called each second."""
        self.common_lines = f"date: {formatdate(time.time(), usegmt=True)}\r\n".encode()

    def connection(self) -> "ClientConnection":
        """A new connection, for ``loop.create_server``."""
        return ClientConnection(self)


class ClientConnection(asyncio.Protocol):
    """One client connection.

    Args:
        port: What it shares with the others of its port.

    Attributes:
        client: Address of the client; None for a Unix socket.
        congested: Whether the client reads more slowly than is written.
        transport: The socket's transport.
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self._options = port.options
        self._loop = asyncio.get_running_loop()
        self._parser = _parser(self)
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.client: tuple[str, int] | None = None
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
        self._began = False  # whether a request began in the present read
        self._suspect = False  # whether the present read may end a head that is too large
        self._silent = True  # whether nothing was received yet
        self._first = True  # whether no request was received yet
        self._body: list[bytes] = []  # parts of the body in the present read
        self._unread: list[memoryview] = []  # the rest of the present read, the next part last
        self._part = memoryview(b"")
        # The request that is being answered, and those behind it.
        self._answered: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._advancing = False
        self._reading = True
        self._body_paused = False
        # Timer: armed for `_timer_due`, which may be before the deadline; then it is armed again.
        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = math.inf
        self._half_closed: HalfClosed | None = None
        self._problem: GatewayError | None = None  # of a refused connection; later bytes are ignored

    # Lifetime

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is established."""
        self.transport = cast(asyncio.Transport, transport)
        self._port.connections.add(self)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.client = (str(peer[0]), int(peer[1]))
        # A new file has the lowest number that is free, so this is how many are open.
        files: int = transport.get_extra_info("socket").fileno()
        if files < self._options.file_limits.served:
            self._wait_for_more(self._options.receive_seconds)
            return
        self._problem = TooManyConnections()
        if files < self._options.file_limits.refused:
            self._refuse(self._problem)
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """The connection is closed."""
        self._port.connections.discard(self)
        self._stop_waiting()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._half_closed is not None:
            self._half_closed.stop()
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
        if self._half_closed is not None:
            return True
        exchange = self._answered
        due = exchange is not None and not self._in_body and self._problem is None
        if not due or exchange is None or self._last.version == "1.0" or (exchange.started and not self._waiting):
            return False
        self._stop_waiting()
        self._last.keep_alive = False
        self._half_closed = HalfClosed(self.transport, self._may_probe)
        return True

    @property
    def _last(self) -> Exchange:
        """The last request that was received."""
        last = self._waiting[-1] if self._waiting else self._answered
        assert last is not None
        return last

    def _may_probe(self) -> bool:
        """Whether an interim response may be sent: the next response is that of the last request, and has not begun."""
        return not self._waiting and self._answered is not None and not self._answered.started

    def shut_down(self) -> None:
        """The gateway stops: close now if the connection is idle, else after the responses that are due."""
        if self._answered is None:
            self.transport.close()
        else:
            self._last.keep_alive = False

    # Receiving

    def data_received(self, data: bytes) -> None:
        """Bytes were received."""
        if self._problem is not None:
            return
        self._silent = self._began = False
        self._framing_bytes += len(data)
        self._suspect = self._in_head or len(data) > self._options.max_header_bytes
        self._parse(data)
        if self._framing_bytes > self._options.max_header_bytes and self._problem is None:
            self._problem = self._too_large()
            self._refuse(self._problem)
        if self._problem is not None or self.transport.is_closing():
            return
        if self._in_head or self._in_body or self._first:
            # Unless it waits for the same request already.
            if self._began or self._deadline == math.inf:
                self._wait_for_more(self._options.receive_seconds)
        elif self._answered is None:
            if self._deadline == math.inf:
                self._wait_for_more(self._options.keep_alive_seconds)
        else:
            self._stop_waiting()

    def _parse(self, data: bytes) -> None:
        self._unread = [memoryview(data)]
        while self._unread and self._problem is None:
            self._part = self._unread.pop()
            try:
                self._parser.feed_data(self._part)
            except httptools.HttpParserUpgrade as offer:
                self._decline_upgrade(offer)
            except httptools.HttpParserError:
                self._refuse_malformed()
                break
            self._pass_body_on()
        self._part = memoryview(b"")

    def _decline_upgrade(self, offer: httptools.HttpParserUpgrade) -> None:
        """The request asks for another protocol (as Java's client does for HTTP/2, of every server).

        This may be ignored, but the parser takes what follows for the other protocol. So a new one reads the head once
        more, without the offer, and then what follows. CONNECT is answered as any other method, but nothing can follow
        it.
        """
        if self._parser.get_method() == b"CONNECT":
            if self._answered is not None:
                self._last.keep_alive = False
            return
        behind: int = offer.args[0]
        version = self._parser.get_http_version().encode()
        headers = [b"%b: %b" % header for header in self._headers if header[0] != b"upgrade"]
        head = [b"%b %b HTTP/%b" % (self._parser.get_method(), self._url, version), *headers, b"", b""]
        self._parser = _parser(self)
        self._in_head = False
        self._unread += (self._part[behind:], memoryview(b"\r\n".join(head)))

    # Callbacks of the parser. It takes what they raise for malformed HTTP.

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head = self._began = True
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
        if self._suspect and self._head_bytes() > self._options.max_header_bytes:
            self._problem = self._too_large()
            raise self._problem
        method = parser.get_method()
        if parser.should_upgrade() and method != b"CONNECT":
            return
        version = parser.get_http_version()
        url = httptools.parse_url(self._url)
        raw_path: bytes = url.path or b""
        path = raw_path.decode("ascii")
        headers = self._headers
        exchange = Exchange(
            self,
            method.decode("ascii"),
            unquote(path) if "%" in path else path,
            raw_path,
            url.query or b"",
            headers,
            version,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            expects_continue=any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers),
        )
        self._in_head, self._in_body = False, True
        self._first = False
        self._framing_bytes = self._chunks = self._body_bytes = 0
        self._received = exchange
        if self._answered is None:
            self._answered = exchange
            receiver = self._port.handler(exchange)
            if not exchange.complete:
                exchange.receiver = receiver
        else:
            self._waiting.append(exchange)
            self._update_reading()

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._framing_bytes = 0
        self._chunks += 1
        self._body_bytes += len(body)
        if self._chunks > _MAX_TINY_CHUNKS and self._body_bytes < self._chunks * _TINY_CHUNK_BYTES:
            self._problem = BadRequest(
                f"The body has more than {_MAX_TINY_CHUNKS} chunks of less than {_TINY_CHUNK_BYTES} bytes on average."
                " Send it in larger chunks, or with content-length.",
                code="chunks_too_small",
            )
            raise self._problem
        # Joined once: the parser reports each chunk, however small.
        self._body.append(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if not self._in_body:
            return
        self._pass_body_on()
        self._in_body = False
        self._framing_bytes = 0
        self._stop_waiting()
        exchange, self._received = self._received, None
        if exchange is None:
            return
        exchange.body_ended = True
        if exchange is self._answered and not exchange.complete and exchange.receiver is not None:
            exchange.receiver.body_complete()

    def _pass_body_on(self) -> None:
        if not self._body:
            return
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

    def response_head(self) -> tuple[bytes, bool]:
        """See ``ExchangeOwner``."""
        return self._port.common_lines, self._port.leaving

    def write(self, data: bytes) -> None:
        """See ``ExchangeOwner``."""
        self.transport.write(data)

    def write_parts(self, parts: Iterable[bytes]) -> None:
        """See ``ExchangeOwner``."""
        self.transport.writelines(parts)

    def abort(self) -> None:
        """See ``ExchangeOwner``."""
        self.transport.abort()

    def close(self) -> None:
        """See ``ExchangeOwner``."""
        self.transport.close()

    def pause_reading(self) -> None:
        """See ``ExchangeOwner``."""
        self._body_paused = True
        self._update_reading()

    def resume_reading(self) -> None:
        """See ``ExchangeOwner``."""
        self._body_paused = False
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
        if not self._advancing:
            self._advance()

    def _advance(self) -> None:
        """Answer the next waiting requests, as far as that takes no waiting."""
        self._advancing = True
        waited = self._deadline != math.inf and self._held_up
        try:
            while self._answered is None and self._waiting:
                exchange = self._answered = self._waiting.popleft()
                receiver = self._port.handler(exchange)
                if not exchange.complete:
                    exchange.receiver = receiver
                pieces, exchange.waiting_body = exchange.waiting_body, []
                for piece in pieces:
                    if not exchange.complete:
                        receiver.body_received(piece)
                if exchange.body_ended and not exchange.complete:
                    receiver.body_complete()
        finally:
            self._advancing = False
        if self.transport.is_closing():
            return
        self._update_reading()
        if waited:  # what follows may not have been read until now
            self._wait_for_more(self._options.receive_seconds)
        elif self._answered is None and not (self._in_head or self._in_body):
            self._wait_for_more(self._options.keep_alive_seconds)

    @property
    def _held_up(self) -> bool:
        """Whether the gateway does not read, or a request waits for its turn."""
        return not self._reading or bool(self._waiting)

    def _update_reading(self) -> None:
        reading = not self._waiting and not self._body_paused
        if reading is not self._reading and not self.transport.is_closing():
            self._reading = reading
            (self.transport.resume_reading if reading else self.transport.pause_reading)()

    def pause_writing(self) -> None:
        """The client reads slowly."""
        self.congested = True

    def resume_writing(self) -> None:
        """The client has read what was written."""
        self.congested = False
        if self._answered is not None and self._answered.receiver is not None:
            self._answered.receiver.writing_resumed()

    # Time

    def _wait_for_more(self, seconds: float) -> None:
        self._deadline = self._loop.time() + seconds
        if self._deadline < self._timer_due:
            if self._timer is not None:
                self._timer.cancel()
            self._arm()

    def _arm(self) -> None:
        self._timer_due = self._deadline
        self._timer = self._loop.call_at(self._deadline, self._timer_fired)

    def _stop_waiting(self) -> None:
        """No deadline; the timer stays, because setting one for each request costs more than one that does nothing."""
        self._deadline = math.inf

    def _timer_fired(self) -> None:
        self._timer = None
        due, self._timer_due = self._timer_due, math.inf
        if self._problem is not None or self.transport.is_closing() or self._deadline == math.inf:
            return
        now = self._loop.time()
        if self._deadline > now:
            self._arm()
        elif self._held_up or now - due > _STOOD_STILL_SECONDS:
            self._wait_for_more(self._options.receive_seconds)
        elif self._silent or not (self._first or self._in_head or self._in_body):
            self.transport.close()
        else:
            self._problem = RequestTimeout(self._options.receive_seconds)
            self._refuse(self._problem)

    # Refusing

    def _refuse_malformed(self) -> None:
        if self._problem is None:
            self._problem = BadRequest(
                "This is not well-formed HTTP/1.1. Look for control characters (such as a newline) in the URL or in a"
                " header, and for more than one length of the body (content-length, transfer-encoding).",
                code="malformed_http",
            )
        self._refuse(self._problem)

    def _refuse(self, problem: GatewayError) -> None:
        """Send the error and close the connection; if other responses are still due on it, after the last of them."""
        self._stop_waiting()
        _log.info("connection_refused", code=problem.code, peer=self.client[0] if self.client else "")
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
        body = problem_body(problem)
        headers = problem_headers(problem, None) | {"content-length": str(len(body)), "connection": "close"}
        lines = [_STATUS_LINES[problem.status], *(f"{name}: {value}" for name, value in headers.items())]
        # Those of the request it is about, as far as they arrived.
        lines += [f"{name.decode()}: {value.decode()}" for name, value in self._port.cors.answer_headers(self._headers)]
        self.transport.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _head_bytes(self) -> int:
        """Size of the head that is complete now, in its usual form."""
        line = len(self._parser.get_method()) + len(self._url) + len("  HTTP/1.1\r\n")
        return line + sum(len(name) + len(value) + len(": \r\n") for name, value in self._headers) + len("\r\n")

    def _too_large(self) -> GatewayError:
        return HeadersTooLarge(
            f"The URL and the headers are larger than {self._options.max_header_bytes} bytes together. Send fewer or"
            " shorter headers, or raise server.max_header_bytes.",
            code="headers_too_large",
        )


def _parser(connection: ClientConnection) -> httptools.HttpRequestParser:
    """A parser that reports to a connection; it also reads what follows a request that ends the connection."""
    parser = httptools.HttpRequestParser(connection)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser
