"""A request that names an earlier one: where the prompts differ first, and what that costs."""

import functools
import json
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from fork_server import children
from running_gateway import CHAT, RunningGateway, eventually
from tenancy import ask_as, key, sections, tenant

from gateway.core.diagnosis import UNAVAILABLE, PromptDiagnosis
from gateway.core.ids import RequestId, answer_id
from gateway.explain.worker import explain_client

EXPLANATIONS = "/v1/gateway/explanations"
ON = {"explain": {"enabled": True}}
SYSTEM = "You answer questions about parcels, invoices and returns, in one sentence each. " * 8
TOOL = {
    "type": "function",
    "function": {"name": "find", "description": "Finds parcels. " * 10, "parameters": {"type": "object"}},
}
MESSAGES = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": "Where is my parcel? " * 20},
    {"role": "assistant", "content": "It is on its way. " * 20},
    {"role": "user", "content": "When does it arrive? " * 20},
]
BASE: dict[str, Any] = {"model": "demo", "messages": MESSAGES, "tools": [TOOL], "max_tokens": 1}


@pytest.fixture(autouse=True)
def enough_time(monkeypatch):
    """What is compared is there in time, also on a busy machine."""
    monkeypatch.setattr(explain_client, "_DIAGNOSE_SECONDS", 30.0)


async def sent(gateway: RunningGateway, name: str, body: dict[str, Any], **headers: str):
    """The answer of a request that was answered, and its comparison."""
    names = {key.replace("_", "-"): value for key, value in headers.items()}
    answer = await gateway.http.post(CHAT, json=body, headers={"x-request-id": name} | names)
    assert answer.status_code == 200, answer.text
    found = answer.headers.get("x-gateway-explained")
    return answer.json()["usage"], None if found is None else PromptDiagnosis(**json.loads(found))


def with_message(index: int, **fields: Any) -> list[dict[str, Any]]:
    return [each | (fields if at == index else {}) for at, each in enumerate(MESSAGES)]


CHANGES = {
    "system": ({"messages": with_message(0, content="You are short. " + SYSTEM)}, "system", "messages[0].content"),
    "tools": ({"tools": [TOOL | {"function": TOOL["function"] | {"name": "look_up"}}]}, "tools", "tools[0]"),
    "no_tools": ({"tools": []}, "tools", "tools[0]"),
    "messages": ({"messages": with_message(1, content="Where is it now? " * 25)}, "messages", "messages[1].content"),
    "context": ({"messages": [MESSAGES[0], *MESSAGES[2:]]}, "context", "messages[1]"),
    "key": ({"prompt_cache_key": "other"}, "prompt_cache_key", "prompt_cache_key"),
    "format": ({"response_format": {"type": "json_object"}}, "text_format", "response_format"),
    "effort": ({"reasoning_effort": "high"}, "reasoning_effort", "reasoning_effort"),
    "verbosity": ({"verbosity": "low"}, "verbosity", "verbosity"),
    "tier": ({"service_tier": "flex"}, "service_tier", "service_tier"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_is_named_with_its_place_and_the_tokens_that_it_costs(start_engine, start_gateway, change):
    fields, part, place = CHANGES[change]
    gateway = await start_gateway(await start_engine(), **ON)
    await sent(gateway, "first", BASE)
    usage, found = await sent(gateway, "other", BASE | fields, x_gateway_explain="first")
    assert (found.status, found.changed, found.place, found.fleet) == ("compared", part, place, {})
    reusable = [(await sent(gateway, "again", body))[0] for body in (BASE, BASE | fields)]
    assert found.reusable_tokens == min(map(cached, reusable))
    assert found.tokens == found.reusable_tokens - cached(usage)
    assert found.fix or not found.tokens


def cached(usage: dict[str, Any]) -> int:
    return int(usage["prompt_tokens_details"]["cached_tokens"])


async def test_a_change_of_the_model_costs_the_whole_prompt(start_engine, start_gateway):
    engines = [await start_engine(), await start_engine(model="other")]
    models = [
        {"id": name, "tokenizer": "builtin:demo", "replicas": [{"url": engine.url}]}
        for name, engine in zip(("demo", "other"), engines, strict=True)
    ]
    gateway = await start_gateway(*engines, models=models, **ON)
    await sent(gateway, "first", BASE)
    _, found = await sent(gateway, "second", BASE | {"model": "other"}, x_gateway_explain="first")
    again, _ = await sent(gateway, "again", BASE)
    assert (found.changed, found.reason, found.place, found.tokens) == (
        "model",
        "model_changed",
        "model",
        cached(again),
    )


async def test_the_next_turn_differs_in_nothing(start_engine, start_gateway):
    """Nor does a message that is a list of one text block first, and a string with the same text later."""
    gateway = await start_gateway(await start_engine(), **ON)
    blocks = [each | {"content": [{"type": "text", "text": each["content"]}]} for each in MESSAGES]
    await sent(gateway, "first", BASE | {"messages": [MESSAGES[0], blocks[1]]})
    _, found = await sent(gateway, "second", BASE, x_gateway_explain="first")
    assert (found.status, found.changed, found.tokens, found.fleet) == ("compared", "", 0, {})


async def test_only_requests_of_the_own_tenant_are_found(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), **sections(tenant("acme"), tenant("globex")), **ON)
    await ask_as(gateway, "acme", headers={"x-request-id": "mine"})

    async def named(name: str, earlier: str) -> Any:
        answer = await ask_as(gateway, name, headers={"x-gateway-explain": earlier, "x-request-id": "later"})
        return json.loads(answer.headers["x-gateway-explained"])["status"]

    assert await named("acme", "mine") == "compared"
    assert await named("acme", "chatcmpl-mine") == "compared"
    assert await named("globex", "mine") == await named("acme", "no-such-request") == "not_found"

    async def read(name: str, request_id: str) -> httpx.Response:
        return await gateway.http.get(f"{EXPLANATIONS}/{request_id}", headers={"authorization": f"Bearer {key(name)}"})

    await eventually_true(lambda: read("acme", "msg_mine"))
    foreign, unknown = await read("globex", "mine"), await read("globex", "none")
    assert (foreign.status_code, unknown.status_code) == (404, 404)
    assert foreign.json()["error"]["code"] == unknown.json()["error"]["code"] == "unknown_request"
    assert (await gateway.http.get(f"{EXPLANATIONS}/mine")).status_code == 401


async def test_another_tenant_with_the_same_request_id_hides_nothing(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), **sections(tenant("acme"), tenant("globex")), **ON)
    shown = []
    for name, text in (("acme", "Ours."), ("globex", "Theirs, which is longer.")):
        answer = await ask_as(gateway, name, text, headers={"x-request-id": "shared"})
        path, headers = f"{EXPLANATIONS}/shared", {"authorization": f"Bearer {key(name)}"}
        read = functools.partial(gateway.http.get, path, headers=headers)
        explained = (await eventually_true(read))["explanation"]
        assert explained["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]
        shown.append((read, explained))
    for read, explained in shown:
        assert (await read()).json()["explanation"] == explained
    last = (await gateway.admin.get("/admin/api/requests/shared")).json()
    assert last["tenant"] == "globex"


async def test_nothing_shows_what_other_tenants_have_sent(start_engine, start_gateway):
    tenants = [tenant(name) for name in ("acme", "globex", "initech")]
    gateway = await start_gateway(await start_engine(), **sections(*tenants), **ON)
    await ask_as(gateway, "acme", messages=[MESSAGES[0]])
    own = [{"role": "user", "content": "Things only we ask. " * 8}]
    shown = []
    for name, system in (("globex", SYSTEM), ("initech", SYSTEM.replace("parcels", "letters"))):
        await ask_as(gateway, name, messages=own, headers={"x-request-id": f"own-{name}"})
        headers = {"x-request-id": f"later-{name}", "x-gateway-explain": f"own-{name}"}
        answer = await ask_as(gateway, name, messages=[{"role": "system", "content": system}], headers=headers)
        headers, path = {"authorization": f"Bearer {key(name)}"}, f"{EXPLANATIONS}/later-{name}"
        found = await eventually_true(functools.partial(gateway.http.get, path, headers=headers))
        shown.append((answer.headers["x-gateway-explained"], found["explanation"]["missed"]))
    assert shown[0] == shown[1]
    internal = (await gateway.admin.get("/admin/api/requests/later-globex")).json()
    assert "tenant_isolated" in {each["reason"] for each in internal["missed"]}


async def eventually_true(read: Callable[[], Awaitable[httpx.Response]]) -> dict[str, Any]:
    """The document, as soon as there is one with an explanation."""
    found: dict[str, Any] = {}

    async def there() -> bool:
        found.update((await read()).json())
        return bool(found.get("explanation"))

    await eventually(there)
    return found


async def test_the_result_can_be_read_later_together_with_the_explanation(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), **ON)
    await sent(gateway, "first", BASE)
    changed = BASE | {"messages": with_message(0, content="Short. " + SYSTEM)}
    usage, compared = await sent(gateway, "a/b", changed, x_gateway_explain="first")
    found = await eventually_true(lambda: gateway.http.get(f"{EXPLANATIONS}/a/b"))
    assert (found["id"], PromptDiagnosis(**found["comparison"])) == ("a/b", compared)
    explained = found["explanation"]
    assert explained["hits"] == cached(usage)
    assert explained["hits"] + sum(explained["missed"].values()) == explained["prompt_tokens"] == usage["prompt_tokens"]
    assert "r0" not in json.dumps(found)
    named = await gateway.http.get(f"{EXPLANATIONS}/{answer_id('msg', RequestId('a/b'))}")
    assert named.json()["id"] == "a/b"


async def test_a_prompt_that_is_sent_again_and_again_can_be_named_each_time(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), **ON)
    for number in range(5):
        await sent(gateway, f"r{number}", BASE)
    for number in range(5):
        _, found = await sent(gateway, "later", BASE | {"tools": []}, x_gateway_explain=f"r{number}")
        assert (found.status, found.changed) == ("compared", "tools")


async def test_a_stream_has_the_result_in_its_head(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), **ON)
    await sent(gateway, "first", BASE)
    answer = await gateway.ask(messages=MESSAGES, stream=True, headers={"x-gateway-explain": "first"})
    assert json.loads(answer.headers["x-gateway-explained"])["changed"] == "tools"


async def test_without_explanations_it_is_unavailable(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine())
    _, found = await sent(gateway, "second", BASE, x_gateway_explain="first")
    assert found == UNAVAILABLE
    assert (await gateway.http.get(f"{EXPLANATIONS}/second")).status_code == 404
    _, found = await sent(gateway, "third", BASE)
    assert found is None


async def test_a_process_that_hangs_delays_no_request(start_engine, start_gateway, monkeypatch):
    gateway = await start_gateway(await start_engine(), **ON)
    await sent(gateway, "first", BASE)
    (worker,) = children(os.getpid(), "gateway.explain.worker.process")
    monkeypatch.setattr(explain_client, "_DIAGNOSE_SECONDS", 0.05)
    os.kill(worker, signal.SIGSTOP)
    try:
        _, found = await sent(gateway, "second", BASE, x_gateway_explain="first")
        assert found is None
    finally:
        os.kill(worker, signal.SIGCONT)
    compared = await eventually_true(lambda: gateway.http.get(f"{EXPLANATIONS}/second"))
    assert compared["comparison"]["status"] == "compared"
    os.kill(worker, signal.SIGKILL)
    await eventually(lambda: worker not in children(os.getpid(), "gateway.explain.worker.process"))
    _, found = await sent(gateway, "third", BASE, x_gateway_explain="first")
    assert found in (None, UNAVAILABLE)


async def test_a_result_is_short_and_in_ascii_with_any_names_of_the_client(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), **ON)
    tool = {"type": "function", "function": {"name": "ü" * 60, "parameters": {"type": "object", "ß" * 3000: {}}}}
    await sent(gateway, "first", BASE | {"tools": [TOOL, tool]})
    arguments = {"chat_template_kwargs": {"ö" * 3000: "x"}}
    for change in ({"tools": [TOOL, tool | {"extra": 1}]}, arguments):
        headers = {"x-gateway-explain": "first"}
        answer = await gateway.http.post(CHAT, json=BASE | {"tools": [TOOL, tool]} | change, headers=headers)
        assert len(answer.headers["x-gateway-explained"].encode("ascii")) <= 1024
