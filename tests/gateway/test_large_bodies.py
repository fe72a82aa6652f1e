"""Bodies of many MiB: no single call works on all of one, others are answered meanwhile, and memory is bounded."""

import asyncio
import gc
import json
import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import orjson
import pytest
from api_errors import problem
from levels import slow_except
from raw_http import Connection, post
from running_gateway import CHAT, COMPLETIONS, eventually
from scripted_engine import STREAM_HEAD, Received, chunk

from gateway.api.body_json import joined
from gateway.core.api_keys import hash_key, new_key

MIB = 2**20
MOST_AT_ONCE = 4 * MIB + 4096
"""Bytes that one call may work on: it holds the interpreter lock until it is done."""
MOST_VALUES_AT_ONCE = 50_000
"""Brackets, colons and commas that one call may work on, but for ``orjson.dumps``, which writes 20 of them in a µs."""
ACME, GLOBEX = new_key(), new_key()
TENANTS = [{"id": "acme", "keys": [hash_key(ACME)]}, {"id": "globex", "keys": [hash_key(GLOBEX)]}]
EVENT = b'data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
KINDS = ",:[{"


def chat(more: bytes = b"", content: bytes = b"Hi", behind: bytes = b"") -> bytes:
    messages = b'[{"role":"user","content":"%b"}%b]' % (content, behind)
    return b'{"model":"demo",%b"messages":%b}' % (more, messages)


def filled(piece: bytes, size: int = 16 * MIB - 1000) -> bytes:
    return piece * (size // len(piece))


def twice_filled(piece: bytes) -> bytes:
    """Twice what one call may work on."""
    return filled(piece, 2 * MOST_AT_ONCE)


def members(count: int) -> str:
    return "{" + ",".join(f'"k{number}":0' for number in range(count)) + "}"


def calling(arguments: str) -> bytes:
    """An assistant's message with a tool call of these arguments."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return b"," + orjson.dumps({"role": "assistant", "content": None, "tool_calls": [call]})


def with_tool(parameters: str) -> bytes:
    return chat(b'"tools":[{"type":"function","function":{"name":"f","parameters":%b}}],' % parameters.encode())


def ids(count: int) -> bytes:
    return b"[" + b",".join(b"%d" % (number % 4000) for number in range(count)) + b"]"


def prompts(prompt: bytes) -> bytes:
    return b'{"model":"demo","prompt":' + prompt + b"}"


REFUSED: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "members": (CHAT, lambda: chat(b'"x":0,' * 2_000_000), "too_many_values"),
    "members inside": (CHAT, lambda: chat(b'"x":{' + b'"x":0,' * 2_000_000 + b'"y":0},'), "too_many_values"),
    "NaN behind numbers": (CHAT, lambda: chat(b'"x":[' + b"0," * 7_900_000 + b"NaN],"), "too_many_values"),
    "numbers and objects": (CHAT, lambda: chat(b'"x":[' + b"0," * 7_900_000 + b"{}," * 70 + b"0],"), "too_many_values"),
    "lists in arguments": (CHAT, lambda: chat(behind=calling("[" + "[]," * 4_000_000 + "0]")), "too_many_values"),
    "keys in arguments": (CHAT, lambda: chat(behind=calling(members(1_100_000))), "too_many_values"),
    "keys of a tool": (CHAT, lambda: with_tool(members(900_000)), "too_many_values"),
    "wide characters": (CHAT, lambda: chat(content=filled(b"a") + "😀".encode()), "text_too_long"),
    "a number": (CHAT, lambda: chat(b'"x":1.' + filled(b"1") + b","), "invalid_json"),
    "half a pair": (CHAT, lambda: chat(b'"x":"' + filled(b"\\\\") + b'\\ud800",'), "invalid_unicode"),
    "a byte": (CHAT, lambda: chat(b'"x":"' + filled("漢".encode()) + b'\xff",'), "invalid_utf8"),
}

SERVED: dict[str, tuple[str, Callable[[], bytes]]] = {
    "members": (CHAT, lambda: chat(b'"x":' + members(190_000).encode() + b",")),
    "backslashes": (CHAT, lambda: chat(b'"x":"' + twice_filled(b"\\\\") + b'",')),
    "backslashes and a salt": (CHAT, lambda: chat(b'"cache_salt":"s","x":"' + twice_filled(b"\\\\") + b'",')),
    "NaN": (CHAT, lambda: chat(b'"x":[' + b"0," * 1_000_000 + b"NaN],")),
    "escapes": (CHAT, lambda: chat(content=twice_filled(b"\\u6f22"))),
    "text": (CHAT, lambda: chat(content=filled(b"some words of a text "))),
    "spaces": (CHAT, lambda: b"{" + twice_filled(b" ") + chat()[1:]),
    "Chinese": (CHAT, lambda: chat(content=twice_filled("漢字".encode()))),
    "emoji": (CHAT, lambda: chat(content=twice_filled("😀".encode()))),
    "an image": (
        CHAT,
        lambda: chat(
            behind=b',{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,%b"}}]}'
            % twice_filled(b"QUJD")
        ),
    ),
    "keys in arguments": (CHAT, lambda: chat(behind=calling(members(190_000)))),
    "text in arguments": (CHAT, lambda: chat(behind=calling(json.dumps({"file": "a line of a file\n" * 180_000})))),
    "keys of a tool": (CHAT, lambda: with_tool(members(190_000))),
    "messages": (CHAT, lambda: chat(behind=b',{"role":"user","content":"x"}' * 60_000)),
    "system messages": (CHAT, lambda: chat(behind=b',{"role":"system","content":"x"}' * 60_000)),
    "prompt": (COMPLETIONS, lambda: prompts(b'"' + twice_filled(b"some words of a text ") + b'"')),
    "ids": (COMPLETIONS, lambda: prompts(ids(1_000_000))),
    "prompts of ids": (COMPLETIONS, lambda: prompts(b"[" + b",".join([ids(200)] * 4096) + b"]")),
}


class Work:
    """The longest text, and the most values, that one call of a JSON parser or writer was given by the gateway.

    Values are counted with those in strings, so that texts here have no commas.
    """

    def __init__(self) -> None:
        self.bytes = self.values = 0

    def note(self, text: str | bytes, *, values: bool) -> None:
        self.bytes = max(self.bytes, len(text))
        if values:
            kinds: Any = KINDS if isinstance(text, str) else [kind.encode() for kind in KINDS]
            self.values = max(self.values, sum(map(text.count, kinds)))


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    found = Work()

    def recording(function: Callable[..., Any], *, reads: bool, values: bool) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = function(*arguments, **options)
            caller = sys._getframe(1).f_code.co_filename
            if "/gateway/" in caller and "/tests/" not in caller:
                found.note(arguments[0] if reads else result, values=values)
            return result

        return call

    for module in (json, orjson):
        monkeypatch.setattr(module, "loads", recording(module.loads, reads=True, values=True))
        writes = recording(module.dumps, reads=False, values=module is json)
        monkeypatch.setattr(module, "dumps", writes)
    return found


async def answered_beside(gateway: Any, body: bytes, path: str) -> Any:
    """The answer to a body, beside which a normal client is answered."""
    large = asyncio.create_task(gateway.send(body, path))
    while not large.done():
        assert (await gateway.ask()).status_code == 200
    return await large


# Work


@pytest.mark.parametrize("name", slow_except(REFUSED, ("members", "a number")))
async def test_bodies_that_hold_too_much_are_refused(behind, scripted, work, name):
    path, make, code = REFUSED[name]
    answer = await answered_beside(behind, make(), path)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == code
    if name.endswith("in arguments"):
        assert answer.json()["error"]["param"] == "messages[1].tool_calls[0].function.arguments"
    assert max(len(request.body) for request in scripted.received) < 1000
    assert work.bytes <= MIB
    assert work.values <= MOST_VALUES_AT_ONCE


@pytest.mark.parametrize("name", slow_except(SERVED, ("members", "an image")))
async def test_large_bodies_are_served_without_long_calls(behind, scripted, work, name):
    path, make = SERVED[name]
    body = make()
    assert (await answered_beside(behind, body, path)).status_code == 200
    passed = max(scripted.received, key=lambda request: len(request.body)).body
    # The salt is replaced by the prefix space's own.
    assert passed == body or (b'"cache_salt"' in body and passed.endswith(body[40:]))
    # The address of an image is written once, for an engine that is asked for its tokens.
    assert work.bytes <= (17 * MIB if name == "an image" else MOST_AT_ONCE)
    assert work.values <= MOST_VALUES_AT_ONCE
    assert await behind.in_flight() == 0


async def test_a_million_token_ids_are_counted_exactly(behind):
    answer = await behind.send(prompts(ids(1_000_000)), COMPLETIONS)
    assert answer.status_code == 200
    assert answer.headers["x-gateway-prompt-tokens"] == "1000000"
    assert "x-gateway-tokens" not in answer.headers


async def test_tokens_of_a_text_that_is_too_long_to_encode_are_estimated(behind):
    answer = await behind.send(chat(content=filled(b"some words of a text ")))
    assert answer.status_code == 200
    assert answer.headers["x-gateway-tokens"] == "estimated"


@pytest.mark.parametrize(
    ("setting", "more"),
    [
        ({"max_json_members": 1000}, lambda count: b'"x":' + members(count).encode() + b","),
        ({"max_json_values": 1000}, lambda count: b'"x":[' + b"0," * count + b"0],"),
    ],
    ids=["members", "values"],
)
async def test_limits_are_settings(scripted, start_gateway, setting, more):
    gateway = await start_gateway(scripted, server=setting)
    assert (await gateway.send(chat(more(980)))).status_code == 200
    reported = problem(await gateway.send(chat(more(1000))), 400, "too_many_values")
    assert f"server.{next(iter(setting))}" in reported
    # What stands in a text does not count.
    assert (await gateway.send(chat(content=b"a, b: c" * 2000))).status_code == 200


async def test_arguments_that_are_no_json_are_passed_on(behind, scripted):
    body = chat(behind=calling("[{" * 400_000))
    assert (await behind.send(body)).status_code in (200, 400)
    short = chat(behind=calling("[{" * 1000))
    assert (await behind.send(short)).status_code == 200
    assert scripted.received[-1].body == short


# Memory


def begun(size: int, key: str, sent: int) -> bytes:
    """The head of a request and the first bytes of its body."""
    request = post(CHAT, chat(b'"x":"' + b"f" * size + b'",'), f"authorization: Bearer {key}")
    return request[: request.index(b"\r\n\r\n") + 4 + sent]


@pytest.fixture
async def tenants(scripted, start_gateway):
    """Two tenants, which may hold 4 MiB each, and 6 together."""
    limits = {"max_held_mib": 6, "max_held_tenant_mib": 4, "max_body_bytes": 2 * MIB}
    return await start_gateway(
        scripted, server=limits, tenants=TENANTS, spaces={"secret": "a secret that is long enough"}
    )


async def begin_two(tenants: Any, connect: Callable[..., Any], key: str) -> list[Connection]:
    """Two requests that are not complete, and hold 1.8 MiB each."""
    clients = [await connect(tenants) for _ in range(2)]
    for client in clients:
        await client.send(begun(int(1.9 * MIB), key, int(1.8 * MIB)))
    return clients


def held(tenants: Any) -> int:
    return tenants.gateway.public.generations.held.total


async def test_bodies_that_arrive_are_bounded_for_each_tenant(tenants, connect, scripted):
    clients = await begin_two(tenants, connect, ACME)
    await eventually(lambda: held(tenants) > 3.5 * MIB)
    third = chat(b'"x":"' + b"f" * MIB + b'",')
    refused = await tenants.send(third, authorization=f"Bearer {ACME}")
    assert "max_held_tenant_mib" in problem(refused, 429, "tenant_memory_full")
    assert int(refused.headers["retry-after"]) >= 1
    # A small request of the same tenant, and any of another one, are served.
    assert (await tenants.ask(headers={"authorization": f"Bearer {ACME}"})).status_code == 200
    assert (await tenants.send(third, authorization=f"Bearer {GLOBEX}")).status_code == 200
    for client in clients:
        client.abort()
    await eventually(lambda: held(tenants) == 0)
    assert (await tenants.send(third, authorization=f"Bearer {ACME}")).status_code == 200
    assert len(scripted.received) == 3


async def test_bodies_are_bounded_for_the_process(tenants, connect):
    clients = await begin_two(tenants, connect, ACME) + await begin_two(tenants, connect, GLOBEX)
    answers = [asyncio.create_task(client.answer(5)) for client in clients]
    await eventually(lambda: any(answer.done() for answer in answers))
    (answer,) = [await answer for answer in answers if answer.done()]
    assert answer.status == 503
    assert orjson.loads(answer.body)["error"]["code"] == "memory_full"
    assert answer.header("retry-after")
    for waiting in answers:
        waiting.cancel()
    for client in clients:
        client.abort()
    await eventually(lambda: held(tenants) == 0)
    assert (await tenants.ask(headers={"authorization": f"Bearer {ACME}"})).status_code == 200


@pytest.mark.parametrize(("size", "in_thread"), [(MIB, False), (MIB + 1, True)])
async def test_a_long_body_is_put_together_in_a_thread(size, in_thread):
    """Copying 16 MiB takes milliseconds, in which other clients are served."""
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    with ThreadPoolExecutor(1) as executor, patch.object(executor, "submit", wraps=executor.submit) as submitted:
        assert await joined([body[:1000], body[1000:]], executor) == body
    assert submitted.called == in_thread


async def test_what_a_body_becomes_counts_as_well(tenants):
    body = chat(b'"x":[' + b"0," * 100_000 + b"0],")
    refused = await tenants.send(body, authorization=f"Bearer {ACME}")
    assert len(body) < MIB
    assert "memory" in problem(refused, 413, "request_too_large")
    assert held(tenants) == 0


@pytest.mark.parametrize("resume", [False, True], ids=["", "resume"])
async def test_a_stream_lets_go_of_what_is_not_read_any_more(scripted, start_gateway, connect, resume):
    gateway = await start_gateway(scripted, relay={"resume": resume})
    proceed = asyncio.Event()

    async def answer(writer: asyncio.StreamWriter, received: Received) -> None:
        writer.write(STREAM_HEAD + chunk(EVENT))
        await proceed.wait()
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    assert (await gateway.ask()).status_code == 200
    scripted.answer = answer
    client = await connect(gateway)
    body = b'{"stream":true,' + chat(b'"x":[' + b'"abcdefgh",' * 300_000 + b'""],')[1:]
    request = post(CHAT, body)
    del body
    gc.collect()
    tracemalloc.start()
    try:
        await client.send(request)
        await client.reader.readuntil(b"\r\n\r\n")
        await client.reader.readuntil(EVENT)
        peak = tracemalloc.get_traced_memory()[1]
        scripted.received.clear()
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert peak > 16 * MIB
    # The scripted engine itself holds the body that it got.
    assert kept < len(request) + MIB
    proceed.set()
    await client.reader.readuntil(b"[DONE]")
    await gateway.settled(2)


async def test_a_stream_that_failed_before_its_first_event_is_sent_again(start_gateway, scripted, closing):
    other = type(scripted)()
    await other.start()
    closing.push_async_callback(other.stop)
    gateway = await start_gateway(scripted, other)
    tried: list[bytes] = []

    async def answer(writer: asyncio.StreamWriter, received: Received) -> None:
        tried.append(received.body)
        if len(tried) == 1:
            writer.close()
            return
        writer.write(STREAM_HEAD + chunk(EVENT) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    scripted.answer = other.answer = answer
    body = b'{"stream":true,' + chat(content=b"a" * (3 * MIB))[1:]
    assert (await gateway.send(body)).status_code == 200
    assert [b'"stream_options"' in sent and sent.endswith(body[-3 * MIB :]) for sent in tried] == [True, True]
