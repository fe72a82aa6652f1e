"""A client that leaves: its work ends at the engine, and its load is given back."""

import asyncio
import json

import pytest
from raw_http import post
from running_gateway import CHAT, eventually


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
