"""Sends one answer, and breaks it where a fault says so."""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson

from gateway.simulator.errors import EngineError
from gateway.simulator.faults import Fault, FaultSpec

_GARBAGE = b"\x16\x03\x01\x02\x00 this is no HTTP \xff\xfe\r\n\r\n"


class ConnectionCutError(Exception):
    """The fault closed the connection; nothing more can be sent."""


class Reply:
    """The answer to one HTTP request.

    Args:
        send: ASGI's send.
        transport: The connection below, for faults that HTTP has no words for.
        request_id: Echoed as ``x-request-id``.
        fault: What this answer has to show, or None.
        error_body: The engine's way to put a refusal into JSON.
    """

    def __init__(
        self,
        send: Any,
        transport: asyncio.Transport,
        request_id: str,
        fault: FaultSpec | None,
        error_body: Callable[[EngineError], dict[str, Any]],
    ) -> None:
        self._send = send
        self._transport = transport
        self._request_id = request_id.encode("latin-1")
        self._fault = fault
        self._error_body = error_body
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

    def garbage(self) -> None:
        """Answer something that is not HTTP. Raises ConnectionCutError."""
        self.cut(_GARBAGE)

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
        await self._start(200, (b"content-type", b"text/event-stream; charset=utf-8"))
        self._cut_if_due()

    async def event(self, payload: Any) -> None:
        """Send one event of JSON."""
        data = orjson.dumps(payload)
        if self._shows(Fault.INVALID_JSON):
            data = data[: len(data) // 2]
        await self._send({"type": "http.response.body", "body": b"data: %b\n\n" % data, "more_body": True})
        self._events += 1
        self._cut_if_due()

    async def close_stream(self) -> None:
        """Send the end mark of an event stream, and end it."""
        await self._send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _whole(self, body: bytes, content_type: bytes, status: int) -> None:
        await self._start(status, (b"content-type", content_type), (b"content-length", b"%d" % len(body)))
        if self._shows(Fault.DIE_MID_STREAM):
            self.cut(body[: len(body) // 2])
        await self._send({"type": "http.response.body", "body": body})

    async def _start(self, status: int, *headers: tuple[bytes, bytes]) -> None:
        listed = [*headers, (b"x-request-id", self._request_id)]
        await self._send({"type": "http.response.start", "status": status, "headers": listed})

    def _cut_if_due(self) -> None:
        if self._fault is not None and self._shows(Fault.DIE_MID_STREAM) and self._events >= self._fault.value:
            self.cut()

    def _shows(self, fault: Fault) -> bool:
        return self._fault is not None and self._fault.fault is fault
