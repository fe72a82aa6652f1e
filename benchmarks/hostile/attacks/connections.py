"""Attacks by connections, heads and unfinished requests rather than by what a body says."""

import asyncio
import contextlib
import gzip
import socket
from collections import Counter
from collections.abc import Awaitable, Callable

from benchmarks.hostile.attacks.attack import FULL, Attack, Run, Target, chat, message, repeated, sending
from benchmarks.hostile.wire import ADDRESS, CHAT, answered, asked, head, opened

_MIB = 2**20
_MOST_ROUNDS = 100_000
_BURST = 100
_BURST_SECONDS = 1.0
_LONGEST_SECONDS = 60.0

One = Callable[[Target, Counter[str]], Awaitable[None]]


def _again(at_a_time: int, one: One, pause: float = 0.0) -> Run:
    """So many at a time, each again when it is over."""

    async def loop(target: Target, ends: Counter[str]) -> None:
        for _ in range(_MOST_ROUNDS):
            try:
                await one(target, ends)
            except (OSError, EOFError) as error:
                ends[type(error).__name__] += 1
            await asyncio.sleep(pause)

    async def run(target: Target, ends: Counter[str]) -> None:
        await asyncio.gather(*(loop(target, ends) for _ in range(at_a_time)))

    return run


def _idle(target: Target) -> Run:
    """Connections that send nothing, until they are closed; then they are made anew."""

    def made() -> list[socket.socket]:
        socks = []
        for _ in range(target.idle):
            with contextlib.suppress(OSError):
                socks.append(socket.create_connection((ADDRESS, target.port), 5))
        return socks

    async def one(target: Target, ends: Counter[str]) -> None:
        socks = await asyncio.to_thread(made)
        ends["opened"] += len(socks)
        try:
            for _ in range(int(_LONGEST_SECONDS)):
                await asyncio.sleep(1)
                for sock in [sock for sock in socks if (end := _end_of(sock)) and not ends.update([end])]:
                    socks.remove(sock)
                    sock.close()
        finally:
            for sock in socks:
                sock.close()

    return _again(1, one)


def _end_of(sock: socket.socket) -> str:
    """How a connection ended; empty if it has not."""
    try:
        begun = sock.recv(12, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return ""
    except OSError:
        return "reset"
    return begun[9:].decode("latin-1") or "closed"


def _slow(target: Target) -> Run:
    """Requests of which a byte arrives each second."""

    async def one(target: Target, ends: Counter[str]) -> None:
        reader, writer = await opened(target.port)

        async def send() -> None:
            raw = head(target.key, 100) + b"x" * 100
            for at in range(len(raw)):
                writer.write(raw[at : at + 1])
                await asyncio.sleep(1)

        sender = asyncio.ensure_future(send())
        try:
            ends[await answered(reader)] += 1
        finally:
            sender.cancel()
            writer.transport.abort()

    return _again(target.slow, one, 1.0)


def _unfinished(target: Target) -> Run:
    """Bodies of 16 MiB whose last bytes do not come."""
    raw = head(target.key, FULL) + b"[" * (FULL - _MIB)

    async def one(target: Target, ends: Counter[str]) -> None:
        ends[await asked(target.port, raw, _LONGEST_SECONDS)] += 1

    return _again(16, one, 0.5)


def _endless(target: Target) -> Run:
    """Chunked bodies without an end."""
    begin, piece = head(target.key, None), b"10000\r\n" + b"f" * 65536 + b"\r\n"

    async def one(target: Target, ends: Counter[str]) -> None:
        reader, writer = await opened(target.port)

        async def send() -> None:
            with contextlib.suppress(ConnectionError):
                writer.write(begin)
                for _ in range(1_000_000):
                    writer.write(piece)
                    await writer.drain()

        sender = asyncio.ensure_future(send())
        try:
            ends[await answered(reader)] += 1
        finally:
            sender.cancel()
            writer.transport.abort()

    return _again(8, one)


def _tiny_chunks(target: Target) -> Run:
    """A body in chunks of a byte."""
    raw = head(target.key, None) + b"".join(b"1\r\n%c\r\n" % byte for byte in chat(messages=message(b"a" * 2_000_000)))
    raw += b"0\r\n\r\n"

    async def one(target: Target, ends: Counter[str]) -> None:
        ends[await asked(target.port, raw, _LONGEST_SECONDS)] += 1

    return _again(2, one)


def _unread(member: bytes, at_a_time: int) -> Callable[[Target], Run]:
    """Streams that their client does not read."""

    def make(target: Target) -> Run:
        body = chat(b'"stream":true', member)
        raw = head(target.key, len(body)) + body

        async def one(target: Target, ends: Counter[str]) -> None:
            loop = asyncio.get_running_loop()
            with socket.socket() as sock:
                sock.setblocking(False)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                await loop.sock_connect(sock, (ADDRESS, target.port))
                await loop.sock_sendall(sock, raw)
                ends["opened"] += 1
                await asyncio.sleep(_LONGEST_SECONDS)

        return _again(at_a_time, one)

    return make


def _held(member: bytes, at_a_time: int) -> Callable[[Target], Run]:
    """Streams that an engine answers slowly, with a large body each: opened until so many are open."""

    def make(target: Target) -> Run:
        body = chat(member, b'"stream":true,"x_hold":true')
        raw = head(target.key, len(body)) + body

        async def one(target: Target, ends: Counter[str]) -> None:
            reader, writer = await opened(target.port)
            try:
                writer.write(raw)
                await writer.drain()
                ends[(await reader.readuntil(b"\r\n"))[9:12].decode("latin-1")] += 1
                await asyncio.sleep(_LONGEST_SECONDS)
            finally:
                writer.transport.abort()

        return _again(at_a_time, one)

    return make


def _pipelined(many: int, *lines: str, body: bytes = chat(), key: str = "") -> Callable[[Target], Run]:
    """Very many requests in one go on one connection; answers are read and counted by their number."""

    def make(target: Target) -> Run:
        raw = (head(key or target.key, len(body), *lines) + body) * many

        async def one(target: Target, ends: Counter[str]) -> None:
            reader, writer = await opened(target.port)

            async def send() -> None:
                with contextlib.suppress(ConnectionError):
                    writer.write(raw)
                    await writer.drain()

            sender = asyncio.ensure_future(send())
            try:
                async with asyncio.timeout(_LONGEST_SECONDS):
                    while (end := await answered(reader)) not in ("closed", "broken", "reset"):
                        ends[end] += 1
                    ends[end] += 1
            finally:
                sender.cancel()
                writer.transport.abort()

        return _again(2, one)

    return make


def _heads(*raws: Callable[[Target], bytes]) -> Callable[[Target], Run]:
    """Raw requests, each on a connection of its own."""

    def make(target: Target) -> Run:
        made = [raw(target) for raw in raws]

        async def one(target: Target, ends: Counter[str]) -> None:
            for raw in made:
                ends[await asked(target.port, raw, _LONGEST_SECONDS)] += 1

        return _again(4, one)

    return make


def _with_query(size: int) -> Callable[[Target], bytes]:
    def made(target: Target) -> bytes:
        body = chat()
        return head(target.key, len(body), path=f"{CHAT}?a={'a' * size}") + body

    return made


def _left(target: Target) -> Run:
    """Large requests whose client leaves at once."""
    body = chat(messages=message(repeated(b"some words ", FULL - 4096, b"")))
    raw = head(target.key, len(body)) + body

    async def one(target: Target, ends: Counter[str]) -> None:
        _, writer = await opened(target.port)
        writer.write(raw)
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(1):
                await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()
        ends["left"] += 1

    return _again(4, one)


def _burst(request: bytes, size: int = 120_000, *, read: bool = True) -> Callable[[Target], Run]:
    """A hundred connections that send ``size`` bytes of requests without a key at the same moment; for ``read``, they
    read what comes back, else they stay open and read nothing."""

    def make(target: Target) -> Run:
        raw = request * max(size // len(request), 1)

        async def one(target: Target, ends: Counter[str]) -> None:
            loop = asyncio.get_running_loop()
            with socket.socket() as sock:
                sock.setblocking(False)
                await loop.sock_connect(sock, (ADDRESS, target.port))
                ends["opened"] += 1
                sender = asyncio.ensure_future(loop.sock_sendall(sock, raw))
                try:
                    if not read:
                        await asyncio.sleep(_LONGEST_SECONDS)
                    async with asyncio.timeout(_BURST_SECONDS):
                        while await loop.sock_recv(sock, _MIB):
                            pass
                except (ConnectionError, TimeoutError):
                    pass
                finally:
                    sender.cancel()
                    await asyncio.gather(sender, return_exceptions=True)

        return _again(_BURST, one)

    return make


def _get(*lines: str, path: str = "/healthz", method: str = "GET") -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "host: x", *lines, "", "")).encode()


_REFUSED = _get("content-length: 0", path=CHAT, method="POST")
_CHUNKED = _get("content-type: application/json", "transfer-encoding: chunked", path=CHAT, method="POST")
_SHORT_STRINGS = b'"x":[%b]' % repeated(b'"ab"')

ATTACKS = (
    Attack(
        "held-streams", "16 streams held open, with 3.3 million short strings in each body", _held(_SHORT_STRINGS, 16)
    ),
    Attack(
        "held-fill",
        "16 streams held open, with a string of 16 MiB in each body",
        _held(b'"x":"%b"' % (b"f" * (FULL - 4096)), 16),
    ),
    Attack("unread", "streams whose client does not read", _unread(b'"x_flood":true', 4)),
    Attack("left", "16 MiB of text whose client leaves at once", _left),
    Attack("unfinished", "16 bodies of 16 MiB whose last MiB does not come", _unfinished),
    Attack("endless", "bodies without an end", _endless),
    Attack("tiny-chunks", "a body of 2 MB in chunks of a byte", _tiny_chunks),
    sending(
        "gzip",
        "bodies of 1 GiB, compressed",
        lambda _: [gzip.compress(b"a" * (1024 * _MIB), 1)],
        "content-encoding: gzip",
        at_a_time=8,
    ),
    Attack("pipelined", "5,000 requests in one go on a connection", _pipelined(5000)),
    Attack("pipelined-refused", "20,000 requests in one go that are refused", _pipelined(20_000, body=b"{}")),
    Attack(
        "upgrade",
        "20,000 requests in one go, each with `upgrade`",
        _pipelined(20_000, "connection: upgrade", "upgrade: websocket"),
    ),
    Attack(
        "upgrade-h2c",
        "20,000 requests in one go, each with `upgrade: h2c`",
        _pipelined(20_000, "connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAAABk"),
    ),
    Attack(
        "wrong-keys",
        "5,000 requests in one go with keys that do not exist",
        _pipelined(5000, key="sk-wrong"),
    ),
    Attack(
        "header-large", "a header of 16 MiB", _heads(lambda target: head(target.key, 2, "x-a: " + "a" * FULL) + b"{}")
    ),
    Attack(
        "header-most",
        "headers of 60 KB in one",
        _heads(lambda target: head(target.key, len(chat()), "x-a: " + "a" * 60_000) + chat()),
    ),
    Attack(
        "headers-many",
        "7,000 short headers",
        _heads(lambda target: head(target.key, len(chat()), *(f"a{n}:" for n in range(7000))) + chat()),
    ),
    Attack(
        "cookies",
        "10,000 cookies",
        _heads(lambda target: head(target.key, len(chat()), "cookie: " + "a=b; " * 10_000) + chat()),
    ),
    Attack(
        "session-ids",
        "requests with session ids of 60 KB",
        _heads(lambda target: head(target.key, len(chat()), "x-session-id: " + "s" * 60_000) + chat()),
    ),
    Attack("url-large", "a query of 60 KB, and one of 16 MiB", _heads(_with_query(60_000), _with_query(FULL))),
    Attack(
        "burst-chunks",
        "100 connections without a key: 16,000 chunks of a byte each",
        _burst(_CHUNKED + b"1\r\nx\r\n" * 16_000 + b"0\r\n\r\n"),
    ),
    Attack(
        "burst-trailers",
        "the same: 20,000 trailers each",
        _burst(_CHUNKED + b"1\r\nx\r\n0\r\n" + b"a:\r\n" * 20_000 + b"\r\n"),
    ),
    Attack("burst-headers", "the same: two heads of 10,000 headers each", _burst(_get(*["a: b"] * 10_000))),
    Attack("burst-posts", "the same: 1,700 requests each that are refused", _burst(_REFUSED)),
    Attack("burst-gets", "the same: 3,600 requests each for `/healthz`", _burst(_get())),
    Attack("burst-paths", "the same: 4,000 requests each for a path that is not served", _burst(_get(path="/x"))),
    Attack("burst-old", "the same: 120 KB of requests of HTTP/1.0", _burst(b"GET / HTTP/1.0\r\n\r\n")),
    Attack(
        "burst-upgrades",
        "the same: 1,600 offers each of another protocol",
        _burst(_get("upgrade: h2c", "connection: upgrade")),
    ),
    Attack("burst-lines", "the same: 60,000 empty lines each", _burst(b"\r\n")),
    Attack(
        "burst-bodies",
        "the same: a body of 120 KB each",
        _burst(_get("content-length: 120000", path=CHAT, method="POST") + b"x" * 120_000),
    ),
    Attack(
        "unread-refusals",
        "100 connections that send refused requests, and read nothing",
        _burst(_REFUSED, 25 * _MIB, read=False),
    ),
    Attack(
        "unread-gets",
        "100 connections that send requests for `/healthz`, and read nothing",
        _burst(_get(), 25 * _MIB, read=False),
    ),
    Attack("slow", "1,000 requests that arrive byte by byte", _slow),
    Attack("idle", "10,000 connections that send nothing", _idle),
)
