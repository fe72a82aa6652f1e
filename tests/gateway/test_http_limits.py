"""The HTTP front by itself: how large a head may be, and what happens to what is not HTTP."""

import asyncio
import contextlib
import socket
import tracemalloc
from unittest.mock import Mock

import orjson
import pytest
from raw_http import Answer, Connection
from running_gateway import eventually

from gateway.server import client_connection as protocol
from gateway.server.asgi_adapter import AsgiHandler
from gateway.server.http_server import HttpServer, bound
from gateway.server.port import PortOptions

LIMIT = 1000


class Echo:
    """Answers with what it was asked: path, headers, size of the body. ``/stream`` waits for ``release`` inside it."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.asked: list[dict] = []
        self.gone = 0

    async def __call__(self, scope, receive, send) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone += 1
                return
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]]
        self.asked.append({"path": scope["path"], "headers": headers, "bytes": size})
        body = orjson.dumps(self.asked[-1])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        if scope["path"] == "/stream":
            await send({"type": "http.response.body", "body": body[:10], "more_body": True})
            await self.release.wait()
            body = body[10:]
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def echo():
    return Echo()


@pytest.fixture
async def server(echo, closing):
    """Its requests' heads may have ``LIMIT`` bytes."""
    server = HttpServer(AsgiHandler(echo), PortOptions(LIMIT))
    await server.listen([bound("server.port", "127.0.0.1", 0)])
    closing.push_async_callback(server.close)
    return server


@pytest.fixture
async def connect(server, closing):
    """Opens connections to the server."""
    port = server._listeners[0].sockets[0].getsockname()[1]

    async def connect() -> Connection:
        connection = await Connection.open(port)
        closing.callback(connection.abort)
        return connection

    return connect


def head(size: int, body: int = 0, path: str = "/", method: str = "POST") -> bytes:
    """A request's head of exactly ``size`` bytes."""
    text = f"{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {body}\r\nx-fill: "
    return (text + "f" * (size - len(text) - 4) + "\r\n\r\n").encode()


async def refused(connection: Connection, status: int, code: str) -> str:
    """Check that the answer is an error in the API's shape, and the last thing said; returns its message."""
    answer = await connection.answer()
    assert answer.status == status
    assert answer.header("content-type") == "application/json"
    assert answer.header("connection") == "close"
    assert answer.header("x-gateway-error") == code
    error = orjson.loads(answer.body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, code)
    assert await connection.reader.read() == b""
    return error["message"]


async def accepted(connection: Connection) -> dict:
    answer: Answer = await connection.answer()
    assert answer.status == 200, answer.body
    return orjson.loads(answer.body)


async def test_a_head_of_the_limit_passes_and_one_byte_more_does_not(connect):
    connection = await connect()
    await connection.send(head(LIMIT))
    await accepted(connection)
    await connection.send(head(LIMIT + 1))
    message = await refused(connection, 431, "headers_too_large")
    assert "1000 bytes" in message
    assert "server.max_header_bytes" in message


@pytest.mark.parametrize("piece", [1, 7, 999])
async def test_the_limit_is_the_same_however_the_head_is_cut(connect, piece):
    for size, fits in ((LIMIT, True), (LIMIT + 1, False)):
        connection = await connect()
        raw = head(size)
        for at in range(0, size, piece):
            await connection.send(raw[at : at + piece])
            await asyncio.sleep(0)
        if fits:
            await accepted(connection)
        else:
            await refused(connection, 431, "headers_too_large")


def crowded(*last: bytes) -> bytes:
    """A request's head with more than 200 headers; ``last`` are the last ones."""
    return b"POST / HTTP/1.1\r\nhost: a\r\n" + b"a:\r\n" * 210 + b"".join(line + b"\r\n" for line in last) + b"\r\n"


@pytest.mark.parametrize("piece", [7, 10**6])
async def test_a_request_with_too_many_headers_is_refused_and_the_next_one_answered(connect, echo, piece):
    connection = await connect()
    inner = b"GET /inner HTTP/1.1\r\nhost: a\r\n\r\n"  # bytes of a body are no request
    raw = crowded(b"content-length: %d" % len(inner)) + inner + crowded() + head(100)
    for at in range(0, len(raw), piece):
        await connection.send(raw[at : at + piece])
        await asyncio.sleep(0)
    for _ in range(2):
        answer = await connection.answer()
        assert (answer.status, answer.header("x-gateway-error")) == (431, "headers_too_large")
        assert b"200 headers" in answer.body
    await accepted(connection)
    assert [each["path"] for each in echo.asked] == ["/"]


@pytest.mark.parametrize(
    "last", [b"transfer-encoding: gzip, chunked", b"Transfer-Encoding: chunked", b"upgrade: h2c\r\nconnection: upgrade"]
)
async def test_behind_too_many_headers_nothing_follows_a_body_whose_end_is_not_certain(connect, echo, last):
    connection = await connect()
    await connection.send(crowded(last) + head(100))
    await refused(connection, 431, "headers_too_large")
    assert echo.asked == []


async def test_bodies_are_not_counted_and_every_head_is_counted_anew(connect, echo):
    connection = await connect()
    for _ in range(3):
        await connection.send(head(LIMIT, body=300_000) + b"b" * 300_000)
        assert (await accepted(connection))["bytes"] == 300_000
    await connection.send((head(LIMIT, body=5000) + b"b" * 5000) * 4)
    for _ in range(4):
        assert (await accepted(connection))["bytes"] == 5000
    chunked = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nb\r\n" * 2000 + b"0\r\n\r\n"
    await connection.send(chunked)
    assert (await accepted(connection))["bytes"] == 2000


async def test_a_large_head_behind_a_pipelined_request_is_refused_after_its_answer(connect, echo):
    connection = await connect()
    await connection.send(head(LIMIT, body=2000) + b"b" * 2000 + head(LIMIT + 1) + head(100))
    assert (await accepted(connection))["bytes"] == 2000
    await refused(connection, 431, "headers_too_large")
    assert len(echo.asked) == 1


@pytest.mark.parametrize("drip", [b"a: b\r\n" * 100, b"v" * 600, b"\tx\r\n x\r\n" * 60])
async def test_a_drip_of_headers_without_end_is_cut_off(connect, drip):
    connection = await connect()
    await connection.send(b"POST / HTTP/1.1\r\nhost: a\r\nx: ")
    with contextlib.suppress(ConnectionError):
        for _ in range(20):
            await connection.send(drip)
            await asyncio.sleep(0)
    answer = await connection.answer()
    assert answer.status in (400, 431)


async def test_a_head_without_end_grows_no_memory(connect):
    connection = await connect()
    await connection.send(b"POST / HTTP/1.1\r\nhost: a\r\nx: ")
    await asyncio.sleep(0.01)
    tracemalloc.start()
    try:
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                await connection.send(b"v" * 100_000)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


async def test_trailers_count_as_headers_do_and_never_become_headers(connect, echo):
    chunked = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nb\r\n0\r\n"
    connection = await connect()
    await connection.send(chunked + b"authorization: Bearer smuggled\r\nx-tenant-id: other\r\n\r\n")
    assert [name for name, _ in (await accepted(connection))["headers"]] == ["host", "transfer-encoding"]
    await connection.send(chunked)
    with contextlib.suppress(ConnectionError):
        for _ in range(20):
            await connection.send(b"x: " + b"v" * 100 + b"\r\n")
            await asyncio.sleep(0)
    await refused(connection, 431, "headers_too_large")
    assert echo.gone == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"not http\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST / HTTP/1.1\r\nhost: a\r\nx: a\nauthorization: b\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\nx: a\rb: c\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\nx: a\r\n folded\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\nx: a\0b\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\nx : a\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nG\r\nx",
        b"POST /\xff HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST / HTTP/9.9\r\nhost: a\r\n\r\n",
    ],
)
async def test_what_is_not_http_gets_an_error_in_the_apis_shape(connect, echo, raw):
    connection = await connect()
    await connection.send(raw)
    await refused(connection, 400, "malformed_http")
    assert not echo.asked


async def test_a_refusal_is_never_written_into_another_answer(connect, echo):
    connection = await connect()
    await connection.send(head(100, path="/stream"))
    await connection.reader.readuntil(b"\r\n\r\n")
    assert len(await connection.reader.readexactly(10)) == 10
    await connection.send(b"not http\r\n\r\n")
    await asyncio.sleep(0.05)
    echo.release.set()
    rest, separator, refusal = (await connection.reader.read()).partition(b"HTTP/1.1 400 ")
    assert rest.endswith(b"}")
    assert separator
    assert b"x-gateway-error: malformed_http" in refusal


async def test_a_client_that_is_still_sending_reads_the_refusal(connect):
    connection = await connect()
    connection.writer.write(head(1_000_000))
    await refused(connection, 431, "headers_too_large")


@pytest.mark.parametrize(
    "begun", [b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 300 + b"BAD\0\r\n\r\n", None], ids=["head", "chunks"]
)
async def test_a_client_that_is_refused_while_it_is_not_read_can_send_the_rest_and_reads_the_refusal(connect, begun):
    connection = await connect()
    connection.writer.write(begun or chunks(protocol.MAX_TINY_CHUNKS + 1, 1))
    sending = asyncio.create_task(connection.send(b"x" * 20_000_000))
    answer = await connection.answer()
    while answer.status == 200:
        answer = await connection.answer()
    assert answer.status == 400
    await asyncio.wait_for(sending, 1.5)  # before the connection is closed


async def test_empty_lines_in_a_chunk_make_no_more_chunks_of_it(connect):
    connection = await connect()
    await connection.send(chunks(1, 4).replace(b"4\r\nxxxx", b"%x\r\n" % 100_000 + b"\r\n\r\n" * 25_000) + b"0\r\n\r\n")
    assert (await accepted(connection))["bytes"] == 100_000


async def test_what_follows_the_last_request_is_read_and_does_not_cut_its_answer_off(connect, echo):
    connection = await connect()
    await connection.send(head(100, path="/stream").replace(b"x-fill: ", b"connection: close\r\nx-fill: "))
    for _ in range(10):
        await connection.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 1000)
        await asyncio.sleep(0.05)
    echo.release.set()
    assert (await connection.reader.read()).endswith(b"}")
    assert len(echo.asked) == 1


async def test_a_connection_whose_handler_fails_in_a_later_turn_ends(closing):
    class Fails:
        tasks = ()

        def __call__(self, exchange):
            if exchange.method == "POST":
                return Mock(body_received=Mock(side_effect=RuntimeError))
            return exchange.respond(200, [], b"ok")

    server = HttpServer(Fails(), PortOptions(LIMIT))
    await server.listen([bound("server.port", "127.0.0.1", 0)])
    closing.push_async_callback(server.close)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    connection = await Connection.open(server._listeners[0].sockets[0].getsockname()[1])
    await connection.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 1000 + head(100, body=1) + b"x")
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(connection.reader.read(), 5)
    await eventually(lambda: not server.port.connections)


@pytest.mark.parametrize("cut", [0, 60, 130, 175])
async def test_an_upgrade_to_http_2_is_ignored_and_loses_neither_the_body_nor_the_next_request(connect, cut):
    # As Java's client sends it: https://docs.oracle.com/en/java/javase/21/docs/api/java.net.http/
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
    raw = b"POST /a?b HTTP/1.1\r\nhost: a\r\n" + upgrade + b"Content-Length: 2000\r\n\r\n" + b"b" * 2000
    connection = await connect()
    for _ in range(2):
        await connection.send(raw[:cut])
        await asyncio.sleep(0.01)
        await connection.send(raw[cut:])
        asked = await accepted(connection)
        assert (asked["path"], asked["bytes"]) == ("/a", 2000)
        assert ["content-length", "2000"] in asked["headers"]


@pytest.mark.parametrize(("target", "status"), [("a:1", 400), ("/", 200)])
async def test_connect_is_answered_and_ends_the_connection(connect, target, status):
    connection = await connect()
    await connection.send(f"CONNECT {target} HTTP/1.1\r\nhost: a\r\n\r\nbytes of a tunnel".encode())
    answer = await connection.answer()
    assert (answer.status, answer.header("connection")) == (status, "close")
    assert await connection.reader.read() == b""


@pytest.mark.parametrize("cut", [None, 1000, 33_333])
async def test_any_number_of_pipelined_upgrade_requests_are_answered(connect, echo, caplog, cut):
    upgrade = b"GET /%d HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    raw = b"".join(upgrade % number for number in range(3000))
    connection = await connect()
    for at in range(0, len(raw), cut or len(raw)):
        connection.writer.write(raw[at : at + (cut or len(raw))])
        await asyncio.sleep(0)
    for number in range(3000):
        asked = await accepted(connection)
        assert (asked["path"], asked["headers"]) == (f"/{number}", [["host", "a"], ["connection", "upgrade"]])
    assert len(echo.asked) == 3000
    assert not caplog.records


async def test_a_client_that_pipelines_faster_than_it_is_answered_is_read_no_further(closing):
    waits, release = [], asyncio.Event()

    async def app(scope, receive, send) -> None:
        waits.append(scope["path"])
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    server = HttpServer(AsgiHandler(app), PortOptions(LIMIT))
    await server.listen([bound("server.port", "127.0.0.1", 0)])
    closing.push_async_callback(server.close)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    client.connect(server._listeners[0].sockets[0].getsockname())
    client.setblocking(False)
    raw, sent, quiet = head(100, method="GET") * 200_000, 0, 0
    while quiet < 20:  # until the buffers of the system are full
        try:
            sent += client.send(raw[sent : sent + 65536])
            quiet = 0
        except BlockingIOError:
            quiet += 1
        await asyncio.sleep(0.01)
    assert waits == ["/"]  # the second one is not even parsed
    assert sent < len(raw)
    client.close()
    release.set()


class AtOnce:
    """Answers each request in the call that begins it."""

    def __init__(self) -> None:
        self.tasks = ()
        self.answered: list[str] = []

    def __call__(self, exchange) -> None:
        self.answered.append(exchange.path)
        exchange.start(200, [(b"content-length", b"2")])
        exchange.write(b"ok", more=False)


async def test_others_are_served_between_the_requests_that_one_client_pipelines(closing):
    handler = AtOnce()
    server = HttpServer(handler, PortOptions(LIMIT))
    await server.listen([bound("server.port", "127.0.0.1", 0)])
    closing.push_async_callback(server.close)
    port = server._listeners[0].sockets[0].getsockname()[1]
    busy, other = await Connection.open(port), await Connection.open(port)
    closing.callback(busy.abort)
    closing.callback(other.abort)
    many = [f"/{number}" for number in range(2000)]
    busy.writer.write(b"".join(head(100, path=path, method="GET") for path in many))
    other.writer.write(head(100, path="/other", method="GET"))
    assert (await other.answer()).body == b"ok"
    assert handler.answered.index("/other") < 200
    for _ in many:
        assert (await busy.answer()).body == b"ok"
    assert [path for path in handler.answered if path != "/other"] == many


def chunks(many: int, size: int) -> bytes:
    return (
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        + (b"%x\r\n%b\r\n" % (size, b"x" * size)) * many
    )


async def test_many_tiny_chunks_are_refused(connect, echo):
    connection = await connect()
    await connection.send(chunks(protocol.MAX_TINY_CHUNKS + 1, 1))
    assert "chunks of less than 64 bytes" in await refused(connection, 400, "chunks_too_small")


@pytest.mark.parametrize(("many", "size"), [(protocol.MAX_TINY_CHUNKS, 1), (protocol.MAX_TINY_CHUNKS + 5000, 80)])
async def test_fewer_or_larger_chunks_are_read(connect, echo, many, size):
    connection = await connect()
    await connection.send(chunks(many, size) + b"0\r\n\r\n")
    assert (await connection.answer()).status == 200
    assert len(echo.asked) == 1
