"""HTTP by hand, so that a connection can be kept, closed or left at any moment."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

_ADDRESS = "127.0.0.1"
_LIMIT = 1024 * 1024

Headers = Mapping[str, str]
_NONE: Headers = {}


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer.

    Attributes:
        status: HTTP status.
        headers: Names in lower case.
        body: All of it, without the framing.
    """

    status: int
    headers: Headers
    body: bytes


class Connection:
    """One to the gateway; ``await Connection.open(port)``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> "Connection":
        """Connect."""
        return cls(*await asyncio.open_connection(_ADDRESS, port, limit=_LIMIT))

    async def ask(self, method: str, path: str, headers: Headers = _NONE, body: bytes = b"") -> Answer:
        """One request, and its whole answer.

        Raises:
            OSError, EOFError: the connection broke.
        """
        await self.send(head(method, path, headers, len(body)) + body)
        return await self.answer()

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self) -> Answer:
        """Read one answer.

        Raises:
            OSError, EOFError: the connection broke.
        """
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        if headers.get("transfer-encoding") == "chunked":
            body = await self._chunks()
        else:
            body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(first.split(" ", 2)[1]), headers, body)

    async def some(self) -> bytes:
        """The next bytes; nothing at the end."""
        return await self._reader.read(65536)

    def leave(self) -> None:
        """Be gone, without a goodbye: what comes is answered with a reset."""
        self._writer.transport.abort()

    def close(self) -> None:
        """Close."""
        self._writer.close()

    async def _chunks(self) -> bytes:
        body = bytearray()
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            body += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readuntil(b"\r\n")
        return bytes(body)


def head(method: str, path: str, headers: Headers, length: int) -> bytes:
    """A request's head."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {_ADDRESS}", f"content-length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
