"""Requests and answers on sockets, as few steps as possible."""

import asyncio
import contextlib
import re

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ADDRESS = "127.0.0.1"

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)")
_CODE = re.compile(rb'"code": ?"([a-z_]+)"')
_LONGEST_HEAD = 2**20


def head(key: str, length: int | None, *lines: str, path: str = CHAT) -> bytes:
    """The head of a request whose body has so many bytes, or is chunked."""
    size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    given = (f"authorization: Bearer {key}", "content-type: application/json", size, *lines)
    return "\r\n".join((f"POST {path} HTTP/1.1", "host: gateway", *given, "", "")).encode()


async def opened(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A new connection."""
    return await asyncio.open_connection(ADDRESS, port, limit=_LONGEST_HEAD)


async def answered(reader: asyncio.StreamReader) -> str:
    """Status and error code of an answer, which is read to its end; or how the connection ended."""
    try:
        begun = await reader.readuntil(b"\r\n\r\n")
        status = begun[9:12].decode("latin-1")
        if (length := _LENGTH.search(begun.lower())) is not None:
            body = await reader.readexactly(int(length[1]))
            code = _CODE.search(body[-2000:]) if status != "200" else None
            return f"{status} {code[1].decode()}" if code else status
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await reader.readexactly(size + 2)
        await reader.readuntil(b"\r\n")
    except asyncio.IncompleteReadError as error:
        return "broken" if error.partial else "closed"
    except (ConnectionError, ValueError):
        return "reset"
    return status


async def asked(port: int, raw: bytes, seconds: float) -> str:
    """How a request on a connection of its own ends."""
    try:
        reader, writer = await opened(port)
    except OSError:
        return "refused"

    async def sent() -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(raw)
            await writer.drain()

    sending = asyncio.ensure_future(sent())
    try:
        async with asyncio.timeout(seconds):
            return await answered(reader)
    except TimeoutError:
        return "no answer"
    finally:
        sending.cancel()
        writer.transport.abort()
