"""A client that leaves: its work ends at the engine, and its load is given back."""

import asyncio
import contextlib
import gc
import json
import socket
import struct
import weakref
from unittest.mock import Mock

import pytest
from patience import HANG_SECONDS
from raw_http import Answer, post
from running_gateway import CHAT, eventually

from gateway.server import disconnect_watch
from gateway.server.asgi_adapter import AsgiHandler
from gateway.server.client_connection import ClientConnection
from gateway.server.http_server import HttpServer, bound
from gateway.server.port import Port, PortOptions


def long_request(**fields: object) -> bytes:
    body = {"model": "demo", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 400, "ignore_eos": True}
    return post(CHAT, json.dumps(body | fields).encode())


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_engine_stops_when_the_client_leaves(start_engine, start_gateway, connect, stream):
    engine = await start_engine(decode_ms=50)
    gateway = await start_gateway(engine)
    client = await connect(gateway)
    await client.send(long_request(stream=stream))
    await eventually(lambda: engine.scheduler.running == 1)
    if stream:
        await client.reader.readuntil(b"data: ")
    assert await gateway.in_flight() == 1
    client.abort()
    await eventually(lambda: engine.scheduler.totals.aborted == 1)
    assert engine.scheduler.running == 0
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_replica_inflight") == 0
    status = "200" if stream else "499"
    assert metrics.value("gateway_requests_total", status=status) == 1


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_prefill_stops_when_the_client_leaves(start_engine, start_gateway, connect, prose, stream):
    engine = await start_engine(prefill_rate=100)
    gateway = await start_gateway(engine)
    client = await connect(gateway)
    await client.send(long_request(stream=stream, messages=[{"role": "user", "content": prose(1, 900)}]))
    await eventually(lambda: engine.scheduler.running == 1)
    client.abort()
    await eventually(lambda: engine.scheduler.totals.aborted == 1)
    await gateway.settled(1)
    again = await gateway.replicas()
    assert again["r0"]["index"]["blocks"] == 0


async def test_polite_goodbye_counts_as_leaving(start_engine, start_gateway, connect):
    engine = await start_engine(decode_ms=50)
    gateway = await start_gateway(engine)
    client = await connect(gateway)
    await client.send(long_request(stream=True))
    await client.reader.readuntil(b"data: ")
    client.writer.close()
    await eventually(lambda: engine.scheduler.totals.aborted == 1)
    await gateway.settled(1)


async def test_leaving_a_silent_engine_releases_its_load(gateway, engine, connect):
    await engine.set_fault("hang")
    client = await connect(gateway)
    await client.send(long_request())
    await eventually(lambda: len(engine.requests) == 1)
    assert await gateway.in_flight() == 1
    client.abort()
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_requests_total", status="499") == 1


async def test_client_that_leaves_in_the_middle_of_its_body_costs_nothing(gateway, engine, connect):
    client = await connect(gateway)
    await client.send(long_request()[:-20])
    await asyncio.sleep(0.1)
    client.abort()
    assert (await gateway.ask()).status_code == 200
    assert len(engine.requests) == 1
    await gateway.settled(1)


async def test_many_clients_leave_and_nothing_stays_behind(start_engine, start_gateway, connect):
    engine = await start_engine(decode_ms=20)
    gateway = await start_gateway(engine)
    clients = [await connect(gateway) for _ in range(24)]
    for number, client in enumerate(clients):
        await client.send(long_request(stream=number % 2 == 0))
    await eventually(lambda: engine.scheduler.running == 24)
    assert await gateway.in_flight() == 24
    for client in clients:
        client.abort()
    await eventually(lambda: engine.scheduler.running == 0 and engine.scheduler.totals.aborted == 24)
    await gateway.settled(24)
    assert (await gateway.ask()).status_code == 200


# Clients that send nothing more, and wait


async def last_answer(client) -> Answer:
    """The answer behind interim ones."""
    while (answer := await client.answer()).status == 100:
        pass
    return answer


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_client_that_ends_its_side_gets_its_whole_answer(start_engine, start_gateway, connect, stream):
    engine = await start_engine(decode_ms=10)
    gateway = await start_gateway(engine)
    expected = await gateway.send(long_request(stream=stream, max_tokens=40).partition(b"\r\n\r\n")[2])
    client = await connect(gateway)
    await client.send(long_request(stream=stream, max_tokens=40))
    client.writer.write_eof()
    answer = await last_answer(client)
    assert answer.status == 200
    assert answer.header("connection") == "close"
    assert text_of(answer.body) == text_of(expected.content) != ""
    assert await client.reader.read() == b""
    await gateway.settled(2)
    assert engine.scheduler.totals.aborted == 0


def text_of(body: bytes) -> str:
    """What an answer says, streamed or not."""
    if not body.startswith(b"data: "):
        return json.loads(body)["choices"][0]["message"]["content"]
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    assert body.endswith(b"data: [DONE]\n\n")
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])


async def test_pipelined_requests_are_all_answered_after_the_end(start_engine, start_gateway, connect):
    engine = await start_engine(decode_ms=10)
    gateway = await start_gateway(engine)
    client = await connect(gateway)
    requests = [long_request(stream=stream, max_tokens=30) for stream in (False, True, False)]
    await client.send(b"".join(requests) + requests[0][:50])
    client.writer.write_eof()
    for stream in (False, True, False):
        answer = await last_answer(client)
        assert answer.status == 200
        assert (answer.header("content-type") or "").startswith("text/event-stream" if stream else "application/json")
    assert await client.reader.read() == b""
    assert engine.scheduler.totals.finished == 3


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("waits", [0, 0.5], ids=["at once", "later"])
async def test_a_client_that_ends_its_side_and_then_leaves_is_noticed(
    start_engine, start_gateway, connect, stream, waits
):
    engine = await start_engine(decode_ms=50)
    gateway = await start_gateway(engine)
    client = await connect(gateway)
    await client.send(long_request(stream=stream))
    if waits:
        client.writer.write_eof()
    await eventually(lambda: engine.scheduler.running == 1)
    if waits:
        await asyncio.sleep(waits)
        assert engine.scheduler.running == 1
        with contextlib.suppress(TimeoutError):  # so that the close is no reset
            await asyncio.wait_for(client.reader.read(), 0.2)
    client.writer.close()
    await eventually(lambda: engine.scheduler.totals.aborted == 1, 8)
    await gateway.settled(1)


async def test_what_is_written_after_a_client_has_left_does_not_complete_its_response():
    """Before the connection is lost, which is reported in the next iteration of the event loop."""
    exchanges, receiver = [], Mock()

    def handler(exchange):
        exchanges.append(exchange)
        return receiver

    connection = ClientConnection(Port(handler, PortOptions(1000)))
    transport = Mock(is_closing=lambda: False)
    transport.get_extra_info = lambda name: ("127.0.0.1", 1) if name == "peername" else Mock(fileno=lambda: 3)
    connection.connection_made(transport)
    connection.data_received(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    (exchange,) = exchanges
    exchange.start(200, [])
    exchange.write(b"a part", more=True)
    assert not connection.eof_received()
    receiver.client_gone.assert_called_once_with()
    exchange.write(b"the rest", more=False)
    assert (exchange.gone, exchange.complete) == (True, False)
    connection.connection_lost(None)
    receiver.client_gone.assert_called_once_with()


class Waits:
    """An application that answers nothing, and notes that a client has left."""

    def __init__(self):
        self.begun, self.gone = 0, 0

    async def __call__(self, scope, receive, send):
        self.begun += 1
        await asyncio.sleep(0.05)
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone += 1


async def test_an_old_client_that_ends_its_side_while_its_requests_wait_gets_no_interim_answer(closing):
    waits, listener = Waits(), bound("server.port", "127.0.0.1", 0)
    server = HttpServer(AsgiHandler(waits), PortOptions(16_384))
    await server.listen([listener])
    closing.push_async_callback(server.close)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"GET / HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n" * 2)
    await eventually(lambda: waits.begun == 1)
    writer.write_eof()
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
    await eventually(lambda: waits.gone == 1, 5)


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_other_paths_notice_it_as_well_and_nothing_is_left_of_the_connection(closing, size, version):
    """Also where a body that is not taken has paused the connection before."""
    waits, listener = Waits(), bound("server.port", "127.0.0.1", 0)
    server = HttpServer(AsgiHandler(waits), PortOptions(16_384))
    await server.listen([listener])
    closing.push_async_callback(server.close)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    head = f"HTTP/{version}\r\nhost: a\r\nconnection: keep-alive\r\n"
    writer.write(f"POST / {head}content-length: {size}\r\n\r\n".encode() + bytes(size) + f"GET / {head}\r\n".encode())
    await eventually(lambda: waits.begun == 1)
    await asyncio.sleep(0.2)  # for the second request to arrive, and wait
    left = weakref.ref(next(iter(server.port.connections)))
    gc.collect()
    gc.disable()
    try:
        writer.transport.abort()
        await eventually(lambda: waits.gone == 1, 5)
        await eventually(lambda: left() is None, 5)
    finally:
        gc.enable()
    assert waits.begun == 1
    del reader


@pytest.mark.parametrize("behind_it", ["request", "part", "body"])
@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
async def test_a_client_that_leaves_while_its_requests_wait_is_noticed(
    start_engine, start_gateway, connect, behind_it, reset
):
    engine = await start_engine(decode_ms=50)
    gateway = await start_gateway(engine)
    client = await connect(gateway)
    request = long_request(max_tokens=1000)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 9000000\r\n\r\n"
    rest = {"request": request, "part": request[:40], "body": head + bytes(20_000)}[behind_it]
    client.writer.write(request + rest)
    await eventually(lambda: engine.scheduler.running == 1)
    if reset:
        linger = struct.pack("ii", 1, 0)
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    client.abort()
    await eventually(lambda: engine.scheduler.totals.aborted == 1, 5)
    await eventually(lambda: engine.scheduler.running == 0)
    assert engine.scheduler.totals.finished == 0


async def test_a_client_that_ends_its_side_in_a_silent_stream_has_left(gateway, engine, connect):
    await engine.set_fault("hang_mid_stream=2")
    client = await connect(gateway)
    await client.send(long_request(stream=True))
    await client.reader.readuntil(b"data: ")
    client.writer.write_eof()
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_replica_inflight") == 0


async def test_a_client_that_ends_its_side_gets_few_interim_answers(gateway, engine, connect, monkeypatch):
    monkeypatch.setattr(disconnect_watch, "_FIRST_PAUSE_SECONDS", 0.01)
    await engine.set_fault("hang")
    client = await connect(gateway)
    await client.send(long_request())
    client.writer.write_eof()
    for _ in range(4):
        assert (await client.answer()).status == 100
    with pytest.raises(TimeoutError):
        await client.answer(1)
    assert await gateway.in_flight() == 1


async def test_the_end_in_the_middle_of_a_body_is_the_end(gateway, engine, connect):
    client = await connect(gateway)
    await client.send(long_request()[:-20])
    client.writer.write_eof()
    assert await asyncio.wait_for(client.reader.read(), HANG_SECONDS) == b""
    assert not engine.requests


async def test_an_old_proxy_that_ends_its_side_has_left(start_engine, start_gateway, connect):
    engine = await start_engine(decode_ms=50)
    gateway = await start_gateway(engine)
    client = await connect(gateway)
    await client.send(long_request().replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    await eventually(lambda: engine.scheduler.running == 1)
    client.writer.write_eof()
    assert await asyncio.wait_for(client.reader.read(), HANG_SECONDS) == b""
    await eventually(lambda: engine.scheduler.totals.aborted == 1)


async def test_a_length_with_thousands_of_zeros_is_reported_to_the_client(gateway, engine, connect):
    client = await connect(gateway)
    body = long_request(max_tokens=1)
    await client.send(body.replace(b"content-length: ", b"content-length: " + b"0" * 5000, 1))
    answer = await client.answer()
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["param"] == "content-length"
    assert not engine.requests
    await client.send(body.replace(b"content-length: ", b"content-length: " + b"0" * 10, 1))
    assert (await client.answer()).status == 200
