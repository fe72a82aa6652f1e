"""The least that a Python proxy can do: ``floor PORT ENGINE...``.

Callbacks on uvloop and httptools, without a task per request: a request is read, its body is parsed as JSON, and it is
sent to the engines in turn on a kept connection; each piece of the response is written as it comes. Nothing is checked,
decided, limited or counted.
"""

import asyncio
import sys
from collections import deque
from typing import cast
from urllib.parse import urlsplit

import httptools
import orjson
import uvloop

_NOT_PASSED_ON = {b"host", b"connection", b"content-length", b"transfer-encoding", b"server", b"date"}


class Engine:
    """An engine and its idle connections."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = str(parts.hostname), parts.port
        self.idle: list[ToEngine] = []


class ToEngine(asyncio.Protocol):
    """A connection to an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, client: "FromClient", head: bytes, body: bytes) -> None:
        self._client = client
        self._headers: list[tuple[bytes, bytes]] = []
        self._head = b""
        self._chunked = False
        self._parser = httptools.HttpResponseParser(self)
        self._transport.writelines((head, body))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        lines = [b"HTTP/1.1 %d OK\r\n" % self._parser.get_status_code()]
        length = next((value for name, value in self._headers if name == b"content-length"), None)
        lines += [b"%b: %b\r\n" % header for header in self._headers if header[0] not in _NOT_PASSED_ON]
        self._chunked = length is None
        lines.append(
            b"transfer-encoding: chunked\r\n\r\n" if length is None else b"content-length: %b\r\n\r\n" % length
        )
        self._head = b"".join(lines)

    def on_body(self, data: bytes) -> None:
        head, self._head = self._head, b""
        self._client.write(b"%b%x\r\n%b\r\n" % (head, len(data), data) if self._chunked else head + data)

    def on_message_complete(self) -> None:
        if self._chunked:
            self._client.write(b"0\r\n\r\n")
        self._engine.idle.append(self)


class FromClient(asyncio.Protocol):
    """A connection of a client."""

    def __init__(self, engines: deque[Engine]) -> None:
        self._engines = engines

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        orjson.loads(body)
        lines = [b"POST %b HTTP/1.1\r\nhost: engine\r\ncontent-length: %d\r\n" % (self._url, len(body))]
        lines += [b"%b: %b\r\n" % header for header in self._headers if header[0] not in _NOT_PASSED_ON]
        head = b"".join((*lines, b"\r\n"))
        self._engines.rotate()
        engine = self._engines[0]
        if engine.idle:
            engine.idle.pop().send(self, head, body)
        else:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(engine, head, body))

    async def _connect(self, engine: Engine, head: bytes, body: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: ToEngine(engine), engine.host, engine.port)
        connection.send(self, head, body)


async def serve(port: int, engines: deque[Engine]) -> None:
    """Serve until the process ends."""
    server = await asyncio.get_running_loop().create_server(lambda: FromClient(engines), "127.0.0.1", port)
    await server.serve_forever()


uvloop.run(serve(int(sys.argv[1]), deque(map(Engine, sys.argv[2:]))))
