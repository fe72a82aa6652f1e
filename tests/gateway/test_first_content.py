"""Streams that begin without content: comments, empty events and a role are no answer yet, and another replica may give
it."""

import asyncio
import re

import pytest
from patience import HANG_SECONDS
from running_gateway import CHAT
from scripted_engine import STREAM_HEAD, chunk

ROLE = b'data: {"id":"first","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
TEXT = b'data: {"id":"first","choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"

BEGINNINGS = {
    "comment": b": keep-alive\n\n",
    "comment line": b": keep-alive\n",
    "retry": b"retry: 3000\n\n",
    "empty data": b"data:\n\n",
    "no choices": b'data: {"id":"first","choices":[]}\n\n',
    "role": ROLE,
    "all": b": keep-alive\n\nretry: 5\n\n" + ROLE + b": keep-alive\n\n",
}
PROMPT = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 8}
TURNS = {"placement": {"policy": "round_robin"}}


async def first_at(gateway, **fields):
    """A stream that the first replica began, as the client got it, and the metrics after it."""
    for asked in (1, 2):
        answer = await gateway.ask(**PROMPT | fields)
        if answer.headers["x-gateway-replica"] == "r0":
            return answer, await gateway.settled(asked)
    raise AssertionError("no stream went to the first replica")


@pytest.mark.parametrize("resume", [False, True], ids=["plain", "resume"])
@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
async def test_another_replica_answers_in_the_same_stream(start_gateway, start_engine, scripted, beginning, resume):
    scripted.says(STREAM_HEAD, chunk(beginning), then_close=True, pause=0.02)
    gateway = await start_gateway(scripted, await start_engine(), relay={"resume": resume}, **TURNS)
    answer, metrics = await first_at(gateway)
    raw = answer.content
    assert raw.startswith(beginning)
    assert b'"error"' not in raw
    assert raw.count(b'"role"') == 1
    assert len(set(re.findall(rb'"id":"([^"]+)"', raw))) == 1
    assert re.search(rb'"content":"[^"]', raw)
    assert raw.count(DONE) == 1
    assert metrics.value("gateway_failovers_total", stage="first_byte") == 1
    assert metrics.value("gateway_failovers_total", stage="stream") == 0
    assert metrics.value("gateway_resumed_streams_total") == 0


async def test_a_stream_with_tools_goes_on_too(start_gateway, start_engine, scripted):
    scripted.says(STREAM_HEAD, chunk(ROLE), then_close=True, pause=0.02)
    gateway = await start_gateway(scripted, await start_engine(), **TURNS)
    function = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
    choice = {"type": "function", "function": {"name": "f"}}
    answer, _ = await first_at(
        gateway, tools=[{"type": "function", "function": function}], tool_choice=choice, max_tokens=60
    )
    assert b'"tool_calls"' in answer.content
    assert (answer.content.count(b'"role"'), answer.content.count(b'"error"')) == (1, 0)
    assert set(re.findall(rb'"id":"(first|chatcmpl-[^"]+)"', answer.content)) == {b"first"}


async def test_without_another_replica_the_stream_ends_with_an_error_event(behind, scripted):
    scripted.says(STREAM_HEAD, chunk(BEGINNINGS["comment"]), then_close=True, pause=0.02)
    answer = await behind.ask(**PROMPT)
    assert answer.status_code == 200
    assert answer.content.startswith(BEGINNINGS["comment"] + b'data: {"error"')
    assert answer.content.endswith(DONE)
    metrics = await behind.settled(1)
    assert metrics.value("gateway_failovers_total", stage="first_byte") == 1
    assert metrics.value("gateway_requests_total", status="200") == 1


@pytest.mark.parametrize("fault", ["503", "die_after_head"])
async def test_if_the_other_one_fails_as_well_the_client_gets_one_error_event(
    start_gateway, start_engine, scripted, fault
):
    scripted.says(STREAM_HEAD, chunk(BEGINNINGS["all"]), then_close=True, pause=0.02)
    gateway = await start_gateway(scripted, await start_engine(fault=f"{fault}:path={CHAT}"), **TURNS)
    answer, metrics = await first_at(gateway)
    assert metrics.value("gateway_requests_total", status="200") == metrics.value("gateway_requests_total")
    assert answer.content.count(b'"error"') == answer.content.count(DONE) == 1
    assert answer.content.startswith(BEGINNINGS["all"])


async def test_the_time_to_the_first_token_is_that_of_the_first_content(behind, scripted):
    scripted.says(STREAM_HEAD, chunk(BEGINNINGS["all"]), chunk(TEXT), chunk(DONE) + END, pause=0.4)
    answer = await behind.ask(**PROMPT)
    assert answer.content == BEGINNINGS["all"] + TEXT + DONE
    metrics = await behind.settled(1)
    assert metrics.value("gateway_ttft_seconds_sum") >= 0.75


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
async def test_what_keeps_the_connection_alive_is_passed_on_at_once(behind, scripted, beginning):
    go_on = asyncio.Event()

    async def answer(writer, received):
        writer.write(STREAM_HEAD + chunk(beginning))
        await go_on.wait()
        writer.write(chunk(TEXT) + chunk(DONE) + END)

    scripted.answer = answer
    async with (
        asyncio.timeout(HANG_SECONDS),
        behind.http.stream("POST", CHAT, json={"model": "demo"} | PROMPT) as stream,
    ):
        pieces = stream.aiter_raw()
        got = b""
        while got != beginning:
            got += await anext(pieces)
        go_on.set()
        async for piece in pieces:
            got += piece
    assert got == beginning + TEXT + DONE
    assert stream.headers["x-accel-buffering"] == "no"


async def test_a_hung_engine_that_sends_comments_is_left_for_another_one(start_gateway, start_engine):
    hung = await start_engine(prefill_rate=0.001, keep_alive_seconds=0.02)
    limits = {"first_byte_timeout_seconds": 1.0}
    gateway = await start_gateway(hung, await start_engine(), relay=limits, **TURNS)
    answer, metrics = await first_at(gateway)
    assert answer.content.startswith(b": keep-alive\n\n")
    assert b'"error"' not in answer.content
    assert answer.content.endswith(DONE)
    assert metrics.value("gateway_failovers_total", stage="first_byte") == 1
