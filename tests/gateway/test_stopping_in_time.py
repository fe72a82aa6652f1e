"""However its replicas and Redis fail to answer, a gateway ends when its drain and grace periods are over."""

import asyncio
import time

import httpx
import pytest
from levels import slow_except
from patience import HANG_SECONDS
from raw_http import Connection, post
from running_gateway import CHAT, eventually
from silent_peers import KINDS, settle

BODY = b'{"model":"demo","max_tokens":4000,"ignore_eos":true,"stream":true,"messages":[{"role":"user","content":"Hi"}]}'
DRAIN, GRACE, ENDS = 0.5, 1.0, 2.0
BUSY = 8.0
"""How much longer a busy machine may take; what is tested for took from forty seconds to minutes."""


@pytest.fixture
def peers(tmp_path, closing):
    def start(kind):
        folder = tmp_path / kind
        folder.mkdir()
        return closing.enter_context(KINDS[kind](folder))

    return start


async def ended_after(serving) -> float:
    began = time.monotonic()
    serving.process.terminate()
    await serving.exit_code(DRAIN + GRACE + ENDS + BUSY)
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("kind", "workers"),
    slow_except(
        [("unreachable", 1), ("unresolvable", 1), ("unresolvable", 2), ("frozen", 1), ("frozen", 2), ("half-open", 1)],
        [("unreachable", 1), ("frozen", 2)],
    ),
)
async def test_open_streams_get_their_time_and_then_an_error(serve, start_engine, peers, closing, kind, workers):
    silent = peers(kind)
    engines = [] if kind == "frozen" else [(await start_engine(decode_ms=50)).url]
    serving = await serve(
        *engines,
        *silent.replicas,
        server={"drain_seconds": DRAIN, "shutdown_grace_seconds": GRACE, "workers": workers},
        state=silent.redis,
        spaces={"secret": "what all gateways have in common"},
        environment=silent.environment,
    )
    streams = [await Connection.open(httpx.URL(serving.url).port) for _ in range(4)]
    for stream in streams:
        closing.callback(stream.abort)
        await stream.send(post(CHAT, BODY))
        async with asyncio.timeout(HANG_SECONDS):
            await stream.reader.readuntil(b"data: ")
    await settle()
    silent.freeze()
    began = time.monotonic()
    serving.process.terminate()
    rest = await asyncio.gather(*(stream.reader.readuntil(b"data: [DONE]\n\n") for stream in streams))
    assert time.monotonic() - began >= DRAIN + GRACE - 0.2
    assert all(b'"code":"shutting_down"' in each for each in rest)
    assert await serving.exit_code(DRAIN + GRACE + ENDS + BUSY) == 0
    assert not serving.events("exit_forced")


@pytest.mark.parametrize("kind", slow_except(["unreachable", "unresolvable", "half-open"], ["unreachable"]))
async def test_it_also_ends_while_it_starts(serve, peers, kind):
    silent = peers(kind)
    serving = await serve(
        *silent.replicas,
        state=silent.redis,
        spaces={"secret": "what all gateways have in common"},
        environment=silent.environment,
        relay={"health_timeout_seconds": 60, "connect_timeout_seconds": 60},
        wait=False,
    )
    await eventually(lambda: bool(serving.events("tokenizer_ready")))
    await settle()
    assert not serving.events("gateway_ready")
    assert await ended_after(serving) < DRAIN + GRACE + ENDS + BUSY
    assert serving.process.returncode == 143
