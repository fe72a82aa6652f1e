"""How a gateway ends: first it says so, then it takes no more, then what is open ends."""

import json
import signal

import httpx
import pytest
from raw_http import Connection, post
from running_gateway import CHAT, eventually

BODY = b'{"model":"demo","max_tokens":%d,"ignore_eos":true,"stream":%s,"messages":[{"role":"user","content":"Hi"}]}'
LONG = 60.0
"""Seconds that no test waits for: who would, fails."""


async def readiness(url: str) -> tuple[int, str]:
    async with httpx.AsyncClient(base_url=url, verify=False) as client:
        answer = await client.get("/readyz")
        return answer.status_code, answer.json()["status"]


async def connected(serving) -> Connection:
    return await Connection.open(httpx.URL(serving.url).port)


async def test_before_it_ends_it_says_so_and_still_answers(serve, start_engine):
    engine = await start_engine(decode_ms=50)
    serving = await serve(engine.url, server={"drain_seconds": LONG})
    assert await readiness(serving.url) == (200, "ready")
    stream, idle, begun = [await connected(serving) for _ in range(3)]
    await stream.send(post(CHAT, BODY % (100, b"true")))
    await stream.reader.readuntil(b"data: ")
    await idle.send(post(CHAT, BODY % (1, b"false")))
    assert (await idle.answer()).header("connection") is None
    await begun.send(post(CHAT, BODY % (60, b"false")))
    await eventually(lambda: engine.scheduler.running == 2)
    serving.process.terminate()
    await eventually(lambda: bool(serving.events("gateway_draining")))
    assert await readiness(serving.url) == (503, "stopping")
    async with httpx.AsyncClient(base_url=serving.url, verify=False) as client:
        assert (await client.get("/healthz")).status_code == 200
        # New connections are taken, and kept ones go on: each for one answer more.
        answer = await client.post(CHAT, content=BODY % (1, b"false"), headers={"content-type": "application/json"})
        assert answer.status_code == 200
        assert answer.headers["connection"] == "close"
    await idle.send(post(CHAT, BODY % (1, b"false")))
    for connection in (idle, begun):
        answer = await connection.answer()
        assert (answer.status, answer.header("connection")) == (200, "close")
        assert await connection.reader.read() == b""
    whole = await stream.reader.readuntil(b"data: [DONE]\n\n")
    assert b'"error"' not in whole
    assert not serving.events("gateway_stopping")
    serving.process.terminate()
    assert await serving.exit_code() == 0
    assert {event["ending"] for event in serving.events("request_settled")} == {"complete"}


async def test_the_time_to_notice_ends_by_itself(serve, start_engine):
    serving = await serve((await start_engine()).url, server={"drain_seconds": 0.3})
    serving.process.terminate()
    assert await serving.exit_code() == 0
    events = [json.loads(line)["event"] for line in serving.lines]
    assert events.index("gateway_draining") < events.index("gateway_stopping")


async def test_ctrl_c_does_not_wait_for_load_balancers(serve, start_engine):
    serving = await serve((await start_engine()).url, server={"drain_seconds": LONG})
    serving.process.send_signal(signal.SIGINT)
    assert await serving.exit_code() == 0
    assert not serving.events("gateway_draining")


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_asked_twice_it_ends_now(serve, start_engine, second):
    engine = await start_engine(decode_ms=100)
    serving = await serve(engine.url, server={"drain_seconds": LONG, "shutdown_grace_seconds": LONG})
    stream = await connected(serving)
    await stream.send(post(CHAT, BODY % (400, b"true")))
    await stream.reader.readuntil(b"data: ")
    serving.process.terminate()
    await eventually(lambda: bool(serving.events("gateway_draining")))
    serving.process.send_signal(second)
    assert b'"code":"shutting_down"' in await stream.reader.readuntil(b"data: [DONE]\n\n")
    assert await serving.exit_code() == 0
    stream.abort()
