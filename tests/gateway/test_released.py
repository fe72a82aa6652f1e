"""Requests are released as soon as they are over, and not by the garbage collector.

In a reference cycle, bodies of many MiB stay in memory until the collector runs, which then frees all of them at once
while the event loop waits.
"""

import asyncio

import pytest
from running_gateway import CHAT

REQUEST = {"model": "demo", "messages": [{"role": "user", "content": "Where is it?"}], "max_tokens": 4}
TALL = {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 3000}]}


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({}, ""),
        ({"stream": True}, ""),
        pytest.param(
            {"messages": [{"role": "user", "content": "Where is it? " * 100_000}]}, "", marks=pytest.mark.slow
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": "Where is it? " * 400_000}]}, "", marks=pytest.mark.slow
        ),
        (TALL, ""),
        ({"model": "none"}, ""),
        ({}, "500:times=2"),
        pytest.param({}, "reset:times=2", marks=pytest.mark.slow),
        ({"stream": True}, "die_mid_stream=1"),
        pytest.param({"stream": True}, "garbage_mid_stream=1", marks=pytest.mark.slow),
    ],
    ids=[
        "whole",
        "stream",
        "large",
        "too-large-to-encode",
        "many-parts",
        "no-model",
        "error",
        "reset",
        "stream-breaks",
        "stream-garbage",
    ],
)
async def test_a_request_is_in_no_reference_cycle(gateway, engine, cyclic, fields, fault):
    if fault:
        await engine.set_fault(fault)
    for _ in range(2):
        await gateway.http.post(CHAT, json=REQUEST | fields, timeout=60)
    await gateway.settled(2)
    await asyncio.sleep(0)
    assert cyclic() == {}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/messages", REQUEST),
        ("/v1/messages", REQUEST | {"model": "none"}),
        ("/v1/messages/count_tokens", REQUEST),
        ("/v1/responses", {"model": "demo", "input": "Where is it?", "max_output_tokens": 4}),
        ("/v1/responses", {"model": "demo", "input": "Where is it?", "max_output_tokens": 4, "store": False}),
    ],
)
async def test_a_translated_request_is_in_no_reference_cycle(gateway, cyclic, path, fields, stream):
    for _ in range(2):
        await gateway.http.post(path, json=fields | {"stream": stream}, timeout=60)
    await asyncio.sleep(0.1)
    assert cyclic() == {}
