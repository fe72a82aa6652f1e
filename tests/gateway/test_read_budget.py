"""Large bodies that arrive at once on several connections: how much of them is read before others have their turn."""

import asyncio
import socket
from collections import Counter
from unittest.mock import Mock

import orjson
import pytest
from running_gateway import eventually
from test_http_limits import Echo

from gateway.server import client_connection
from gateway.server.asgi_adapter import AsgiHandler
from gateway.server.http_server import HttpServer, bound
from gateway.server.port import Port, PortOptions
from gateway.server.read_budget import ReadBudget

MIB = 2**20
READ_BYTES = 256_000
"""What uvloop reads at once."""
CONNECTIONS = 24


class Reader:
    def __init__(self) -> None:
        self.continued = 0

    def continue_reading(self) -> None:
        self.continued += 1


async def test_connections_read_in_turn_when_an_iteration_has_read_enough():
    budget = ReadBudget()
    readers = [Reader() for _ in range(12)]
    paused = [budget.spend(reader, READ_BYTES) for reader in readers]
    assert paused == [False] * 4 + [True] * 8
    await asyncio.sleep(0)
    assert [reader.continued for reader in readers] == [0] * 4 + [1] * 4 + [0] * 4
    assert budget.spend(readers[0], READ_BYTES)  # behind those that wait already
    await asyncio.sleep(0)
    assert [reader.continued for reader in readers] == [0] * 4 + [1] * 8
    await asyncio.sleep(0)
    assert [reader.continued for reader in readers] == [1] + [0] * 3 + [1] * 8


async def test_each_iteration_has_its_own_budget():
    budget, reader = ReadBudget(), Reader()
    for _ in range(20):
        assert not budget.spend(reader, MIB - 1)
        await asyncio.sleep(0)
    assert reader.continued == 0


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
    assert sum(count > MIB for count in read.values()) <= CONNECTIONS // 3


async def test_a_connection_beyond_the_budget_has_no_more_time_than_others(port, monkeypatch):
    """Its request has to arrive in time, however often it pauses."""
    monkeypatch.setattr(client_connection.ClientConnection, "_refuse", late := Mock())
    sending = [asyncio.create_task(send_for_ever(port)) for _ in range(24)]
    await eventually(lambda: late.call_count == len(sending), 20)
    for each in sending:
        each.cancel()


async def send_for_ever(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 990000000000\r\n\r\n")
    try:
        while True:
            writer.write(bytes(MIB))
            await writer.drain()
    finally:
        writer.transport.abort()
        del reader


async def test_a_refused_connection_reads_within_the_budget_as_well():
    budget = Mock(spend=Mock(return_value=True))
    port = Port(Mock(), PortOptions(1000))
    port.read_budget = budget
    connection = client_connection.ClientConnection(port)
    transport = Mock(is_closing=lambda: False)
    transport.get_extra_info = lambda name: Mock(fileno=lambda: 3) if name == "socket" else None
    connection.connection_made(transport)
    connection.data_received(b"no HTTP\r\n\r\n")
    transport.pause_reading.reset_mock()
    connection.data_received(bytes(READ_BYTES))
    budget.spend.assert_called_once_with(connection, READ_BYTES)
    transport.pause_reading.assert_called_once_with()
    connection.connection_lost(None)
