"""A stream whose replica dies in the middle goes on at another one (`relay.resume`)."""

import asyncio
import contextlib
import json
import re
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from patience import HANG_SECONDS
from running_gateway import CHAT, COMPLETIONS, eventually

from gateway.core.engine_facts import EngineKind
from gateway.fleet.fleet import Fleet

RESUME = {"resume": True, "retries": 3}
MESSAGES = [{"role": "user", "content": "Tell me a story."}]
LONG = {"model": "demo", "max_tokens": 60, "ignore_eos": True, "temperature": 0}


TEXT = re.compile(rb'"content":"[^"]')


@pytest.fixture
async def engines(start_engine):
    return [await start_engine(decode_ms=15.0) for _ in range(3)]


def begins(raw: bytes, piece: bytes) -> bool:
    """Whether a piece has the first text of a stream: a stream that breaks off before is not one to resume."""
    return TEXT.search(raw) is None and TEXT.search(raw + piece) is not None


def busy(engines) -> list[Any]:
    return [engine for engine in engines if engine.scheduler.running]


async def kill_busy(engines) -> Any:
    """Kill the one engine that computes something."""
    (engine,) = busy(engines)
    await engine.kill()
    return engine


async def undisturbed(start_engine, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer of an engine that nothing happens to, not streamed."""
    engine = await start_engine()
    async with httpx.AsyncClient() as client:
        plain = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        answer = await client.post(engine.url + path, json=plain)
    assert answer.status_code == 200
    return answer.json()


class Read:
    """A stream as it came.

    Attributes:
        raw: Its bytes.
        chunks: Its events' JSON, without the end mark.
    """

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        lines = [line[6:] for line in raw.splitlines() if line.startswith(b"data: ")]
        assert lines.count(b"[DONE]") == 1
        assert lines[-1] == b"[DONE]"
        self.chunks = [json.loads(line) for line in lines[:-1]]

    @property
    def text(self) -> str:
        choices = [chunk["choices"][0] for chunk in self.chunks if chunk.get("choices")]
        return "".join(c["delta"].get("content") or "" if "delta" in c else c["text"] for c in choices)

    @property
    def usage(self) -> dict[str, Any]:
        (found,) = [chunk["usage"] for chunk in self.chunks if chunk.get("usage")]
        return found

    @property
    def error(self) -> dict[str, Any] | None:
        return next((chunk["error"] for chunk in self.chunks if "error" in chunk), None)


async def read(gateway, body: dict[str, Any], engines, *, kill_after: tuple[int, ...] = (), path: str = CHAT) -> Read:
    """Stream an answer, and kill the engine that computes it after so many events, again and again."""
    raw = b""
    kills = list(kill_after)
    async with gateway.http.stream("POST", path, json=body | {"stream": True}) as answer:
        assert answer.status_code == 200
        async for piece in answer.aiter_raw():
            raw += piece
            if kills and raw.count(b"\n\n") >= kills[0]:
                del kills[0]
                await kill_busy(engines)
    assert not kills
    return Read(raw)


async def test_the_sdk_sees_one_stream(start_gateway, start_engine, engines, sdk):
    gateway = await start_gateway(*engines, relay=RESUME)
    expected = await undisturbed(start_engine, CHAT, {**LONG, "messages": MESSAGES})
    text, ids, roles, reasons, usage, killed = "", set(), 0, [], None, None
    stream = await sdk(gateway).chat.completions.create(
        model="demo",
        messages=MESSAGES,
        max_tokens=60,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    async for chunk in stream:
        ids.add((chunk.id, chunk.created, chunk.model))
        usage = chunk.usage or usage
        for choice in chunk.choices:
            roles += choice.delta.role is not None
            reasons += [choice.finish_reason] if choice.finish_reason else []
            text += choice.delta.content or ""
        if killed is None and len(text.split()) == 10:
            killed = await kill_busy(engines)
    assert text == expected["choices"][0]["message"]["content"]
    assert len(ids) == 1
    assert (roles, reasons) == (1, ["length"])
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (
        expected["usage"]["prompt_tokens"],
        60,
        expected["usage"]["prompt_tokens"] + 60,
    )
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_requests_total", status="200") == 1
    assert metrics.value("gateway_failovers_total", stage="stream") == 1
    assert metrics.value("gateway_prompt_tokens_total") == expected["usage"]["prompt_tokens"]
    assert metrics.value("gateway_resumed_streams_total", result="whole") == 1


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (CHAT, {"messages": MESSAGES}),
        (CHAT, {"messages": [*MESSAGES, {"role": "assistant", "content": "Well:\n"}], "continue_final_message": True}),
        (COMPLETIONS, {"prompt": "A story:\n"}),
        (COMPLETIONS, {"prompt": [400, 401, 402]}),
    ],
    ids=["chat", "continued chat", "completion", "completion of tokens"],
)
@pytest.mark.parametrize("kill_after", [(3,), (20,), (5, 30)], ids=["early", "late", "twice"])
async def test_the_answer_is_what_it_would_have_been(start_gateway, start_engine, engines, path, asked, kill_after):
    gateway = await start_gateway(*engines, relay=RESUME)
    body = LONG | asked | {"add_generation_prompt": False} if "continue_final_message" in asked else LONG | asked
    expected = await undisturbed(start_engine, path, body)
    body["stream_options"] = {"include_usage": True}
    got = await read(gateway, body, engines, kill_after=kill_after, path=path)
    choice = expected["choices"][0]
    assert got.text == (choice["message"]["content"] if path == CHAT else choice["text"])
    assert len({chunk["id"] for chunk in got.chunks}) == 1
    assert got.usage["prompt_tokens"] == expected["usage"]["prompt_tokens"]
    assert got.usage["completion_tokens"] == expected["usage"]["completion_tokens"] == 60
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_failovers_total", stage="stream") == len(kill_after)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_an_answer_that_ends_by_itself_has_its_end(start_gateway, start_engine, engines, path):
    gateway = await start_gateway(*engines, relay=RESUME)
    asked = {"messages": MESSAGES} if path == CHAT else {"prompt": "A story:\n"}
    body = {"model": "demo", "max_tokens": 400, "min_tokens": 24} | asked
    expected = await undisturbed(start_engine, path, body)
    got = await read(gateway, body, engines, kill_after=(10,), path=path)
    assert [c["choices"][0]["finish_reason"] for c in got.chunks][-1] == "stop"
    assert got.text == (expected["choices"][0].get("message") or {}).get("content", expected["choices"][0].get("text"))


async def test_a_usage_that_was_not_asked_for_is_not_sent(start_gateway, engines):
    gateway = await start_gateway(*engines, relay=RESUME)
    got = await read(gateway, LONG | {"messages": MESSAGES}, engines, kill_after=(8,))
    assert not any(chunk.get("usage") for chunk in got.chunks)


async def test_the_first_byte_is_the_first_replicas(start_gateway, engines):
    gateway = await start_gateway(*engines, relay=RESUME)
    await gateway.ask(max_tokens=1)
    sent, first_after, raw = time.monotonic(), 0.0, b""
    async with gateway.http.stream("POST", CHAT, json=LONG | {"messages": MESSAGES, "stream": True}) as answer:
        async for piece in answer.aiter_raw():
            first_after = first_after or time.monotonic() - sent
            if raw.count(b"\n\n") < 50 <= (raw + piece).count(b"\n\n"):
                await kill_busy(engines)
            raw += piece
    metrics = await gateway.settled(2)
    assert metrics.value("gateway_resumed_streams_total", result="whole") == 1
    # The gateway saw it before the client did.
    assert 0 < metrics.value("gateway_ttft_seconds_sum") < first_after


async def test_a_stop_text_ends_the_answer_behind_the_seam(start_gateway, start_engine, engines):
    gateway = await start_gateway(*engines, relay=RESUME)
    body = LONG | {"messages": MESSAGES}
    words = (await undisturbed(start_engine, CHAT, body))["choices"][0]["message"]["content"].split(" ")
    body["stop"] = " ".join(words[29:32])
    expected = await undisturbed(start_engine, CHAT, body)
    got = await read(gateway, body, engines, kill_after=(12,))
    assert got.text == expected["choices"][0]["message"]["content"]
    assert got.chunks[-1]["choices"][0]["finish_reason"] == "stop"


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [TOOL]},
        {"logprobs": True},
        {"n": 2},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "array"}}}},
    ],
    ids=["tools", "logprobs", "n", "response_format"],
)
async def test_what_is_more_than_text_ends_with_an_error_event(start_gateway, start_engine, fields):
    engines = [await start_engine(fault="die_mid_stream=3") for _ in range(2)]
    gateway = await start_gateway(*engines, relay=RESUME)
    got = await read(gateway, LONG | {"messages": MESSAGES} | fields, engines)
    assert got.error is not None
    assert got.error["code"] == "replica_disconnected"
    assert sum(len(engine.requests) for engine in engines) == 1
    await gateway.settled(1)


async def test_another_engine_than_vllm_is_not_asked(start_gateway, start_engine):
    engines = [await start_engine(flavor=EngineKind.SGLANG, fault="die_mid_stream=3") for _ in range(2)]
    gateway = await start_gateway(*engines, relay=RESUME)
    got = await read(gateway, LONG | {"messages": MESSAGES}, engines)
    assert got.error is not None
    assert sum(each.path == CHAT for engine in engines for each in engine.requests) == 1


async def test_who_refuses_to_go_on_is_not_expected_to_have_the_prompt(start_gateway, engines):
    gateway = await start_gateway(*engines[:2], relay=RESUME)
    body = LONG | {"messages": [{"role": "user", "content": "Tell me a story. " * 20}]}
    raw = b""
    async with gateway.http.stream("POST", CHAT, json=body | {"stream": True}) as answer:
        async for piece in answer.aiter_raw():
            if begins(raw, piece):
                other = next(engine for engine in engines[:2] if engine not in busy(engines))
                await other.set_fault("500")
                await kill_busy(engines)
            raw += piece
    assert Read(raw).error is not None
    await gateway.settled(1)
    await other.set_fault("")
    again = await gateway.ask(messages=body["messages"], max_tokens=1)
    assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again.headers["x-gateway-prefix-tokens"] == "0"


async def test_off_by_default(start_gateway, engines):
    gateway = await start_gateway(*engines)
    got = await read(gateway, LONG | {"messages": MESSAGES}, engines, kill_after=(8,))
    assert got.error is not None
    await gateway.settled(1)


async def test_no_replica_is_left(start_gateway, start_engine):
    engine = await start_engine(decode_ms=4.0)
    gateway = await start_gateway(engine, relay=RESUME)
    got = await read(gateway, LONG | {"messages": MESSAGES}, [engine], kill_after=(8,))
    assert got.error is not None
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_resumed_streams_total") == 0


@pytest.mark.parametrize("fault", ["500", "429", "die_before_first_byte", "die_mid_stream=1", "garbage"])
async def test_who_should_go_on_fails(start_gateway, engines, fault):
    gateway = await start_gateway(*engines[:2], relay=RESUME)
    first = (await gateway.ask(max_tokens=1)).headers["x-gateway-replica"]
    other = engines[1 if first == "r0" else 0]
    body = LONG | {"messages": [{"role": "user", "content": "Hello."}]}
    raw = b""
    async with gateway.http.stream("POST", CHAT, json=body | {"stream": True}) as answer:
        assert answer.headers["x-gateway-replica"] == first
        async for piece in answer.aiter_raw():
            if begins(raw, piece):
                await other.set_fault(fault)
                await kill_busy(engines)
            raw += piece
    got = Read(raw)
    assert got.error is not None
    assert got.error["code"] == "replica_disconnected"
    assert len({chunk["id"] for chunk in got.chunks if "id" in chunk}) == 1
    metrics = await gateway.settled(2)
    assert metrics.value("gateway_resumed_streams_total", result="broken") == 1
    assert metrics.value("gateway_requests_total", status="200") == 2


async def test_the_deadline_counts_on_while_another_one_is_asked(start_gateway, engines):
    gateway = await start_gateway(*engines[:2], relay=RESUME)
    raw = b""
    body = LONG | {"messages": MESSAGES, "stream": True}
    async with gateway.http.stream("POST", CHAT, json=body, headers={"x-request-timeout": "1.5"}) as answer:
        async for piece in answer.aiter_raw():
            if begins(raw, piece):
                await next(engine for engine in engines[:2] if engine not in busy(engines)).set_fault("hang")
                await kill_busy(engines)
            raw += piece
    got = Read(raw)
    assert got.error is not None
    assert got.error["code"] == "deadline_exceeded"
    await gateway.settled(1)


async def test_no_replica_is_left_at_the_last_moment(start_gateway, engines, monkeypatch):
    gateway = await start_gateway(*engines[:2], relay=RESUME)
    routable = Fleet.routable
    answers: list[int] = []

    def leaving(self: Fleet, *arguments: Any) -> Any:
        found = routable(self, *arguments)
        if not any(arguments[2:3]):  # no replica has failed the request yet
            return found
        answers.append(len(found))
        return found if len(answers) == 1 else []

    monkeypatch.setattr(Fleet, "routable", leaving)
    got = await read(gateway, LONG | {"messages": MESSAGES}, engines, kill_after=(8,))
    assert answers[0] == 1
    assert len(answers) > 1
    assert got.error is not None
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_requests_total", status="200") == 1


async def test_another_one_goes_on_where_the_next_one_refuses_connections(start_gateway, start_engine, engines):
    gateway = await start_gateway(*engines, relay=RESUME)
    body = LONG | {"messages": MESSAGES}
    expected = await undisturbed(start_engine, CHAT, body)
    raw = b""
    async with gateway.http.stream("POST", CHAT, json=body | {"stream": True}) as answer:
        async for piece in answer.aiter_raw():
            if begins(raw, piece):
                await next(engine for engine in engines if engine not in busy(engines)).set_fault("refuse")
                await kill_busy(engines)
            raw += piece
    assert Read(raw).text == expected["choices"][0]["message"]["content"]
    await gateway.settled(1)


async def test_a_client_that_leaves_meanwhile_leaves_nothing_behind(start_gateway, engines):
    gateway = await start_gateway(*engines, relay=RESUME)
    async with gateway.http.stream("POST", CHAT, json=LONG | {"messages": MESSAGES, "stream": True}) as answer:
        await anext(answer.aiter_raw())
        await kill_busy(engines)
        await eventually(lambda: len(busy(engines)) == 1)
    await gateway.settled(1)
    await eventually(lambda: not busy(engines))


async def test_the_next_turn_is_expected_where_the_answer_was_finished(start_gateway, engines):
    gateway = await start_gateway(*engines, relay=RESUME)
    body = LONG | {"messages": MESSAGES, "stream_options": {"include_usage": True}}
    got = await read(gateway, body, engines, kill_after=(20,))
    await gateway.settled(1)
    said = {"role": "assistant", "content": got.text}
    turn = await gateway.ask(messages=[*MESSAGES, said, {"role": "user", "content": "Go on."}], max_tokens=2)
    assert turn.status_code == 200
    predicted = int(turn.headers["x-gateway-prefix-tokens"])
    assert predicted >= 48
    assert turn.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == predicted
    await gateway.settled(2)


async def test_many_streams_survive_the_death_of_a_replica(start_gateway, start_engine, engines):
    gateway = await start_gateway(*engines, relay=RESUME)
    bodies = [LONG | {"messages": [{"role": "user", "content": f"Story {number}"}]} for number in range(12)]
    expected = [await undisturbed(start_engine, CHAT, body) for body in bodies[:3]]
    reading = [asyncio.create_task(read(gateway, body, engines)) for body in bodies]
    await eventually(lambda: all(engine.scheduler.running for engine in engines))
    await engines[0].kill()
    got = await asyncio.gather(*reading)
    assert not any(each.error for each in got)
    assert [each.text for each in got[:3]] == [each["choices"][0]["message"]["content"] for each in expected]
    assert all(len(each.text.split()) >= 50 for each in got)
    metrics = await gateway.settled(12)
    assert metrics.value("gateway_requests_total", status="200") == 12


async def test_what_was_computed_again_is_explained_by_the_failure(start_gateway, engines):
    gateway = await start_gateway(*engines, relay=RESUME, explain={"enabled": True})
    rules = {"role": "system", "content": "You answer questions about parcels, in one sentence each. " * 12}
    await gateway.ask(messages=[rules, MESSAGES[0]], max_tokens=1)
    body = LONG | {"messages": [rules, {"role": "user", "content": "Another one."}]}
    got = await read(gateway, body | {"stream_options": {"include_usage": True}}, engines, kill_after=(20,))
    metrics = await gateway.settled(2)
    found: dict[str, Any] = {}

    async def explained() -> bool:
        found.update((await gateway.admin.get("/admin/api/summary")).json())
        return found.get("requests", 0) >= 2

    await eventually(explained)
    missed = {each["code"]: each["tokens"] for each in found["reasons"] if each["tokens"]}
    assert missed["failover"] >= 96
    assert found["prompt_tokens"] == metrics.value("gateway_prompt_tokens_total")
    assert got.usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert metrics.value("gateway_token_parity_total") == 1  # what the gateway counted itself proves nothing


@dataclass(frozen=True)
class At:
    """An engine in a process of its own."""

    url: str


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_process_that_dies_or_stands_still(start_gateway, start_engine, closing, number):
    command = [sys.executable, "-m", "gateway", "engine", "--port", "0", "--prefill-rate", "1e6", "--decode-ms", "100"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)

    async def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    closing.push_async_callback(end)
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().split()[-1]
    checks = {"health_interval_seconds": 0.3, "health_timeout_seconds": 1, "unhealthy_after": 2}
    gateway = await start_gateway(At(url), await start_engine(), relay=RESUME | checks)
    for seed in range(20):  # a prompt that is warm at the process
        body = LONG | {"messages": [{"role": "user", "content": f"Story {seed}. " * 30}]}
        if (await gateway.ask(**body | {"max_tokens": 2})).headers["x-gateway-replica"] == "r0":
            break
    expected = await undisturbed(start_engine, CHAT, body)
    raw = b""
    async with asyncio.timeout(HANG_SECONDS), gateway.http.stream("POST", CHAT, json=body | {"stream": True}) as answer:
        assert answer.headers["x-gateway-replica"] == "r0"
        async for piece in answer.aiter_raw():
            if begins(raw, piece):
                process.send_signal(number)
            raw += piece
    assert Read(raw).text == expected["choices"][0]["message"]["content"]
    metrics = await gateway.settled(seed + 2)
    assert metrics.value("gateway_resumed_streams_total", result="whole") == 1
