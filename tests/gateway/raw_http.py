"""HTTP by hand: what really goes over the wire, and when."""

import asyncio
import time
from dataclasses import dataclass, field

from patience import HANG_SECONDS


@dataclass
class Answer:
    """One answer.

    Attributes:
        head: Status line and headers as they came.
        body: The body; of a chunked one the data.
        pieces: Time of arrival and bytes of every read, chunk framing included.
    """

    status: int
    head: bytes
    body: bytes
    pieces: list[tuple[float, bytes]] = field(default_factory=list)

    def header(self, name: str) -> str | None:
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return None


class Connection:
    """A client connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, seconds: float = HANG_SECONDS) -> Answer:
        """Read one answer; fails if it is not complete in time."""
        async with asyncio.timeout(seconds):
            head = await self.reader.readuntil(b"\r\n\r\n")
            found = Answer(int(head.split(b" ", 2)[1]), head, b"")
            if found.header("transfer-encoding") == "chunked":
                await self._chunked(found)
            else:
                found.body = await self.reader.readexactly(int(found.header("content-length") or 0))
        return found

    async def _chunked(self, found: Answer) -> None:
        while True:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = (await self.reader.readexactly(size + 2))[:-2]
            if not size:
                return
            found.pieces.append((time.monotonic(), data))
            found.body += data

    def abort(self) -> None:
        """Leave without a word."""
        self.writer.transport.abort()


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A request."""
    lines = [f"POST {path} HTTP/1.1", "host: gateway", "content-type: application/json", *headers]
    return "\r\n".join([*lines, f"content-length: {len(body)}"]).encode("latin-1") + b"\r\n\r\n" + body
