"""An engine that sends exactly what a test gives it, byte by byte, and counts its connections."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

USAGE = b'{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}'
REPLY = b'{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"ok"}}]}'


@dataclass(frozen=True)
class Received:
    """A request as it came over the wire."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]


Answer = Callable[[asyncio.StreamWriter, Received], Awaitable[None]]


def response(body: bytes, *headers: str, status: str = "200 OK", content_type: str = "application/json") -> bytes:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status}", f"content-type: {content_type}", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def chunk(data: bytes) -> bytes:
    """A piece of a chunked answer."""
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class ScriptedEngine:
    """Healthy, with a model list and metrics; POST requests are recorded and answered by ``answer``.

    ``documents`` has the body of the response to GET by path.
    """

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.connections = 0
        self.metrics = ""
        self.metrics_status = "200 OK"
        self.models = b'{"object":"list","data":[{"id":"demo","object":"model","owned_by":"vllm"}]}'
        self.documents: dict[str, bytes] = {}
        self.answer: Answer = self.reply
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        self.drop_connections()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*list(self._open))

    def drop_connections(self) -> None:
        """Close every connection, with or without a request."""
        for writer in self._open.values():
            writer.transport.abort()

    def says(self, *pieces: bytes, pause: float = 0.0, then_close: bool = False) -> None:
        """Answer every POST with these bytes, each in a write of its own."""

        async def answer(writer: asyncio.StreamWriter, received: Received) -> None:
            for number, piece in enumerate(pieces):
                if number and pause:
                    await asyncio.sleep(pause)
                writer.write(piece)
                await writer.drain()
            if then_close:
                writer.close()

        self.answer = answer

    async def reply(self, writer: asyncio.StreamWriter, received: Received) -> None:
        writer.write(response(REPLY))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        # Cancelled by ``stop`` only; asyncio complains about handlers that end in any other way than by returning.
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while not writer.is_closing():
                await self._exchange(reader, writer)
        writer.close()
        del self._open[task]

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line, *rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = [(name, value.strip()) for name, _, value in (entry.partition(":") for entry in rest if entry)]
        length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
        received = Received(line, headers, await reader.readexactly(length))
        if line.startswith("POST"):
            self.received.append(received)
            await self.answer(writer, received)
        elif (document := self.documents.get(line.split(" ")[1])) is not None:
            writer.write(response(document))
        elif line.startswith("GET /metrics"):
            writer.write(response(self.metrics.encode(), status=self.metrics_status, content_type="text/plain"))
        else:
            writer.write(response(self.models if line.startswith("GET /v1/models") else b""))
        await writer.drain()
