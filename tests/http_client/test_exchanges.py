"""The HTTP client against servers that send, byte for byte, what they are given; on uvloop, as in production."""

import asyncio
import contextlib
import socket
import ssl
from types import SimpleNamespace

import pytest
from http_client.reading import reading
from patience import HANG_SECONDS

from gateway.http_client import Broken, HttpClient, NotConnected, Origin, TransportError
from gateway.http_client import client as client_module

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Server:
    """Answers every request on a connection with the next script; counts connections, and those that were closed."""

    def __init__(self, *scripts, close=False):
        self.scripts = list(scripts)
        self.close = close
        self.connections = self.left = 0
        self.requests = []
        self.closed_early = asyncio.Event()
        self.writers = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.origin = Origin.parse(f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}")
        return self

    async def __aexit__(self, *_):
        self.server.close()
        for writer in self.writers:
            writer.close()

    async def serve(self, reader, writer):
        self.connections += 1
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except (ConnectionError, asyncio.IncompleteReadError):
                    self.left += 1
                    return
                length = next((int(x[15:]) for x in head.split(b"\r\n") if x.startswith(b"content-length:")), 0)
                self.requests.append(head + await reader.readexactly(length))
                script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
                for step in script if isinstance(script, list) else [script]:
                    if isinstance(step, float):
                        await asyncio.sleep(step)
                    elif step is None:
                        if not await reader.read(1):
                            self.closed_early.set()
                        return
                    else:
                        writer.write(step)
                        await writer.drain()
                if self.close:
                    writer.close()
                    return


async def ask(client, origin, method="POST", body=b"{}"):
    return await client.fetch(method, origin, "/x", [(b"a", b"1")], body, timeout_seconds=60)


async def closed(server, count):
    """Wait until the client has closed so many connections."""
    async with asyncio.timeout(HANG_SECONDS):
        while server.left != count:
            await asyncio.sleep(0.01)


@pytest.fixture
def clock(monkeypatch):
    """The client's clock, which stands still."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(client_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
async def client():
    client = HttpClient(30.0)
    yield client
    client.close()


async def test_request_is_written_as_asked_for(client):
    async with Server(OK) as server:
        origin = Origin.parse(f"http://127.0.0.1:{server.origin.port}/base/")
        await client.fetch("POST", origin, "/x?q=1", [(b"a", b"1"), (b"a", b"\xe9")], b"body", timeout_seconds=5)
        await client.fetch("GET", origin, "/y", [], timeout_seconds=5)
        host = f"host: 127.0.0.1:{origin.port}\r\n".encode()
        assert server.requests == [
            b"POST /base/x?q=1 HTTP/1.1\r\n" + host + b"a: 1\r\na: \xe9\r\ncontent-length: 4\r\n\r\nbody",
            b"GET /base/y HTTP/1.1\r\n" + host + b"\r\n",
        ]


async def test_connection_serves_one_request_after_another(client):
    async with Server(OK) as server:
        for _ in range(5):
            assert await ask(client, server.origin) == (200, b"ok")
        assert server.connections == 1


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", b"abc"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nx-trailer: 1\r\n\r\n", b"ab"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx", b"x"),
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
    ids=["chunked", "trailer", "100", "103", "204"],
)
async def test_answers_in_their_forms_leave_the_connection_usable(client, answer, body):
    async with Server(answer) as server:
        assert (await ask(client, server.origin))[1] == body
        assert (await ask(client, server.origin))[1] == body
        assert server.connections == 1


async def test_answer_cut_into_single_bytes_is_the_same_answer(client):
    text = b"HTTP/1.1 200 OK\r\nX-Name: v\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    async with Server([part for byte in text for part in (bytes([byte]), 0.0005)]) as server:
        async with reading(client, "POST", server.origin, "/", [], b"") as response:
            assert response.status == 200
            assert (b"x-name", b"v") in response.headers
            assert b"".join([piece async for piece in pieces(response)]) == b"abc"


async def pieces(response):
    while (piece := await response.read()) is not None:
        yield piece


async def test_answer_without_a_length_ends_with_the_connection(client):
    async with Server(b"HTTP/1.1 200 OK\r\n\r\nto the end", close=True) as server:
        assert await ask(client, server.origin) == (200, b"to the end")
        assert await ask(client, server.origin) == (200, b"to the end")
        assert server.connections == 2


@pytest.mark.parametrize("header", [b"connection: close\r\n", b""])
async def test_connection_that_is_to_be_closed_is_not_used_again(client, header):
    version = b"HTTP/1.1" if header else b"HTTP/1.0"
    async with Server(version + b" 200 OK\r\ncontent-length: 2\r\n" + header + b"\r\nok") as server:
        await ask(client, server.origin)
        await ask(client, server.origin)
        assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnot-a-size\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 300_000 + b"\r\ncontent-length: 0\r\n\r\n",
    ],
    ids=["nothing", "head", "length", "chunk", "no last chunk", "garbage", "bad size", "two lengths", "huge head"],
)
async def test_answer_that_is_cut_off_or_no_http_is_broken(client, answer):
    async with Server(answer, close=True) as server:
        with pytest.raises(Broken):
            await ask(client, server.origin)


async def test_refused_connection_sent_nothing(client):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        with pytest.raises(NotConnected):
            await ask(client, Origin.parse(f"http://127.0.0.1:{sock.getsockname()[1]}"))


async def test_unknown_host_sent_nothing(client):
    with pytest.raises(NotConnected):
        await ask(client, Origin.parse("http://no-such-host.invalid:1"))


async def test_connection_that_is_not_accepted_times_out():
    client = HttpClient(0.2)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        address = sock.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        with pytest.raises(NotConnected, match=r"0\.2 seconds"):
            await ask(client, Origin.parse(f"http://127.0.0.1:{address[1]}"))
        for filler in fillers:
            filler.close()


async def test_silence_ends_a_short_exchange(client):
    async with Server([None]) as server:
        with pytest.raises(TransportError, match=r"0\.1 seconds"):
            await client.fetch("POST", server.origin, "/", [], b"", timeout_seconds=0.1)
        await asyncio.wait_for(server.closed_early.wait(), HANG_SECONDS)


@pytest.mark.parametrize("script", [[None], [b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\npart", None]])
async def test_cancelled_exchange_closes_the_connection_at_once(client, script):
    async with Server(script) as server:
        task = asyncio.create_task(ask(client, server.origin))
        async with asyncio.timeout(HANG_SECONDS):
            while not server.requests:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # what the server sends of its response comes
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.closed_early.wait(), HANG_SECONDS)


async def test_exchange_left_half_read_closes_the_connection(client):
    async with Server([b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\npart", None]) as server:
        async with reading(client, "POST", server.origin, "/", [], b"") as response:
            assert await response.read() == b"part"
        await asyncio.wait_for(server.closed_early.wait(), HANG_SECONDS)


async def test_connection_idle_for_too_long_is_not_used_again(client, monkeypatch):
    monkeypatch.setattr(client_module, "_IDLE_SECONDS", 0.05)
    async with Server(OK) as server:
        await ask(client, server.origin)
        await asyncio.sleep(0.1)
        await ask(client, server.origin)
        assert server.connections == 2


async def test_connections_of_a_peak_are_closed_while_one_goes_on_being_used(client, clock):
    async with Server([0.05, OK]) as server:
        await asyncio.gather(*(ask(client, server.origin) for _ in range(8)))
        assert server.connections == 8
        for clock.now in (3.0, 6.0):
            await ask(client, server.origin)
        await closed(server, 7)
        clock.now = 9.0
        await ask(client, server.origin)
        assert server.connections == 8


async def test_connection_that_was_in_use_when_its_origin_was_forgotten_is_closed_later(client, clock):
    async with Server(OK) as old, Server(OK) as new:
        async with reading(client, "GET", old.origin, "/x", []) as response:
            client.forget(old.origin)
            while await response.read() is not None:
                pass
        clock.now = 5.0
        await ask(client, new.origin)
        await closed(old, 1)


async def test_unrequested_bytes_close_an_idle_connection(client):
    async with Server([OK, 0.05, OK]) as server:
        await ask(client, server.origin)
        await closed(server, 1)
        await ask(client, server.origin)
        assert server.connections == 2


async def test_connection_the_server_closed_while_idle_is_not_used_again(client):
    async with Server(OK, close=True) as server:
        await ask(client, server.origin)
        await asyncio.sleep(0.1)
        assert await ask(client, server.origin) == (200, b"ok")


async def test_slow_reader_holds_the_server_back_and_loses_nothing(client):
    size = 32 * 2**20
    sent = 0

    async def serve(reader, writer):
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        for _ in range(size // 65536):
            writer.write(b"x" * 65536)
            await writer.drain()
            sent += 65536
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        origin = Origin.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with reading(client, "POST", origin, "/", [], b"") as response:
            await asyncio.sleep(0.3)
            assert sent < size / 2
            read = 0
            while (piece := await response.read()) is not None:
                read += len(piece)
        assert read == size


async def test_untrusted_certificate_is_refused(client, tmp_path):
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made = await asyncio.create_subprocess_exec(
        *command, "-keyout", str(key), "-out", str(cert), stderr=asyncio.subprocess.DEVNULL
    )
    assert await made.wait() == 0
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)

    async def serve(reader, writer):
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NotConnected, match="certificate"):
            await ask(client, Origin.parse(f"https://localhost:{port}"))


async def test_many_exchanges_at_once_each_get_their_own_answer(client):
    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(0.01)
                path = head.split(b" ")[1]
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(path), path))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        origin = Origin.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        answers = await asyncio.gather(
            *(client.fetch("GET", origin, f"/{n}", [], timeout_seconds=30) for n in range(90))
        )
        assert answers == [(200, f"/{n}".encode()) for n in range(90)]
        client.close()
