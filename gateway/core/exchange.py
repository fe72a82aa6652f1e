"""One HTTP exchange of a client connection: the request, and the response that is written to it.

A handler gets an exchange as soon as the head of its request is complete and it is its turn on the connection. It
returns a receiver, which is called synchronously with the body and with what happens to the connection. Nothing here
waits: a handler that has to wait starts a task of its own.

Responses are framed as RFC 9112, section 6 and 7: by ``content-length`` if the handler names one, else by chunks, or by
the end of the connection for HTTP/1.0. The head is sent together with the first part of the body.
"""

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Protocol

import msgspec

Headers = Sequence[tuple[bytes, bytes]]

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"connection"})
_WITHOUT_BODY = frozenset({204, 304})
_WRITTEN_TOGETHER = 16 * 1024
"""Bytes up to which a part of the body is copied to be written with its framing in one piece."""


def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


_STATUS_LINES = {status: _status_line(status) for status in range(100, 600)}


def status_line(status: int) -> bytes:
    """The first line of a response."""
    return _STATUS_LINES[status]


class Receiver(Protocol):
    """Receives the body of a request, and what happens to its connection."""

    def body_received(self, data: bytes) -> None:
        """A part of the body; never empty."""
        ...

    def body_complete(self) -> None:
        """The request is complete."""
        ...

    def client_gone(self) -> None:
        """The client has disconnected before the response was complete. Called at most once; nothing follows."""
        ...

    def writing_paused(self) -> None:
        """The client reads more slowly than is written: ``ExchangeOwner.congested`` is true now."""
        ...

    def writing_resumed(self) -> None:
        """The client has read what was written: ``ExchangeOwner.congested`` is false again."""
        ...


class ClientTransport(Protocol):
    """Writes to the client, as asyncio's transports do."""

    def write(self, data: bytes) -> None:
        """Write to the client."""
        ...

    def writelines(self, list_of_data: Iterable[bytes]) -> None:
        """Write several parts in one system call."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...

    def close(self) -> None:
        """Close the connection when everything that was written is sent."""
        ...


class ResponsePort(Protocol):
    """What the responses of a port have in common.

    Attributes:
        common_lines: Header lines of every response.
        leaving: Whether each connection is closed after its next response.
    """

    common_lines: bytes
    leaving: bool


class ExchangeOwner(Protocol):
    """The connection of an exchange.

    Attributes:
        client: Address of the client; None for a Unix socket.
        peer: The same without the port; empty for a Unix socket.
        congested: Whether the client reads more slowly than is written: write no more until ``writing_resumed``.
    """

    client: tuple[str, int] | None
    peer: str
    congested: bool

    @property
    def port(self) -> ResponsePort:
        """The port that was connected to."""
        ...

    @property
    def transport(self) -> ClientTransport:
        """Writes to the client."""
        ...

    def response_complete(self, *, keep: bool) -> None:
        """The response is complete.

        Args:
            keep: Whether the connection may serve another request.
        """
        ...

    def pause_reading(self) -> None:
        """Stop reading from the client: the handler holds enough of the body."""
        ...

    def resume_reading(self) -> None:
        """Go on reading, unless another request of the connection waits."""
        ...


class InvalidResponse(Exception):
    """A handler wrote a response that HTTP does not allow."""


class Exchange(msgspec.Struct, eq=False):
    """A request, and the response to it.

    Attributes:
        owner: The connection.
        method: HTTP method.
        path: Path, with percent-encoding resolved.
        raw_path: Path as sent.
        query: Query string as sent, without the question mark.
        headers: Names in lower case, values as sent.
        named: The last header of each name.
        version: ``1.1`` or ``1.0``.
        keep_alive: Whether the client wants to keep the connection.
        expects_continue: Whether the client waits to be asked for the body.
        receiver: Of the handler; None once the response is complete or the client has disconnected.
        body_ended: Whether the request is complete.
        started: Whether the head of the response was written or is about to be.
        complete: Whether the response is complete.
        gone: Whether the client has disconnected before the response was complete.
    """

    owner: ExchangeOwner
    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]
    named: dict[bytes, bytes]
    version: str
    keep_alive: bool
    expects_continue: bool
    receiver: Receiver | None = None
    body_ended: bool = False
    started: bool = False
    complete: bool = False
    gone: bool = False
    _head: bytes | None = None
    _chunked: bool = False
    _in_chunks: bool = False
    """Whether whole chunks may be written now: the head was sent, and not the end."""
    _remaining: int | None = None

    def ask_for_body(self) -> None:
        """Tell a client that waits for it to send the body (``expect: 100-continue``)."""
        if self.expects_continue and not self.started:
            self.expects_continue = False
            self.owner.transport.write(_CONTINUE)

    def pause_body(self) -> None:
        """Receive no more of the body for now."""
        self.owner.pause_reading()

    def resume_body(self) -> None:
        """Receive more of the body."""
        self.owner.resume_reading()

    def start(self, status: int, headers: Headers) -> None:
        """Begin the response. The head is sent with the first part of the body, or by ``flush``.

        Raises:
            InvalidResponse: it has begun before, or a header has a line break or a NUL in it.
        """
        if self.started:
            raise InvalidResponse("the response has begun before")
        port = self.owner.port
        common, close = port.common_lines, port.leaving
        lines: list[bytes] = []
        length = None
        for header in headers:
            if header[0] in _FRAMING:
                name, value = header
                if name == b"content-length":
                    length = int(value)
                else:
                    close = close or (name == b"connection" and b"close" in value.lower())
                    continue
            lines.append(b": ".join(header))
        self.started = True
        self.expects_continue = False
        if self.method == "HEAD" or status in _WITHOUT_BODY:
            self._remaining = 0
        elif length is not None:
            self._remaining = length
        elif self.version == "1.0":
            close = True
        else:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked")
        if close or not self.keep_alive:
            self.keep_alive = False
            lines.append(b"connection: close")
        lines += (b"", b"")  # the empty line behind the headers
        head = b"".join((_STATUS_LINES[status], common, b"\r\n".join(lines)))
        breaks = len(lines) + common.count(b"\n")
        if len(head) - len(head.translate(None, b"\r\n\0")) != 2 * breaks:
            self.started = self._chunked = False
            self._remaining = None
            raise InvalidResponse("a header has a line break or a NUL in it")
        self._head = head

    def flush(self) -> None:
        """Send the head now."""
        head, self._head = self._head, None
        if head is not None and not self.gone:
            self.owner.transport.write(head)

    def write(self, data: bytes, *, more: bool, chunk: bytes | None = None) -> None:
        """Send a part of the body; nothing happens once the client has disconnected.

        Args:
            data: The part; may be empty.
            more: Whether others follow.
            chunk: The same as one chunk, which is sent as it is if the response has chunks; only with ``more``, and
                never empty.

        Raises:
            InvalidResponse: the response has not begun, is complete, or is longer or shorter than it announced.
        """
        if chunk is not None and self._in_chunks:
            self.owner.transport.write(chunk)
            return
        if self.gone:
            return
        if not self.started or self.complete:
            raise InvalidResponse("the response has not begun, or is complete")
        head, self._head = self._head or b"", None
        if self._chunked:
            self._in_chunks = more
            size = len(data)
            last = b"" if more else b"0\r\n\r\n"
            if size > _WRITTEN_TOGETHER:
                self.owner.transport.writelines((b"%b%x\r\n" % (head, size), data, b"\r\n" + last))
            elif size:
                self.owner.transport.write(b"%b%x\r\n%b\r\n%b" % (head, size, data, last))
            elif head or last:
                self.owner.transport.write(head + last)
        else:
            if self._remaining is not None:
                if self.method == "HEAD":
                    data = b""
                self._remaining -= len(data)
                if self._remaining < 0 or (self._remaining and not more):
                    self.owner.transport.abort()
                    raise InvalidResponse("the body does not have the announced length")
            if head and len(data) > _WRITTEN_TOGETHER:
                self.owner.transport.writelines((head, data))
            elif head or data:
                self.owner.transport.write(head + data)
        if not more:
            self.complete = True
            self.receiver = None  # it refers to this object: only the garbage collector could free both
            self.owner.response_complete(keep=self.keep_alive)

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response; nothing happens once the client has disconnected."""
        if self.gone:
            return
        self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        self.write(body, more=False)

    def abort(self) -> None:
        """Close the connection at once: the client sees that the response is incomplete."""
        self.owner.transport.abort()

    def break_off(self) -> None:
        """End an incomplete response: the client gets what was written, and sees that the rest is missing."""
        if self.complete or self.gone:
            return
        if self._chunked or self._remaining is not None:
            self.owner.transport.close()
        else:
            self.owner.transport.abort()  # a regular end of the connection would be the end of the response

    def lost(self) -> None:
        """The client has disconnected; to be called by the connection."""
        if self.complete or self.gone:
            return
        self.gone = True
        self._in_chunks = False
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.client_gone()
