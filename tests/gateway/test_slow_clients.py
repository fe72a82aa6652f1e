"""Clients that are slow, idle, or never read: their connections end, and no other client notices."""

import asyncio
import json
import resource
import socket

import httpx
import orjson
import pytest
from raw_http import Answer, Connection, post
from running_gateway import CHAT, RunningGateway, eventually, settings_for
from serving import Serving
from tenancy import SECRET, ask_as, key, tenant

from gateway.http_client.open_files import raise_open_files
from gateway.server.http_server import SlowClients

BODY = b'{"model":"demo","messages":[{"role":"user","content":"Hi"}]}'
WHOLE = post(CHAT, BODY)
CHUNKED = WHOLE.replace(b"content-length: 60", b"transfer-encoding: chunked").removesuffix(BODY)
SOON = 0.3
LONG = 60.0
"""Seconds that no test waits for."""


class Fronted(RunningGateway):
    """Counts the connections of the public port."""

    @property
    def connections(self) -> int:
        return len(self._servers[0].port.connections)


@pytest.fixture
def front(closing):
    """Starts a gateway in front of engines, as ``start_gateway``, on which a request has ``SOON`` to arrive."""

    async def start(*engines, receive_seconds=SOON, **sections) -> Fronted:
        server = {"receive_seconds": receive_seconds} | sections.pop("server", {})
        running = Fronted(settings_for(engines, server=server, **sections))
        await running.start()
        closing.push_async_callback(running.stop)
        return running

    return start


@pytest.fixture
async def slow(front, engine):
    """In front of one engine."""
    return await front(engine)


async def refused(connection: Connection, status: int = 408, code: str = "request_timeout") -> None:
    """Check that the answer is an error in the API's shape, and the last thing said."""
    answer: Answer = await connection.answer()
    assert answer.status == status
    assert answer.header("content-type") == "application/json"
    assert answer.header("connection") == "close"
    assert answer.header("x-gateway-error") == code
    (error,) = orjson.loads(answer.body).values()
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert await connection.reader.read() == b""


async def drip(connection: Connection, data: bytes, seconds: float = LONG) -> None:
    """Byte by byte, until the other side has enough of it."""
    pause = seconds / len(data)
    for at in range(len(data)):
        await connection.send(data[at : at + 1])
        await asyncio.sleep(pause)


# Too slow


@pytest.mark.parametrize(
    "begun",
    [
        WHOLE[:1],
        pytest.param(WHOLE[:40], marks=pytest.mark.slow),
        pytest.param(WHOLE[: -len(BODY) - 2], marks=pytest.mark.slow),
        WHOLE[: -len(BODY)],
        pytest.param(WHOLE[:-1], marks=pytest.mark.slow),
        pytest.param(CHUNKED, marks=pytest.mark.slow),
        CHUNKED + b"5\r\n" + BODY[:5],
        pytest.param(CHUNKED + b"%x\r\n%b\r\n0\r\nx-trailer: 1\r\n" % (len(BODY), BODY), marks=pytest.mark.slow),
        b"\r\n",
        pytest.param(b"GET /v1/models HTTP/1.1\r\n", marks=pytest.mark.slow),
        WHOLE[: -len(BODY) - 2] + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n" + BODY[:-1],
    ],
    ids=["byte", "line", "head", "no-body", "body", "no-chunk", "chunk", "trailer", "blank", "get", "upgrade"],
)
async def test_a_request_that_stops_half_way_is_refused(slow, engine, connect, begun):
    client = await connect(slow)
    await client.send(begun)
    await refused(client)
    assert not engine.requests
    await eventually(lambda: slow.connections == 0)
    await slow.settled(0)


@pytest.mark.parametrize("data", [WHOLE, CHUNKED + b"1\r\na\r\n" * 50], ids=["head", "body"])
async def test_bytes_that_come_now_and_then_do_not_prolong_it(slow, engine, connect, data):
    client = await connect(slow)
    # Its head at once where it is the body that drips.
    at_once = len(CHUNKED) if data.startswith(CHUNKED) else 0
    await client.send(data[:at_once])
    sending = asyncio.create_task(drip(client, data[at_once:]))
    await refused(client)
    sending.cancel()
    assert not engine.requests


async def test_a_refused_one_gives_its_tenants_place_back(front, engine, connect):
    gateway = await front(engine, receive_seconds=3, tenants=(tenant("a", concurrent=1),), spaces={"secret": SECRET})
    client = await connect(gateway)
    await client.send(post(CHAT, BODY, f"authorization: Bearer {key('a')}")[:-1])

    async def full() -> bool:
        return (await ask_as(gateway, "a")).status_code == 429

    await eventually(full)
    await refused(client)
    for _ in range(3):
        assert (await ask_as(gateway, "a")).status_code == 200


async def test_a_connection_that_says_nothing_is_closed_without_a_word(slow, connect):
    client = await connect(slow)
    assert await client.reader.read() == b""
    await eventually(lambda: slow.connections == 0)


async def test_a_client_that_waits_for_100_continue_has_no_more_time(slow, connect):
    client = await connect(slow)
    await client.send(post(CHAT, BODY, "expect: 100-continue")[: -len(BODY)])
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    await refused(client)


async def test_the_admin_port_does_not_wait_either(slow):
    client = await Connection.open(httpx.URL(slow.admin_url).port)
    await client.send(b"GET /healthz HTTP/1.1\r\n")
    await refused(client)
    client.abort()


async def test_a_body_that_stops_after_its_request_was_refused_ends_without_a_second_answer(slow, connect):
    client = await connect(slow)
    await client.send(post("/v1/nowhere", BODY)[:-1])
    assert (await client.answer()).status == 404
    assert await client.reader.read() == b""


# Not too slow


@pytest.mark.parametrize("seconds", [0.0, 0.6])
async def test_what_arrives_within_the_time_is_served_however_it_is_cut(front, engine, connect, seconds):
    gateway = await front(engine, receive_seconds=LONG)
    client = await connect(gateway)
    for data in (WHOLE, CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY), post(CHAT, BODY, "upgrade: h2c")):
        await drip(client, data, seconds)
        assert (await client.answer()).status == 200
    assert [request.body for request in engine.requests] == [BODY] * 3


async def test_every_request_of_a_connection_has_the_whole_time(front, engine, connect):
    gateway = await front(engine, receive_seconds=1.5)
    client = await connect(gateway)
    for _ in range(4):
        await client.send(WHOLE[:-30])
        await asyncio.sleep(0.5)
        # The rest, and the beginning of the next one in the same read.
        await client.send(WHOLE[-30:] + WHOLE[:20])
        assert (await client.answer()).status == 200
        await asyncio.sleep(0.3)
        await client.send(WHOLE[20:])
        assert (await client.answer()).status == 200


async def test_neither_an_answer_nor_the_pause_behind_it_is_limited(front, start_engine, connect):
    engine = await start_engine(decode_ms=50)
    gateway = await front(engine)
    client = await connect(gateway)
    long = json.loads(BODY) | {"max_tokens": 20, "ignore_eos": True}
    for _ in range(2):
        await client.send(post(CHAT, json.dumps(long).encode()))
        assert (await client.answer()).status == 200
        await asyncio.sleep(2 * SOON)


async def test_the_time_does_not_run_while_the_gateway_does_not_read(front, start_engine, connect):
    engine = await start_engine(decode_ms=50)
    gateway = await front(engine, receive_seconds=0.8)
    client = await connect(gateway)
    long = json.dumps(json.loads(BODY) | {"max_tokens": 40, "ignore_eos": True}).encode()
    await client.send(post(CHAT, long) + WHOLE[:-1])
    assert (await client.answer()).status == 200
    await asyncio.sleep(0.4)
    await client.send(WHOLE[-1:])
    assert (await client.answer()).status == 200


async def test_half_a_request_behind_another_is_refused_after_that_ones_answer(front, start_engine, connect):
    engine = await start_engine(decode_ms=50)
    gateway = await front(engine)
    client = await connect(gateway)
    long = json.dumps(json.loads(BODY) | {"max_tokens": 20, "ignore_eos": True}).encode()
    await client.send(post(CHAT, long) + WHOLE[:30])
    answer = await client.answer()
    assert (answer.status, orjson.loads(answer.body)["usage"]["completion_tokens"]) == (200, 20)
    await refused(client)
    assert len(engine.requests) == 1


# Beside others


@pytest.mark.slow
async def test_others_are_served_beside_hundreds_of_slow_and_idle_ones(front, engine, connect):
    raise_open_files()
    gateway = await front(engine, receive_seconds=3)
    slow = [await connect(gateway) for _ in range(200)]
    for number, client in enumerate(slow):
        await client.send(WHOLE[: 30 + number % 100])
    idle = [await connect(gateway) for _ in range(300)]
    await eventually(lambda: gateway.connections >= 500)
    answers = await asyncio.gather(*(gateway.ask(str(number)) for number in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    for client in slow:
        await refused(client)
    for client in idle:
        assert await client.reader.read() == b""
    await eventually(lambda: gateway.connections <= 20)
    assert await gateway.in_flight() == 0


# Clients that do not read


async def test_a_client_that_never_reads_does_not_keep_its_connection(front, scripted, connect):
    event = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"a" * 50_000 + b'"}}]}\n\n'

    async def endless(writer, received):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        while True:
            writer.write(event)
            await writer.drain()

    scripted.answer = endless
    gateway = await front(scripted, relay={"chunk_timeout_seconds": 0.5})
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", gateway.port))
    sock.sendall(post(CHAT, b'{"stream":true,' + BODY[1:]))
    await eventually(lambda: gateway.connections == 1)
    await eventually(lambda: gateway.connections == 0)
    sock.close()
    assert await gateway.in_flight() == 0


class Pipe:
    """A connection with something left to send."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.cut = False
        self.busy = False
        self.transport = self

    def get_write_buffer_size(self) -> int:
        return self.left

    def get_extra_info(self, name: str) -> None:
        return None

    def abort(self) -> None:
        self.cut = True


def test_who_reads_slowly_gets_the_rest_and_who_does_not_read_is_cut():
    looks = SlowClients(10)
    reads, stops, idle = Pipe(100), Pipe(100), Pipe(0)
    for second in range(0, 60, 5):
        looks.look([reads, stops, idle], second)
        reads.left -= 1
        stops.left = max(stops.left - 1, 98)
        assert stops.cut == (second >= 20)
    assert not reads.cut
    assert not idle.cut


# When no more files can be opened


async def test_connections_beyond_the_limit_of_open_files_are_refused_and_the_others_served(serve, engine, closing):
    serving = await serve(engine.url, files=200, log={"format": "json", "level": "info"}, explain={"enabled": False})
    assert serving.events("few_open_files")
    port = httpx.URL(serving.url).port
    first = await Connection.open(port)
    await first.send(WHOLE)
    assert (await first.answer()).status == 200
    idle = []
    for _ in range(250):
        idle.append(await Connection.open(port))
        closing.callback(idle[-1].abort)
    ends = await asyncio.gather(*(_end(client, 1) for client in idle))
    assert {"refused", "open"} <= set(ends)
    for _ in range(3):
        await first.send(WHOLE)
        assert (await first.answer()).status == 200
    # What the engine's connection takes may be free.
    idle += [await Connection.open(port) for _ in range(5)]
    assert not await _served(serving)
    for client in idle:
        client.abort()
    await eventually(lambda: _served(serving))
    first.abort()


async def _served(serving: Serving, seconds: float = 20) -> bool:
    """Whether a new connection is, within so many seconds."""
    async with httpx.AsyncClient(base_url=serving.url, timeout=seconds, verify=False) as http:
        try:
            answer = await http.post(CHAT, content=BODY, headers={"content-type": "application/json"})
        except httpx.TransportError:
            return False
        return answer.status_code == 200


async def _end(client: Connection, seconds: float) -> str:
    """What becomes of a connection within so many seconds: ``refused`` with a reason, ``cut``, or ``open``."""
    try:
        async with asyncio.timeout(seconds):
            head = await client.reader.read(12)
    except TimeoutError:
        return "open"
    except ConnectionError:
        return "cut"
    return "refused" if head == b"HTTP/1.1 503" else "cut"


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit")
async def test_a_gateway_that_could_take_no_connection_for_a_while_takes_them_again(serve, engine):
    serving = await serve(engine.url)
    _, most = resource.prlimit(serving.process.pid, resource.RLIMIT_NOFILE)
    # Below what is open already.
    resource.prlimit(serving.process.pid, resource.RLIMIT_NOFILE, (5, most))
    port = httpx.URL(serving.url).port
    waiting = [await Connection.open(port) for _ in range(5)]
    assert not await _served(serving, 0.5)
    resource.prlimit(serving.process.pid, resource.RLIMIT_NOFILE, (most, most))
    await eventually(lambda: _served(serving))
    for each in waiting:
        each.abort()
    serving.process.terminate()
    assert await serving.exit_code() == 0
