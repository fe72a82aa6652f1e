"""The HTTP/1.1 protocol of the server, with limits on headers, framing and the time in which a request must arrive.

uvicorn's parser keeps any number of headers, so that one connection could fill the memory; it waits for the rest of a
request without a timeout; and it answers invalid HTTP in plain text. Here all of these are refused in the API's error
format, and the connection is closed.

The limit applies to the bytes since the beginning of a request's head or since the last piece of its body: to the
request line, the headers, chunk framing and trailers. A request that
comes in one read costs a counter; only one that is split or large is added up.

A request's time runs from its first byte to its last, and a connection's from when it was made to its first byte. It
does not run while the gateway itself does not read, because another request of the connection has to be answered
first. A request that comes in one read needs no timer.
"""

import asyncio
import sys
from collections.abc import Sized

import structlog
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.api.cors import Cors
from gateway.api.error_responses import RequestTimeout, TooManyConnections, problem_body, problem_headers
from gateway.core.errors import BadRequest, GatewayError, HeadersTooLarge
from gateway.server.sockets import FileLimits, HalfClosed

_log = structlog.get_logger("gateway.api")

_LINGER_SECONDS = 2.0
"""How long a refused client may go on sending. Closed at once, with bytes of it unread, its connection would be reset,
and it might never see the answer."""

_MAX_TINY_CHUNKS = 16_384
_TINY_CHUNK_BYTES = 64
"""A body of more chunks than this that are smaller on average is refused: its framing costs more than its content."""

_STOOD_STILL_SECONDS = 1.0
"""If a timer comes so much later than it should, this process has stood still, and has not read what is there."""

_STATUS_LINES = {
    400: "HTTP/1.1 400 Bad Request",
    408: "HTTP/1.1 408 Request Timeout",
    431: "HTTP/1.1 431 Request Header Fields Too Large",
    503: "HTTP/1.1 503 Service Unavailable",
}


def limited_protocol(
    max_header_bytes: int,
    receive_seconds: float = 60.0,
    file_limits: FileLimits | None = None,
    cors: Cors | None = None,
) -> type[HttpToolsProtocol]:
    """A protocol class for ``uvicorn.Config(http=...)``.

    Args:
        max_header_bytes: Most bytes of a request's line and headers together. More is answered with 431, and what is
            not HTTP with 400; either ends the connection.
        receive_seconds: In which a request has to arrive. A later one is answered with 408, which ends the connection;
            one on which nothing came at all is closed.
        file_limits: Limits of open files for new connections; None: no limit.
        cors: Allowed origins of web pages; None: no page.
    """
    limits = {
        "max_header_bytes": max_header_bytes,
        "receive_seconds": receive_seconds,
        "file_limits": file_limits or FileLimits.endless(),
        "cors": cors or Cors(()),
    }
    return type("LimitedProtocol", (_LimitedProtocol,), limits)


class _PipelineFlow(FlowControl):
    """Pauses reading while pipelined requests of the connection wait.

    Each may resume the reading when its turn comes; a client that sends faster than it is answered could otherwise have
    any number of them waiting.

    Args:
        transport: The connection.
        waiting: The requests that wait.
    """

    def __init__(self, transport: asyncio.Transport, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Go on reading, if no request waits."""
        if not self._waiting:
            super().resume_reading()


class _LimitedProtocol(HttpToolsProtocol):
    """One client connection."""

    max_header_bytes: int
    receive_seconds: float
    file_limits: FileLimits
    cors: Cors

    _framing_bytes = 0
    """Bytes since the head began, or since the last piece of the body. What stands in one read behind a piece of the
    body, or behind another request, is not among them: the parser does not tell where in a read it is."""
    _in_head = False
    _in_body = False
    _began = False
    """Whether a request began in the present read."""
    _silent = True
    """Whether nothing was received yet."""
    _timer: asyncio.TimerHandle | None = None
    """Timer of the missing part of a request."""
    _suspect = False
    """Whether the present read may end a head that is too large: it is larger than the limit, or not the first."""
    _body: list[bytes]
    """Pieces of the body in the present read. Joined once: the parser reports each chunk, however small."""
    _chunks = 0
    _body_bytes = 0
    """Pieces of the present body, and their bytes."""
    _unread: list[memoryview]
    """What is left of the present read for the parser, the next piece last."""
    _piece = memoryview(b"")
    """What the parser reads now; empty between reads, so that idle connections hold none."""
    _half_closed: HalfClosed | None = None
    """Watches a half-closed connection."""
    _problem: GatewayError | None = None
    """The error of a refused connection; later bytes are ignored."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """The connection is established."""
        super().connection_made(transport)
        self._body = []
        self.flow = _PipelineFlow(transport, self.pipeline)
        # A new file has the lowest number that is free, so this is how many are open.
        files: int = transport.get_extra_info("socket").fileno()
        if files < self.file_limits.served:
            self._wait_for_more(self.receive_seconds)
            return
        self._problem = TooManyConnections()
        if files < self.file_limits.refused:
            self._refuse(self._problem)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._stop_waiting()
        if self._half_closed is not None:
            self._half_closed.stop()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's may return whether it stays open
        """The client sends nothing more. Returns whether the connection stays open, for the answers that are due.

        One that speaks HTTP/1.0 counts as gone: it takes no interim answer by which it could be found out whether it
        is, and proxies that speak it close their connections when their own clients leave. So does one whose last
        answer has begun: who ends only its own side does it with the request, and between two chunks nothing may be
        sent that would find it out.
        """
        if self._half_closed is not None:
            return True
        cycle = self.cycle
        due = cycle is not None and not cycle.response_complete and not self._in_body and self._problem is None
        if not due or cycle.scope["http_version"] == "1.0" or (cycle.response_started and not self.pipeline):
            return False
        self._stop_waiting()
        cycle.keep_alive = False
        self._half_closed = HalfClosed(self.transport, self._may_probe)
        return True

    def _may_probe(self) -> bool:
        """Whether an interim answer may be sent: the next answer is that of the last request, and has not begun."""
        return not self.pipeline and not self.cycle.response_started

    def data_received(self, data: bytes) -> None:
        """Bytes were received."""
        if self._problem is not None:
            return
        self._silent = self._began = False
        self._framing_bytes += len(data)
        self._suspect = self._in_head or len(data) > self.max_header_bytes
        self._parse(data)
        if self._framing_bytes > self.max_header_bytes and self._problem is None:
            self._problem = self._too_large()
            self._refuse(self._problem)
        if self._problem is not None:
            return
        if self._in_head or self._in_body or self.cycle is None:
            # Unless it waits for the same request already.
            if self._began or self._timer is None:
                self._wait_for_more(self.receive_seconds)
        elif self.cycle.response_complete:
            # Its answer went before its end. No request is under way, and with these bytes uvicorn's wait for the next
            # one is over.
            if self._timer is None:
                self._wait_for_more(self.timeout_keep_alive)
        elif self._timer is not None:
            self._stop_waiting()

    def _parse(self, data: bytes) -> None:
        """Parse the received bytes."""
        self._unread = [memoryview(data)]
        while self._unread and self._problem is None:
            self._piece = self._unread.pop()
            super().data_received(self._piece)  # type: ignore[arg-type]  # the parser takes any buffer
            self._pass_body_on()
        self._piece = memoryview(b"")

    def _unsupported_upgrade_warning(self) -> None:
        """The request asks for another protocol (as Java's client does for HTTP/2, of every server), and was not begun.

        This may be ignored, but the parser takes what follows for the other protocol. So a new one reads the head once
        more, without the offer, and then what follows. CONNECT is answered as any other method, but nothing can follow
        it.
        """
        if self.parser.get_method() == b"CONNECT":
            self.cycle.keep_alive = False
            return
        offer = sys.exception()
        assert offer is not None
        behind: int = offer.args[0]
        version = self.parser.get_http_version().encode()
        headers = [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        head = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version), *headers, b"", b""]
        self.parser = type(self.parser)(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._in_head = False
        self._unread += (self._piece[behind:], memoryview(b"\r\n".join(head)))

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head = self._began = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is complete. The parser takes what is raised here for malformed HTTP: see ``send_400_response``."""
        if self._suspect and self._head_bytes() > self.max_header_bytes:
            self._problem = self._too_large()
            raise self._problem
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            return
        super().on_headers_complete()
        self._in_head, self._in_body = False, True
        self._chunks = self._body_bytes = 0
        self._framing_bytes = 0
        # The parser reports trailers as headers. They come after everything was decided by the headers, and may not
        # join them.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        """A piece of the body came in. The parser takes what is raised here for malformed HTTP."""
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
        self._body.append(body)

    def _pass_body_on(self) -> None:
        body, self._body = self._body, []
        if body and self._problem is None:
            super().on_body(b"".join(body))

    def on_message_complete(self) -> None:
        """The request is complete."""
        if not self._in_body:
            return
        self._pass_body_on()
        self._in_body = False
        self._framing_bytes = 0
        self._stop_waiting()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer was given. What comes behind its request may not have been read until now."""
        waited = self._timer is not None and self._held_up()
        super().on_response_complete()
        if waited and not self.transport.is_closing():
            self._wait_for_more(self.receive_seconds)

    def send_400_response(self, msg: str) -> None:
        """The parser gave up. ``msg``, which is always the same, is not used."""
        del msg
        if self._problem is None:
            self._problem = BadRequest(
                "This is not well-formed HTTP/1.1. Look for control characters (such as a newline) in the URL or in a"
                " header, and for more than one length of the body (content-length, transfer-encoding).",
                code="malformed_http",
            )
        self._refuse(self._problem)

    def _wait_for_more(self, seconds: float) -> None:
        self._stop_waiting()
        due = self.loop.time() + seconds
        self._timer = self.loop.call_at(due, self._give_up, due)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self, due: float) -> None:
        """The request or its rest did not arrive in time."""
        self._timer = None
        if self._problem is not None or self.transport.is_closing():
            return
        if self._held_up() or self.loop.time() - due > _STOOD_STILL_SECONDS:
            self._wait_for_more(self.receive_seconds)
        elif self._silent or (self.cycle is not None and not (self._in_head or self._in_body)):
            self.transport.close()
        else:
            self._problem = RequestTimeout(self.receive_seconds)
            self._refuse(self._problem)

    def _held_up(self) -> bool:
        """Whether the client waits for an answer."""
        return self.flow.read_paused or bool(self.pipeline)

    def _refuse(self, problem: GatewayError) -> None:
        """Send the error and close the connection; if other answers are still due on it, after the last of them."""
        self._stop_waiting()
        _log.info("connection_refused", code=problem.code, peer=self.client[0] if self.client else "")
        self._unset_keepalive_if_required()
        cycle = self.cycle
        due = cycle is not None and not cycle.response_complete
        if self._in_body:
            if not due or cycle.response_started or self.pipeline:
                self.transport.close()
                return
            # The error is sent here: report a disconnect to the application's task.
            cycle.disconnected = True
            cycle.message_event.set()
        elif due:
            cycle.keep_alive = False
            return
        body = problem_body(problem)
        headers = problem_headers(problem, None) | {"content-length": str(len(body)), "connection": "close"}
        lines = [_STATUS_LINES[problem.status], *(f"{name}: {value}" for name, value in headers.items())]
        # Those of the request it is about, as far as they came; of a request that has no line yet there are none.
        came = self.scope["headers"] if self.scope is not None else []
        lines += [f"{name.decode()}: {value.decode()}" for name, value in self.cors.answer_headers(came)]
        self.transport.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _head_bytes(self) -> int:
        """Size of the head that is complete now, in its usual form."""
        line = len(self.parser.get_method()) + len(self.url) + len("  HTTP/1.1\r\n")
        return line + sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers) + len("\r\n")

    def _too_large(self) -> GatewayError:
        return HeadersTooLarge(
            f"The URL and the headers are larger than {self.max_header_bytes} bytes together. Send fewer or shorter"
            " headers, or raise server.max_header_bytes.",
            code="headers_too_large",
        )
