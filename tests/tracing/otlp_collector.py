"""An OTLP/HTTP receiver on a loopback port, and the spans it received."""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from running_gateway import eventually

SERVER, CLIENT, INTERNAL = WireSpan.SPAN_KIND_SERVER, WireSpan.SPAN_KIND_CLIENT, WireSpan.SPAN_KIND_INTERNAL
FAILED = 2
"""Status code of a span that failed."""


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it came over the wire; ids in hex, times in nanoseconds."""

    name: str
    kind: int
    trace: str
    id: str
    parent: str
    state: str
    began: int
    ended: int
    status: int
    attributes: dict[str, Any]
    events: dict[str, int]
    resource: dict[str, Any]


@dataclass(frozen=True)
class ReceivedTrace:
    """The spans of one request."""

    request: ReceivedSpan
    children: list[ReceivedSpan]

    def names(self) -> list[str]:
        """Of the children, in the order they began."""
        return [span.name for span in self.children]

    def child(self, name: str) -> ReceivedSpan:
        (found,) = self.all(name)
        return found

    def all(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.children if span.name == name]


class OtlpCollector:
    """Takes spans.

    Attributes:
        status: What it answers with.
        hangs: Whether it takes a request and never answers.
        bodies: Everything it was sent.
        headers: Headers of the last request.
        paths: Where to it was sent.
    """

    def __init__(self) -> None:
        self.status = 200
        self.hangs = False
        self.bodies: list[bytes] = []
        self.headers: dict[str, str] = {}
        self.paths: set[str] = set()
        self.spans: list[ReceivedSpan] = []
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*list(self._open))

    async def trace(self, request_id: str) -> ReceivedTrace:
        """The trace of a request, once it has come."""
        await eventually(lambda: any(span.attributes.get("gateway.request.id") == request_id for span in self.spans))
        (root,) = [span for span in self.spans if span.attributes.get("gateway.request.id") == request_id]
        return self._below(root)

    async def only_trace(self) -> ReceivedTrace:
        """The only request's."""
        await eventually(lambda: any(span.kind == SERVER for span in self.spans))
        (root,) = [span for span in self.spans if span.kind == SERVER]
        return self._below(root)

    def _below(self, root: ReceivedSpan) -> ReceivedTrace:
        children = [span for span in self.spans if span.trace == root.trace and span.parent == root.id]
        return ReceivedTrace(root, sorted(children, key=lambda span: span.began))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                await self._exchange(reader, writer)
        writer.close()
        self._open.discard(task)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, *rest = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.headers = {name.lower(): value.strip() for name, _, value in (entry.partition(":") for entry in rest)}
        self.paths.add(line)
        body = await reader.readexactly(int(self.headers["content-length"]))
        self.bodies.append(body)
        if self.hangs:
            await asyncio.sleep(3600)
        if self.status == 200:
            self._take(body)
        writer.write(b"HTTP/1.1 %d x\r\ncontent-length: 0\r\n\r\n" % self.status)
        await writer.drain()

    def _take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            reported = _values(resource.resource.attributes)
            self.spans += [_received(span, reported) for scope in resource.scope_spans for span in scope.spans]


def _received(span: WireSpan, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        kind=span.kind,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        state=span.trace_state,
        began=span.start_time_unix_nano,
        ended=span.end_time_unix_nano,
        status=span.status.code,
        attributes=_values(span.attributes),
        events={event.name: event.time_unix_nano for event in span.events},
        resource=resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
