"""One HTTP request as endpoints receive it; the writer of its answer, which shows the faults in force; error bodies."""

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs

import orjson

from gateway.simulator.faults import Fault, FaultSpec


class EngineError(Exception):
    """A request answered with an error body.

    Attributes:
        status: HTTP status.
        message: What is wrong.
        param: The invalid field, or None.
    """

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param


_TYPES = {
    400: "BadRequestError",
    403: "ForbiddenError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    415: "UnsupportedMediaTypeError",
    429: "TooManyRequestsError",
    500: "InternalServerError",
}


def error_type(status: int) -> str:
    """The engines' name of an HTTP status."""
    return _TYPES.get(status, "APIError")


def reset(transport: asyncio.Transport) -> None:
    """Close with a reset."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


_NO_HTTP = b"\x16\x03\x01\x02\x00 this is no HTTP \xff\xfe\r\n\r\n"
_NO_EVENT = b"\x16\x03\x01 this is no event \xff\xfe\n\n"
_DONE = b"data: [DONE]\n\n"
_EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
_DRIP_BYTES = 16
_TOO_LARGE = 2**30
_TOO_SMALL = 100


class ConnectionCutError(Exception):
    """The fault closed the connection; nothing more can be sent."""


class ReplyWriter:
    """The answer to one HTTP request.

    Args:
        send: ASGI's send.
        transport: The connection below, for faults below HTTP.
        request_id: Echoed as ``x-request-id``.
        fault: The fault that this answer shows, or None.
        error_body: Builds the engine's JSON for a refusal.
        clock_seconds: How far the clock of its Date header is ahead; None: there is no such header.
    """

    def __init__(
        self,
        send: Any,
        transport: asyncio.Transport,
        request_id: str,
        fault: FaultSpec | None,
        error_body: Callable[[EngineError], dict[str, Any]],
        *,
        clock_seconds: float | None = None,
    ) -> None:
        self._send = send
        self._transport = transport
        self._request_id = request_id.encode("latin-1")
        self._fault = fault
        self._error_body = error_body
        self._clock_seconds = clock_seconds
        self._events = 0

    @property
    def usage_missing(self) -> bool:
        """Whether usage has to be left out."""
        return self._shows(Fault.USAGE_MISSING)

    def cut(self, first: bytes = b"") -> None:
        """Write raw bytes and close the connection. Raises ConnectionCutError."""
        self._transport.write(first)
        self._transport.close()
        raise ConnectionCutError

    def reset(self) -> None:
        """Reset the connection. Raises ConnectionCutError."""
        reset(self._transport)
        raise ConnectionCutError

    async def hang(self) -> None:
        """Send nothing more until the client disconnects."""
        await asyncio.Event().wait()

    def garbage(self) -> None:
        """Answer something that is not HTTP. Raises ConnectionCutError."""
        self.cut(_NO_HTTP)

    async def json(self, payload: Any, status: int = 200) -> None:
        """Answer with JSON."""
        body = orjson.dumps(payload)
        if self._shows(Fault.INVALID_JSON):
            body = body[: len(body) // 2]
        await self._whole(body, b"application/json", status)

    async def text(self, text: str, content_type: str, status: int = 200) -> None:
        """Answer with text."""
        await self._whole(text.encode(), content_type.encode(), status)

    async def error(self, error: EngineError) -> None:
        """Answer with an error body."""
        await self.json(self._error_body(error), error.status)

    async def open_stream(self) -> None:
        """Start an event stream."""
        if self._false_length:
            self._write_head(200, _EVENT_STREAM, (b"content-length", b"%d" % self._false_length))
        else:
            await self._start(200, _EVENT_STREAM)
        if self._shows(Fault.DIE_AFTER_HEAD):
            self.cut()
        await self._break_if_due(b"data: ")

    async def event(self, payload: Any) -> None:
        """Send one event of JSON."""
        data = orjson.dumps(payload)
        if self._shows(Fault.INVALID_JSON):
            data = data[: len(data) // 2]
        event = b"data: %b\n\n" % data
        await self._body(event, more=True)
        self._events += 1
        await self._break_if_due(event)

    async def keep_alive(self) -> None:
        """Send a comment, as vLLM does with ``--sse-keep-alive-interval``."""
        await self._body(b": keep-alive\n\n", more=True)

    async def close_stream(self) -> None:
        """Send the end mark of an event stream, and end it."""
        await self._body(b"" if self._shows(Fault.NO_DONE) else _DONE, more=True)
        if self._shows(Fault.DIE_AT_END) or self._false_length:
            self.cut()
        if self._shows(Fault.HANG_AT_END):
            await self.hang()
        await self._body(b"", more=False)

    async def _whole(self, body: bytes, content_type: bytes, status: int) -> None:
        kind, half = (b"content-type", content_type), len(body) // 2
        match self._fault.fault if self._fault is not None else None:
            case Fault.LENGTH_TOO_LARGE:
                self._write_head(status, kind, (b"content-length", b"%d" % (len(body) + 1)))
                self.cut(body)
            case Fault.LENGTH_TOO_SMALL:
                self._write_head(status, kind, (b"content-length", b"%d" % half))
                self.cut(body)
            case Fault.HALF_CHUNK:
                self._write_head(status, kind, (b"transfer-encoding", b"chunked"))
                self.cut(b"%x\r\n%b" % (len(body), body[:half]))
            case Fault.GARBAGE_MID_STREAM:
                body = body[:half] + _NO_EVENT + body[half:]
        await self._start(status, kind, (b"content-length", b"%d" % len(body)))
        match self._fault.fault if self._fault is not None else None:
            case Fault.DIE_AFTER_HEAD:
                self.cut()
            case Fault.DIE_MID_STREAM:
                self.cut(body[:half])
            case Fault.RESET_MID_STREAM:
                await self._body(body[:half], more=True)
                self.reset()
            case Fault.HANG_MID_STREAM:
                await self._body(body[:half], more=True)
                await self.hang()
            case Fault.DIE_AT_END:
                self.cut(body[:-1])
            case Fault.HANG_AT_END:
                await self._body(body[:-1], more=True)
                await self.hang()
        await self._body(body, more=False)

    async def _start(self, status: int, *headers: tuple[bytes, bytes]) -> None:
        listed = [*headers, (b"x-request-id", self._request_id)]
        if self._clock_seconds is not None:
            listed.append((b"date", formatdate(time.time() + self._clock_seconds, usegmt=True).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": listed})

    def _write_head(self, status: int, *headers: tuple[bytes, bytes]) -> None:
        """As ``_start``, for heads that the server would refuse to send."""
        lines = [b"%b: %b\r\n" % header for header in (*headers, (b"x-request-id", self._request_id))]
        self._transport.write(b"HTTP/1.1 %d X\r\n%b\r\n" % (status, b"".join(lines)))

    async def _body(self, data: bytes, *, more: bool) -> None:
        if self._false_length:
            self._transport.write(data)
            return
        if self._fault is not None and self._shows(Fault.DRIP):
            while len(data) > _DRIP_BYTES:
                drop, data = data[:_DRIP_BYTES], data[_DRIP_BYTES:]
                await self._send({"type": "http.response.body", "body": drop, "more_body": True})
                await asyncio.sleep(self._fault.value)
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _break_if_due(self, event: bytes) -> None:
        """Break the stream after an event, if the fault is due."""
        if self._fault is None or self._events < self._fault.value:
            return
        match self._fault.fault:
            case Fault.DIE_MID_STREAM:
                self.cut()
            case Fault.RESET_MID_STREAM:
                self.reset()
            case Fault.HANG_MID_STREAM:
                await self.hang()
            case Fault.HALF_CHUNK:
                self.cut(b"%x\r\n%b" % (len(event), event[: len(event) // 2]))
            case Fault.GARBAGE_MID_STREAM if self._events == self._fault.value:
                await self._body(_NO_EVENT, more=True)

    @property
    def _false_length(self) -> int:
        """The length that a stream claims to have; 0 if it claims none."""
        if self._shows(Fault.LENGTH_TOO_LARGE):
            return _TOO_LARGE
        return _TOO_SMALL if self._shows(Fault.LENGTH_TOO_SMALL) else 0

    def _shows(self, fault: Fault) -> bool:
        return self._fault is not None and self._fault.fault is fault


@dataclass(frozen=True, slots=True)
class Call:
    """A request and where its answer goes.

    Attributes:
        headers: Names in lower case.
        query: The raw query string.
        body: The raw bytes.
        reply: Where the answer goes.
        request_id: The client's, or one made here.
    """

    headers: Mapping[bytes, bytes]
    query: bytes
    body: bytes
    reply: ReplyWriter
    request_id: str

    def fields(self) -> Mapping[str, Any]:
        """The body as JSON. Raises EngineError for anything but an object."""
        try:
            fields = orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise EngineError(400, f"The body is no valid JSON: {error}") from error
        if not isinstance(fields, dict):
            raise EngineError(400, "The body must be a JSON object")
        return fields

    def rank(self) -> int | None:
        """The data-parallel rank that ``x-data-parallel-rank`` asks for; None if it is missing or not a number."""
        text = self.headers.get(b"x-data-parallel-rank", b"")
        try:
            return int(text)
        except ValueError:
            return None

    def parameter(self, name: str) -> str | None:
        """A query parameter."""
        found = parse_qs(self.query.decode("latin-1")).get(name)
        return found[0] if found else None


Handler = Callable[[Call], Awaitable[None]]
Routes = dict[tuple[str, str], Handler]
"""Handlers by method and path."""
