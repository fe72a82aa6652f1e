"""What a server may send the HTTP client, and when a connection is used again; over real sockets."""

import asyncio
import contextlib

import pytest
import structlog
from http_client.reading import reading
from patience import HANG_SECONDS

from gateway.http_client import Broken, HttpClient, Origin, ResponseTooLarge, TransportError
from gateway.http_client.connection import Connection

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
MIB = 2**20


class Server:
    """Calls ``exchange`` for every connection; counts connections and the bytes that were taken from it."""

    def __init__(self, exchange):
        self.exchange = exchange
        self.connections = self.written = 0
        self.over = asyncio.Event()
        self.ends = asyncio.Event()
        self.writers = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.connected, "127.0.0.1", 0)
        self.origin = Origin.parse(f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}")
        return self

    async def __aexit__(self, *_):
        self.server.close()
        self.ends.set()
        for writer in self.writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def connected(self, reader, writer):
        self.connections += 1
        self.writers.append(writer)
        writer.transport.set_write_buffer_limits(high=0)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self.exchange(self, reader, writer)
        self.over.set()
        writer.close()

    async def write(self, writer, data):
        writer.write(data)
        await writer.drain()
        self.written += len(data)


async def request_head(reader):
    return await reader.readuntil(b"\r\n\r\n")


async def post(client, origin, body=b""):
    return await client.fetch("POST", origin, "/x", [], body, timeout_seconds=20)


@pytest.fixture
async def client():
    client = HttpClient(30.0)
    yield client
    client.close()


def without_end(beginning, repeated):
    """Sends a beginning, and then the same piece again and again, 64 MiB of it at most."""

    async def exchange(server, reader, writer):
        await request_head(reader)
        await server.write(writer, beginning)
        piece = repeated * (16 * 1024 // len(repeated))
        for _ in range(64 * MIB // len(piece)):
            await server.write(writer, piece)

    return exchange


@pytest.mark.parametrize(
    ("beginning", "repeated"),
    [
        (b"HTTP/1.1 200 ", b"O"),
        (b"HTTP/1.1 200 OK\r\nx-long: ", b"a"),
        (b"HTTP/1.1 200 OK\r\n", b"a"),
        (b"HTTP/1.1 200 OK\r\n", b"x-many: a\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"", b"HTTP/1.1 103 Early Hints\r\nlink: abcdefgh\r\n\r\n"),
        (b"", b"\r\n"),
        (CHUNKED, b"0"),
        (CHUNKED + b"1;", b"e"),
        (CHUNKED + b"1\r\na\r\n0\r\n", b"x-trailer: a\r\n"),
        (CHUNKED + b"1\r\na\r\n0\r\nx-trailer: ", b"a"),
    ],
    ids=[
        "reason",
        "header value",
        "header name",
        "headers",
        "100",
        "103",
        "line breaks",
        "chunk size",
        "chunk extension",
        "trailers",
        "trailer value",
    ],
)
async def test_bytes_that_are_no_body_are_bounded(client, beginning, repeated):
    async with Server(without_end(beginning, repeated)) as server:
        with pytest.raises(Broken):
            await post(client, server.origin)
        await asyncio.wait_for(server.over.wait(), HANG_SECONDS)
        # What was taken, and what lies in the sockets' buffers.
        assert server.written < 12 * MIB


async def test_chunk_extensions_are_bounded_over_the_whole_response(client):
    async with Server(without_end(CHUNKED, b"1;" + b"x" * 1000 + b"\r\nX\r\n")) as server:
        with pytest.raises(Broken):
            await post(client, server.origin)
        await asyncio.wait_for(server.over.wait(), HANG_SECONDS)
        assert server.written < 12 * MIB


async def test_pieces_that_are_not_read_are_bounded_in_number(client, monkeypatch):
    pieces = []
    on_body = Connection.on_body
    monkeypatch.setattr(Connection, "on_body", lambda self, data: pieces.append(data) or on_body(self, data))
    whole = CHUNKED + b"1\r\nX\r\n" * 300_000 + b"0\r\n\r\n"
    async with Server(says(whole)) as server:
        async with reading(client, "POST", server.origin, "/x", []) as response:
            async with asyncio.timeout(HANG_SECONDS):
                while len(pieces) <= 1000:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
            assert 1000 < len(pieces) <= 1024 + 1400
            size = 0
            while (piece := await response.read()) is not None:
                size += len(piece)
        assert size == 300_000
        assert await post(client, server.origin) == (200, b"X" * 300_000)
        assert server.connections == 1


async def test_what_precedes_the_end_of_a_connection_is_read_completely(client):
    async def exchange(server, reader, writer):
        await request_head(reader)
        await server.write(writer, CHUNKED + b"1\r\nX\r\n" * 30_000 + b"0\r\n\r\n")

    async with Server(exchange) as server:
        assert await post(client, server.origin) == (200, b"X" * 30_000)


async def test_some_interim_responses_are_passed_over(client):
    async with Server(says(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 5 + OK)) as server:
        assert await post(client, server.origin) == (200, b"ok")


async def test_a_body_of_an_interim_response_is_none_of_the_final_one(client):
    interim = b"HTTP/1.0 104 Odd\r\ntransfer-encoding: odd\r\n\r\n"
    async with Server(says(interim + OK)) as server:
        with pytest.raises(Broken, match="interim response has a body"):
            await post(client, server.origin)


def says(*pieces, pause=0.0):
    """Answers every request on a connection with these pieces."""

    async def exchange(server, reader, writer):
        while True:
            await request_head(reader)
            for number, piece in enumerate(pieces):
                if number:
                    await asyncio.sleep(pause)
                await server.write(writer, piece)

    return exchange


@pytest.mark.parametrize(
    "status",
    [b"000", b"099", b"600", b"999", b"-20", b"20", b"2000", b"abc", b"101"],
    ids=lambda status: status.decode(),
)
async def test_a_status_that_is_none_breaks_the_response(client, status):
    async with Server(says(OK.replace(b"200", status))) as server:
        with pytest.raises(Broken, match="not HTTP"):
            await post(client, server.origin)


async def test_an_upgrade_that_was_not_asked_for_breaks_the_response(client):
    switch = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    async with Server(says(switch + OK)) as server:
        with pytest.raises(Broken, match="101"):
            await post(client, server.origin)


async def test_a_body_larger_than_accepted_ends_the_exchange(client):
    async with Server(without_end(b"HTTP/1.1 200 OK\r\n\r\n", b"x")) as server:
        with pytest.raises(ResponseTooLarge):
            await post(client, server.origin)
        await asyncio.wait_for(server.over.wait(), HANG_SECONDS)
        assert server.written < 16 * MIB


@pytest.mark.parametrize(("below", "path"), [("", "/x"), ("/below", "/x"), ("/below", "")])
async def test_what_answered_too_much_is_named_by_its_whole_path(client, below, path):
    async with Server(without_end(b"HTTP/1.1 200 OK\r\n\r\n", b"x")) as server:
        origin = Origin.parse(f"http://{server.origin.authority}{below}")
        with pytest.raises(ResponseTooLarge) as failed:
            await client.fetch("POST", origin, path, [], timeout_seconds=20, max_bytes=2048)
        await asyncio.wait_for(server.over.wait(), HANG_SECONDS)
    assert str(failed.value) == f"{below}{path} answered more than 2 KiB"


async def test_a_request_that_was_not_written_completely_is_not_followed_by_another(client):
    """The server refuses a body that it does not read, and keeps the connection."""

    async def exchange(server, reader, writer):
        if b"content-length: 15" in await request_head(reader):
            await server.write(writer, OK.replace(b"200 OK", b"400 Bad Request"))
            await server.ends.wait()
            return
        await server.write(writer, OK)

    async with Server(exchange) as server:
        assert await post(client, server.origin, b"x" * (15 * 10**6)) == (400, b"ok")
        assert await asyncio.wait_for(post(client, server.origin), HANG_SECONDS) == (200, b"ok")
        assert server.connections == 2


OTHER = OK.replace(b"ok", b"no")


@pytest.mark.parametrize(
    "surplus",
    [OTHER, b"HTTP/1.1 100 Continue\r\n\r\n", b"x", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"],
    ids=["response", "interim", "garbage", "head"],
)
async def test_what_follows_a_response_is_not_the_answer_to_anything(client, surplus):
    async with Server(says(OK + surplus)) as server:
        with structlog.testing.capture_logs() as logs:
            for _ in range(2):
                assert await post(client, server.origin) == (200, b"ok")
        assert server.connections == 2
    assert [log["event"] for log in logs] == ["replica_sent_surplus_data"] * 2
    assert logs[0]["address"] == server.origin.authority


async def test_what_follows_a_response_with_chunks_is_not_a_part_of_it(client):
    whole = CHUNKED + b"2\r\nok\r\n0\r\n\r\n"
    async with Server(says(whole + whole)) as server:
        assert await post(client, server.origin) == (200, b"ok")
        assert await post(client, server.origin) == (200, b"ok")
        assert server.connections == 2


async def test_a_response_on_an_idle_connection_is_not_the_answer_to_the_next_request(client):
    async with Server(says(OK, OTHER, pause=0.05)) as server:
        with structlog.testing.capture_logs() as logs:
            assert await post(client, server.origin) == (200, b"ok")
            async with asyncio.timeout(HANG_SECONDS):
                while not logs:
                    await asyncio.sleep(0.01)
            assert await post(client, server.origin) == (200, b"ok")
        assert server.connections == 2
    assert "replica_sent_surplus_data" in [log["event"] for log in logs]


async def test_an_idle_connection_that_times_out_is_no_surplus(client):
    async with Server(says(OK, b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\r\n", pause=0.05)) as server:
        with structlog.testing.capture_logs() as logs:
            await post(client, server.origin)
            await asyncio.sleep(0.3)
    assert not logs


async def test_nothing_is_left_of_a_failed_response(client):
    async with Server(says(b"HTTP/1.1 200 OK\r\nx y\r\n\r\n")) as server:
        for _ in range(3):
            with pytest.raises(TransportError):
                await post(client, server.origin)
        assert server.connections == 3
