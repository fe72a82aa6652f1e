"""What many clients send at once: how much of it is worked on before others have their turn, and in which order."""

import asyncio
import socket
from collections import Counter
from unittest.mock import Mock

import orjson
import pytest
from patience import HANG_SECONDS
from raw_http import Connection
from running_gateway import eventually
from test_http_limits import Echo

from gateway.server import client_connection
from gateway.server.asgi_adapter import AsgiHandler, AsgiReceiver
from gateway.server.http_server import HttpServer, bound
from gateway.server.port import PortOptions
from gateway.server.work_budget import WorkBudget

MIB = 2**20
CONNECTIONS = 24
MILLISECOND = 0.001
GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


class Worker:
    """Has work for a number of turns, each of which takes a number of seconds."""

    def __init__(
        self, name: str, done: list[str], clock: list[float], turns: int, seconds: float = MILLISECOND
    ) -> None:
        self.name, self.turns, self.seconds = name, turns, seconds
        self._done, self._clock = done, clock

    def turn(self) -> bool:
        self._done.append(self.name)
        self._clock[0] += self.seconds
        self.turns -= 1
        return self.turns > 0


async def test_an_iteration_works_for_a_few_milliseconds_and_the_rest_comes_in_turn():
    done, clock = [], [0.0]
    budget = WorkBudget(lambda: clock[0])
    workers = [Worker(str(number), done, clock, 3) for number in range(6)]
    counts = []
    for worker in workers:
        budget.received(worker.turn, 100)
    while any(worker.turns for worker in workers):
        counts.append(len(done))
        await asyncio.sleep(0)
    counts.append(len(done))
    assert [name for name in done if done.count(name) == 3] == done  # each had its turns
    assert done[:6] == ["0", "1", "2", "3", "4", "5"]  # everybody's first turn before any second one
    assert max(after - before for before, after in zip([0, *counts], counts, strict=False)) <= 4


async def test_what_has_just_arrived_comes_before_the_rest_of_what_others_sent():
    done, clock = [], [0.0]
    budget = WorkBudget(lambda: clock[0])
    for number in range(20):
        budget.received(Worker(f"large {number}", done, clock, 50).turn, 100)
    await asyncio.sleep(0)
    budget.received(Worker("small", done, clock, 1).turn, 100)
    before = len(done)
    while "small" not in done:
        await asyncio.sleep(0)
    # Behind the first turns that wait already, and one further turn in each iteration.
    assert done.index("small") - before <= 20


async def test_first_turns_without_end_do_not_hold_up_the_rest_for_ever():
    done, clock = [], [0.0]
    budget = WorkBudget(lambda: clock[0])
    budget.received(Worker("large", done, clock, 5).turn, 100)
    for number in range(100):
        budget.received(Worker(f"small {number}", done, clock, 1, 10 * MILLISECOND).turn, 100)
        await asyncio.sleep(0)
    assert done.count("large") == 5


async def test_a_turn_that_fails_costs_no_other_connection_its_turn():
    done, clock, problems = [], [0.0], []
    budget = WorkBudget(lambda: clock[0])
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["exception"]))
    budget.received(Worker("first", done, clock, 2, 10 * MILLISECOND).turn, 100)
    budget.received(Mock(side_effect=RuntimeError), 100)
    budget.received(Worker("last", done, clock, 1).turn, 100)
    for _ in range(5):
        await asyncio.sleep(0)
    assert done == ["first", "last", "first"]
    assert [type(problem) for problem in problems] == [RuntimeError]


@pytest.fixture
async def port(closing):
    """Where a server listens."""
    options = PortOptions(16_384, receive_seconds=2)
    server, listener = HttpServer(AsgiHandler(Echo()), options), bound("server.port", "127.0.0.1", 0)
    await server.listen([listener])
    closing.push_async_callback(server.close)
    return listener.getsockname()[1]


def filled(port: int, body: bytes) -> tuple[socket.socket, memoryview]:
    """A connection whose buffers are full of a request; and what is left of it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
    client.connect(("127.0.0.1", port))
    client.setblocking(False)
    head = f"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    rest = memoryview(head + body)
    try:
        while rest:
            rest = rest[client.send(rest) :]
    except BlockingIOError:
        pass
    return client, rest


async def test_an_iteration_reads_a_bounded_part_of_many_bodies(port, monkeypatch):
    iteration, read = 0, Counter()
    received = client_connection.ClientConnection.data_received

    def counted(self, data: bytes) -> None:
        read[iteration] += len(data)
        received(self, data)

    monkeypatch.setattr(client_connection.ClientConnection, "data_received", counted)

    async def count() -> None:
        nonlocal iteration
        while True:
            iteration += 1
            await asyncio.sleep(0)

    loop = asyncio.get_running_loop()
    body = bytes(2 * MIB)
    clients = [filled(port, body) for _ in range(CONNECTIONS)]
    counting = asyncio.create_task(count())
    await asyncio.gather(*(loop.sock_sendall(client, rest) for client, rest in clients))
    for client, _ in clients:
        answer = b""
        while not answer.endswith(b"}"):
            answer += await loop.sock_recv(client, 65536)
        assert orjson.loads(answer.partition(b"\r\n\r\n")[2])["bytes"] == len(body)
        client.close()
    counting.cancel()
    assert sum(read.values()) > CONNECTIONS * len(body)
    # Four connections that have waited read in each iteration; the first read of a new one comes on top.
    assert sum(count > 1.25 * MIB for count in read.values()) <= CONNECTIONS // 3


async def test_a_connection_beyond_the_budget_has_no_more_time_than_others(closing):
    """Its request has to arrive in time, however often it pauses."""
    handler = Mock(return_value=Mock(spec=AsgiReceiver), tasks=())  # as a generation request: takes all that comes
    server = HttpServer(handler, PortOptions(16_384, receive_seconds=1))
    listener = bound("server.port", "127.0.0.1", 0)
    await server.listen([listener])
    closing.push_async_callback(server.close)
    port = listener.getsockname()[1]
    ended = await asyncio.wait_for(asyncio.gather(*(send_for_ever(port) for _ in range(CONNECTIONS))), HANG_SECONDS)
    assert ended == [b"HTTP/1.1 408"] * CONNECTIONS


async def send_for_ever(port: int) -> bytes:
    """Sends until it is refused; how the answer begins."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 990000000000\r\n\r\n")

    async def send() -> None:
        while True:
            writer.write(bytes(MIB))
            await writer.drain()

    sending = asyncio.create_task(send())
    try:
        return await reader.read(12)
    finally:
        sending.cancel()
        writer.transport.abort()


@pytest.mark.parametrize(
    "many",
    [
        GET * 20_000,
        b"GET / HTTP/1.1\r\nhost: a\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n" * 5000,
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 16_000 + b"0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
        + b"a:b\r\n" * 3000
        + b"\r\n",
        b"\r\n" * 100_000,
    ],
    ids=["requests", "upgrades", "chunks", "trailers", "empty lines"],
)
async def test_a_small_request_is_answered_while_others_send_what_costs_most(port, closing, many):
    """In far fewer iterations than what the others sent takes."""
    busy = [await Connection.open(port) for _ in range(20)]
    other = await Connection.open(port)
    for each in (*busy, other):
        closing.callback(each.abort)
    iterations = 0

    async def count() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0)

    for each in busy:
        each.writer.write(many)
    await asyncio.sleep(0.02)
    counting = asyncio.create_task(count())
    other.writer.write(GET)
    assert (await other.answer()).status == 200
    counting.cancel()
    assert iterations < 50


@pytest.mark.parametrize("pieces", [1, 2, 3, 5, 1023, 1024, 1025])
async def test_portions_end_where_a_request_ends_however_the_bytes_are_cut(port, closing, pieces):
    connection = await Connection.open(port)
    closing.callback(connection.abort)
    chunked = b"POST /c HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    requests = [
        GET,
        b"POST /b HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n\r\n\r\n\r\n\r\n\r",
        chunked + b"6\r\n\r\n\r\nab\r\n0\r\n\r\n",
        chunked + b"2;x=y\r\nab\r\n0\r\ntrailer: 1\r\n\r\n",
        b"\r\n\r\n" + GET,
        b"GET /u HTTP/1.1\r\nhost: a\r\nupgrade: h2c\r\nconnection: upgrade\r\nx: " + b"y" * 1500 + b"\r\n\r\n",
        chunked + b"5dc\r\n" + b"\r\n\r\n" * 375 + b"\r\n0\r\n\r\n",
    ]
    raw = b"".join(requests) * (3 if pieces > 5 else 1)
    asked = []

    async def read() -> None:
        for _ in range(len(requests) * (3 if pieces > 5 else 1)):
            answer = await connection.answer()
            assert answer.status == 200, answer.body
            asked.append(orjson.loads(answer.body)["bytes"])

    reading = asyncio.create_task(read())
    for at in range(0, len(raw), pieces):
        await connection.send(raw[at : at + pieces])
        await asyncio.sleep(0)
    await reading
    assert asked == [0, 9, 6, 2, 0, 0, 1500] * (3 if pieces > 5 else 1)


async def test_nothing_more_of_a_client_that_does_not_read_is_begun(closing):
    begun = 0

    class AtOnce:
        tasks = ()

        def __call__(self, exchange) -> None:
            nonlocal begun
            begun += 1
            exchange.respond(200, [], b"x" * 10_000)

    server, listener = HttpServer(AtOnce(), PortOptions(16_384)), bound("server.port", "127.0.0.1", 0)
    await server.listen([listener])
    closing.push_async_callback(server.close)
    client = closing.enter_context(socket.socket())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(listener.getsockname())
    client.setblocking(False)
    many = 4000
    rest = memoryview(GET * many)
    quiet = 0
    while rest and quiet < 30:
        try:
            rest = rest[client.send(rest) :]
            quiet = 0
        except BlockingIOError:
            quiet += 1
        await asyncio.sleep(0.01)
    seen = -1
    while seen != begun:  # until the buffers of the system are full
        seen = begun
        await asyncio.sleep(0.3)
    assert begun < many / 2
    (connection,) = server.port.connections
    assert connection.transport.get_write_buffer_size() < 200_000
    # Once it reads again, everything is answered.
    loop, received = asyncio.get_running_loop(), 0
    sending = asyncio.create_task(loop.sock_sendall(client, rest))
    while received < many * 10_000:
        received += len(await loop.sock_recv(client, MIB))
    await sending
    client.close()
    await eventually(lambda: begun == many)
