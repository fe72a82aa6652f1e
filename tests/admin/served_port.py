"""An admin port behind a real socket, and a client that listens to it."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
from admin_port import AdminPort
from patience import HANG_SECONDS

from gateway.core.errors import BadRequest
from gateway.server.asgi_adapter import AsgiHandler
from gateway.server.http_server import HttpServer
from gateway.server.port import PortOptions


class ServedPort:
    """Serves until the end of its ``with``.

    Attributes:
        port: What is served.
        address: Host and port.
        url: Where.
        http: A client of it.
    """

    def __init__(self, port: AdminPort) -> None:
        self.port = port

    async def __aenter__(self) -> "ServedPort":
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        self._server = HttpServer(AsgiHandler(self.port.app), PortOptions(65536))
        await self._server.listen([listener])
        self.http = httpx.AsyncClient(base_url=self.url, timeout=HANG_SECONDS, verify=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
        for connection in list(self._server.port.connections):
            connection.transport.abort()
        await self._server.close()

    @contextlib.asynccontextmanager
    async def listen(self, query: str = "", token: str | None = None) -> AsyncIterator["Events"]:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        async with self.http.stream("GET", f"/admin/api/live{query}", headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            yield Events(answer)


class Events:
    """The server-sent events of one answer."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = _lines(answer)

    async def next(self) -> tuple[str, Any] | None:
        """Name and data of the next event; None when the stream has ended as it should."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(HANG_SECONDS):
            async for line in self._lines:
                if not line and fields:
                    assert fields.keys() == {"event", "data"}
                    return fields["event"], json.loads(fields["data"])
                if line and not line.startswith(":"):
                    name, _, value = line.partition(": ")
                    fields[name] = value
        assert not fields
        return None

    async def next_requests(self) -> tuple[list[str], int]:
        """Ids of the next event with requests, and how many were left out."""
        while event := await self.next():
            name, data = event
            if name == "requests":
                return [row["id"] for row in data["requests"]], data["left_out"]
        raise AssertionError("the stream has ended")

    async def end(self) -> None:
        """Wait until it ends."""
        while await self.next():
            pass


async def _lines(answer: httpx.Response) -> AsyncIterator[str]:
    """As events have them: unlike httpx, which ends lines at characters of a text, too."""
    waiting = b""
    async for piece in answer.aiter_bytes():
        *lines, waiting = (waiting + piece).split(b"\n")
        for line in lines:
            yield line.decode()


class Journal:
    """Stands for ``ExplainClient``, with requests that a test writes down.

    Attributes:
        asked: The questions it got.
        failure: Raised instead of answering.
    """

    def __init__(self) -> None:
        self.asked: list[Mapping[str, str]] = []
        self.failure: Exception | None = None
        self._rows: list[dict[str, Any]] = []

    def add(self, *ids: str, **more: Any) -> None:
        for number, each in enumerate(ids, len(self._rows)):
            self._rows.append({"id": each, "at": 1e9 + number / 1000, "model": "m", "source": "web"} | more)

    def forget(self) -> None:
        """What was written down is too old."""
        self._rows.clear()

    async def ask(self, question: str, arguments: Mapping[str, str]) -> bytes:
        assert question == "requests"
        self.asked.append(arguments)
        await asyncio.sleep(0)
        if self.failure:
            raise self.failure
        wanted = dict(arguments)
        limit = int(wanted.pop("limit"))
        if wanted.get("reason") == "nonsense":
            raise BadRequest("There is no reason 'nonsense'.", param="reason", code="invalid_value")
        found = [row for row in reversed(self._rows) if wanted.items() <= row.items()]
        return json.dumps({"requests": found[:limit], "more": len(found) > limit}).encode()


async def eventually(holds: Any) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(HANG_SECONDS):
        while not holds():
            await asyncio.sleep(0.001)
