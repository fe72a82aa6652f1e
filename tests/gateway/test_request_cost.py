"""What one warm request may cost: calls, system calls and memory. These can be counted, also on a busy machine.

The limits are close to what was reached: a change that exceeds one makes every request more expensive. ``python -m
benchmarks.request_path`` shows the files that are run through, docs/performance.md where the time goes.
"""

import asyncio
import sys
import tracemalloc
from pathlib import Path

import pytest
from raw_http import post
from running_gateway import CHAT
from scripted_engine import STREAM_HEAD, chunk, response

from benchmarks.overhead.bodies import PATHS, body_for
from benchmarks.request_path import Executed, chat

CALLS = 240
"""Python calls in the gateway's code for one request that is not streamed, without explanations."""

CALLS_EXPLAINED = 260
"""The same with explanations: the request is handed over, and what was found is counted."""

CALLS_PER_CHUNK = {"chat": 5, "messages": 18, "responses": 18}
"""Python calls in the gateway's code for one more chunk of a stream that comes in a read of its own, by API."""

CALLS_TRANSLATED = {"messages": 80, "responses": 120}
"""Python calls for a request of another API beyond those for the same chat request."""

SYSTEM_CALLS = 6
"""Reads and writes of the gateway's process for one request on kept connections: two reads, two writes, the log line,
and what is handed to the process that explains."""

PEAK_BYTES = 145_000
"""Memory that one request of 10 KB takes at most while it is served."""

_USAGE = b'"usage":{"prompt_tokens":2000,"completion_tokens":8,"total_tokens":2008}'
_ANSWER = response(b'{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"ok"}}],' + _USAGE + b"}")
_CHUNK = chunk(b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"word"}}]}\n\n')
_LAST = chunk(b'data: {"id":"x","choices":[],' + _USAGE + b"}\n\ndata: [DONE]\n\n") + b"0\r\n\r\n"


def body(*, stream: bool, api: str = "chat") -> bytes:
    return body_for(api, chat(stream=stream).replace(b'"model": "m"', b'"model": "demo"'))


async def executed(ask, times=12):
    """What a typical request executes; before it, the caches are warmed."""
    results = []
    for number in range(5 + times):
        await asyncio.sleep(0.03)  # what follows the request before is over
        each = Executed()
        if number >= 5:
            sys.setprofile(each.trace)
        try:
            await ask()
            await asyncio.sleep(0.02)  # what follows the response belongs to the request
        finally:
            sys.setprofile(None)
        results.append(each)
    # The lower quartile: on a busy machine a request takes so long that health checks fall into it.
    return sorted(each.calls for each in results[5:])[times // 4]


@pytest.mark.parametrize(("explained", "most"), [(False, CALLS), (True, CALLS_EXPLAINED)])
async def test_calls_of_a_request(start_gateway, scripted, connect, explained, most):
    scripted.says(_ANSWER)
    client = await connect(await start_gateway(scripted, explain={"enabled": explained}))

    async def ask():
        await client.send(post(CHAT, body(stream=False)))
        assert (await client.answer()).status == 200

    calls = await executed(ask)
    assert calls <= most


async def test_calls_of_a_translated_request(behind, scripted, connect):
    scripted.says(_ANSWER)
    client = await connect(behind)
    calls = {}
    for api in ("chat", *CALLS_TRANSLATED):
        request = post(PATHS[api], body(stream=False, api=api))

        async def ask(request=request):
            await client.send(request)
            assert (await client.answer()).status == 200

        calls[api] = await executed(ask)
    more = {api: calls[api] - calls["chat"] for api in CALLS_TRANSLATED}
    assert all(more[api] <= most for api, most in CALLS_TRANSLATED.items()), more


@pytest.mark.parametrize("api", CALLS_PER_CHUNK)
async def test_calls_of_a_chunk(behind, scripted, connect, api):
    client = await connect(behind)

    async def ask():
        await client.send(post(PATHS[api], body(stream=True, api=api)))
        answer = await client.answer()
        assert answer.status == 200
        assert answer.body.count(b"word") >= scripted_chunks

    calls = {}
    for scripted_chunks in (10, 60):
        scripted.says(STREAM_HEAD, *[_CHUNK] * scripted_chunks, _LAST, pause=0.001)
        calls[scripted_chunks] = await executed(ask)
    assert (calls[60] - calls[10]) / 50 <= CALLS_PER_CHUNK[api]


async def test_memory_of_a_request(behind, scripted, connect):
    scripted.says(_ANSWER)
    client = await connect(behind)
    peaks = []
    tracemalloc.start()
    try:
        for _ in range(12):
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            await client.send(post(CHAT, body(stream=False)))
            assert (await client.answer()).status == 200
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
            await asyncio.sleep(0.02)
    finally:
        tracemalloc.stop()
    assert min(peaks) <= PEAK_BYTES


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="Linux counts the system calls of a process")
async def test_system_calls_of_a_request(scripted, serve, connect):
    scripted.says(_ANSWER)
    serving = await serve(scripted.url)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(serving.url.rpartition(":")[2]))

    async def ask(times):
        for _ in range(times):
            writer.write(post(CHAT, body(stream=False)))
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(length)

    await ask(20)
    counts = []
    for _ in range(6):  # on a busy machine a request may arrive in two reads
        before = read_and_written(serving.process.pid)
        await ask(50)
        counts.append((read_and_written(serving.process.pid) - before) / 50)
    writer.close()
    assert min(counts) <= SYSTEM_CALLS


def read_and_written(pid: int) -> int:
    """System calls of a process that read or wrote."""
    lines = (line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    counts = {name: int(value) for name, value in lines}
    return counts["syscr"] + counts["syscw"]
