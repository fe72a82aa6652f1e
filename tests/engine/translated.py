"""Check: requests of the Messages and the Responses API against the engine's own conversion of them.

One replica, whose chat template takes a system message at the beginning only.
"""

import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai

from gateway.evaluation.logs.request_bodies import read_body
from gateway.tokenize.load_tokenizer import load_local
from tests.engine.client import TIMEOUT
from tests.engine.findings import Finding
from tests.engine.gateway import Gateway, start_gateway
from tests.engine.places import GOLDEN
from tests.engine.replica import BLOCK_SIZE, MODEL, MODEL_FOLDER, START_SECONDS, Ports, Process, start_replica
from tests.engine.texts import prose

SECTION = "translated"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
REQUESTS = 60
"""Of each API."""

_CONVERSATIONS, _TURNS = 10, 10
"""Of each API."""

_LEAST_SHARE = 0.99
_SYSTEM_FIRST = (
    "{%- for message in messages -%}{%- if message.role == 'system' and not loop.first -%}"
    "{{- raise_exception('System message must be at the beginning.') -}}{%- endif -%}{%- endfor -%}\n"
)
_MESSAGE_JSON = "{{- '\\n' ~ (message | tojson) -}}"
_CALLS = (
    "{%- for call in message.tool_calls -%}"
    "{{- '\\n' ~ call.function.name ~ ' ' ~ (call.function.arguments | tojson) -}}{%- endfor -%}"
)
"""Instead of the message's JSON: the engine's own conversions differ in its order of members."""

_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
_TEXTS = ("Where is Köln?", "東京の天気は？ 😀", "a\n\n  b\t", "<|im_end|>", '{"rows": [1, 2.50, 1e22]}', "Thank you.")


async def translated(folder: Path) -> AsyncIterator[Finding | str]:
    """Start the replica and a gateway, and compare; the engine's version first."""
    template = folder / "system_first.jinja"
    text = (GOLDEN / "agent.jinja").read_text(encoding="utf-8")
    assert _MESSAGE_JSON in text
    template.write_text(_SYSTEM_FIRST + text.replace(_MESSAGE_JSON, _CALLS), encoding="utf-8")
    replica = start_replica(folder, "vllm-translated", template, Ports.free())
    try:
        replica.wait_ready("/health", START_SECONDS)
        yield str(httpx.get(f"{replica.url}/version").json()["version"])
        gateway = start_gateway(folder, [replica], template, "gateway-translated")
        try:
            gateway.wait_ready("/readyz", 60)
            for path, body in ((MESSAGES, message_body), (RESPONSES, response_body)):
                async for finding in _converted(
                    path, [body(number) for number in range(REQUESTS)], replica, gateway, template
                ):
                    yield replace(finding, section=SECTION)
            yield replace(await _conversations(gateway), section=SECTION)
            yield replace(await _reminders(gateway), section=SECTION)
        finally:
            gateway.stop()
    finally:
        replica.stop()


async def _converted(
    path: str, bodies: list[dict[str, Any]], replica: Process, gateway: Gateway, template: Path
) -> AsyncIterator[Finding]:
    """Token ids, and the tokens that the answers report, against the engine's ``…/render`` of the same bodies."""
    encoder = load_local(str(MODEL_FOLDER), chat_template=template.read_text(encoding="utf-8"))
    other_ids, other_counts = [], []
    async with (
        httpx.AsyncClient(base_url=gateway.url, timeout=TIMEOUT) as through,
        httpx.AsyncClient(base_url=replica.url, timeout=TIMEOUT) as direct,
    ):
        for number, body in enumerate(bodies):
            rendered = await direct.post(f"{path}/render", json=body)
            if rendered.status_code != 200:
                other_ids.append(f"{number}: the engine refuses it: {rendered.text[:200]}")
                continue
            expected = rendered.json()["token_ids"]
            ids = [id_ for part in encoder.encode(*read_body(body, path)) for id_ in memoryview(part).cast("I")]
            if ids != expected:
                other_ids.append(f"{number}: {len(ids)} tokens for {len(expected)}")
            counted = [await _input_tokens(through, path, body)]
            if path == MESSAGES:
                asked = {name: value for name, value in body.items() if name != "max_tokens"}
                counted.append((await through.post(f"{path}/count_tokens", json=asked)).json().get("input_tokens"))
            if counted != [len(expected)] * len(counted):
                other_counts.append(f"{number}: {counted} tokens for {len(expected)}")
    for what, others in (("token ids", other_ids), ("tokens that the answers report", other_counts)):
        yield Finding(
            f"{path}: {what} equal to the engine's render of the same request",
            f"{len(bodies) - len(others)} of {len(bodies)}",
            f"all of {REQUESTS}",
            not others and len(bodies) == REQUESTS,
            others,
        )


async def _input_tokens(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> object:
    answer = await client.post(path, json=body)
    if answer.status_code != 200:
        return f"{answer.status_code} {answer.text[:200]}"
    usage = answer.json()["usage"]
    return usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)


def message_body(number: int) -> dict[str, Any]:
    """One request to the Messages API; each number another mix of what clients send."""
    chooser = random.Random(number)
    messages: list[dict[str, Any]] = []
    for turn in range(number % 4):
        messages.append({"role": "user", "content": _blocks(chooser)})
        if (number + turn) % 3:
            messages.append({"role": "assistant", "content": _blocks(chooser)})
            continue
        called = [
            {"type": "tool_use", "id": f"toolu_{turn}_{at}", "name": "weather", "input": {"city": text, "days": at}}
            for at, text in enumerate(chooser.sample(_TEXTS, chooser.choice([1, 1, 2])))
        ]
        said = chooser.choice([[], [_text(chooser)]])
        thought = chooser.choice([[], [{"type": "thinking", "thinking": "The city.", "signature": "c2ln"}]])
        messages.append({"role": "assistant", "content": [*thought, *said, *called]})
        results = [{"type": "tool_result", "tool_use_id": call["id"], **_result(chooser)} for call in called]
        messages.append({"role": "user", "content": [*results, *chooser.choice([[], [_text(chooser)]])]})
        messages.append({"role": "assistant", "content": chooser.choice(_TEXTS)})
    messages.append({"role": "user", "content": _blocks(chooser)})
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 1, "temperature": 0, "messages": messages}
    system = [None, "You know the weather.", [_text(chooser)], [_text(chooser) for _ in range(3)]][number % 5 % 4]
    if system is not None:
        body["system"] = system
    if number % 2 or number % 4 >= 1:
        tool = {"name": "weather", "description": "Weather of a <city>", "input_schema": _SCHEMA}
        body["tools"] = [tool, {"name": "noop", "input_schema": {"type": "object"}}][: 1 + number % 2]
        body |= chooser.choice([{}, {}, {"tool_choice": {"type": "auto"}}, {"tool_choice": {"type": "none"}}])
    return body


def _text(chooser: random.Random) -> dict[str, Any]:
    return {"type": "text", "text": chooser.choice(_TEXTS)} | chooser.choice(
        [{}, {"cache_control": {"type": "ephemeral"}}]
    )


def _blocks(chooser: random.Random) -> Any:
    return chooser.choice([chooser.choice(_TEXTS), [_text(chooser)], [_text(chooser), _text(chooser)]])


def _result(chooser: random.Random) -> dict[str, Any]:
    contents: list[Any] = [
        chooser.choice(_TEXTS),
        [{"type": "text", "text": text} for text in chooser.sample(_TEXTS, 2)],
    ]
    return {"content": chooser.choice(contents)} | chooser.choice([{}, {"is_error": True}])


def response_body(number: int) -> dict[str, Any]:
    """One request to the Responses API; each number another mix of what clients send."""
    chooser = random.Random(number)
    items: list[dict[str, Any]] = []
    for turn in range(number % 4):
        items.append(_item(chooser, "user", "input_text"))
        if (number + turn) % 3:
            items.append(_item(chooser, "assistant", "output_text"))
            continue
        calls = [
            {
                "type": "function_call",
                "call_id": f"call_{turn}_{at}",
                "name": "weather",
                "arguments": f'{{"days": {at}}}',
            }
            for at in range(chooser.choice([1, 1, 2]))
        ]
        items += calls
        items += [
            {"type": "function_call_output", "call_id": call["call_id"], "output": chooser.choice(_TEXTS)}
            for call in calls
        ]
        items.append(_item(chooser, "assistant", "output_text"))
    items.append(_item(chooser, "user", "input_text"))
    body: dict[str, Any] = {"model": MODEL, "max_output_tokens": 1, "temperature": 0, "store": False, "input": items}
    if len(items) == 1 and number % 8 == 0:
        body["input"] = chooser.choice(_TEXTS)
    if number % 3:
        body["instructions"] = chooser.choice(_TEXTS)
    if number % 2 or number % 4 >= 1:
        tool = {"type": "function", "name": "weather", "description": "Weather", "parameters": _SCHEMA, "strict": False}
        noop = {"type": "function", "name": "noop", "parameters": {"type": "object", "properties": {}}}
        body["tools"] = [tool, noop][: 1 + number % 2]
        body |= chooser.choice([{}, {}, {"tool_choice": "auto"}, {"tool_choice": "none"}])
    return body


def _item(chooser: random.Random, role: str, kind: str) -> dict[str, Any]:
    message = {"role": role} | chooser.choice([{}, {"type": "message"}])
    if role == "assistant":
        message = {"type": "message", "role": role, "id": "msg_1", "status": "completed"}
        return message | {"content": [{"type": kind, "text": chooser.choice(_TEXTS), "annotations": []}]}
    parts = [{"type": kind, "text": text} for text in chooser.sample(_TEXTS, chooser.choice([1, 2]))]
    return message | {"content": chooser.choice([chooser.choice(_TEXTS), parts])}


async def _conversations(gateway: Gateway) -> Finding:
    """Predicted against reported tokens of every turn, with the vendors' clients."""
    claude = anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", timeout=300.0)
    codex = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", timeout=300.0)
    exceptions, turns = [], 0
    async with claude, codex:
        for number, make in itertools.product(range(_CONVERSATIONS), (_messages_turns, _responses_turns)):
            ask = make(claude if make is _messages_turns else codex, prose(number, 8))
            for turn in range(_TURNS):
                answer, cached = await ask(f"{_TEXTS[turn % len(_TEXTS)]} ({number}, {turn})")
                turns += 1
                predicted = int(answer.headers["x-gateway-prefix-tokens"])
                if predicted != cached or (turn and not cached):
                    exceptions.append(
                        f"{make.__name__} {number}, turn {turn}: {predicted} tokens predicted, {cached} reported"
                    )
    right = turns - len(exceptions)
    return Finding(
        "Messages and Responses: predicted cached tokens are those that the engine reports, each turn",
        f"{right} of {turns}",
        f"at least {_LEAST_SHARE:.0%} of 200",
        right >= _LEAST_SHARE * turns and turns >= 200,
        exceptions,
    )


_Ask = Callable[[str], Awaitable[tuple[Any, int]]]


def _messages_turns(client: Any, rules: str) -> _Ask:
    messages: list[Any] = []

    async def ask(text: str) -> tuple[Any, int]:
        messages.append({"role": "user", "content": text})
        answer = await client.messages.with_raw_response.create(
            model=MODEL, max_tokens=20, system=rules, messages=messages, extra_body={"temperature": 0}
        )
        message = await answer.parse()
        messages.append({"role": "assistant", "content": [block.model_dump() for block in message.content]})
        return answer, message.usage.cache_read_input_tokens

    return ask


def _responses_turns(client: Any, rules: str) -> _Ask:
    last: list[str] = []

    async def ask(text: str) -> tuple[Any, int]:
        before = {"previous_response_id": last[-1]} if last else {}
        answer = await client.responses.with_raw_response.create(
            model=MODEL, max_output_tokens=20, temperature=0, instructions=rules, input=text, **before
        )
        response = answer.parse()
        last.append(response.id)
        return answer, response.usage.input_tokens_details.cached_tokens

    return ask


async def _reminders(gateway: Gateway) -> Finding:
    """A conversation that gets a system message at each turn."""
    messages: list[dict[str, Any]] = []
    cached = []
    async with httpx.AsyncClient(base_url=gateway.url, timeout=TIMEOUT) as client:
        for turn in range(4):
            messages.append({"role": "user", "content": f"{prose(100 + turn, 3)} What follows?"})
            messages.append({"role": "system", "content": f"Reminder {turn}: be brief."})
            body = {"model": MODEL, "max_tokens": 8, "temperature": 0, "system": prose(99, 12), "messages": messages}
            answer = (await client.post(MESSAGES, json=body)).json()
            cached.append(answer["usage"]["cache_read_input_tokens"])
            messages.append({"role": "assistant", "content": answer["content"]})
    return Finding(
        "Messages, a system message at each turn, a template that takes one at the beginning only: cached tokens",
        ", ".join(map(str, cached)),
        "more at each turn",
        cached[0] == 0 and all(later >= earlier + BLOCK_SIZE for earlier, later in itertools.pairwise(cached)),
    )
