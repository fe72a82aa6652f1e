"""A request that names an earlier one: where the prompts differ first, what that costs, and what only the fleet knows."""

import json
from typing import Any

import pytest
from running_gateway import CHAT, RunningGateway, eventually
from tenancy import ask_as, sections, tenant

from gateway.core.diagnosis import Diagnosis
from gateway.explain.worker import explain_client

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
    return answer.json()["usage"], None if found is None else Diagnosis(**json.loads(found))


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
    again, _ = await sent(gateway, "again", BASE)
    usage, found = await sent(gateway, "other", BASE | fields, x_gateway_explain="first")
    print(found, again, usage)
    assert (found.status, found.changed, found.place) == ("compared", part, place)
    expected = again["prompt_tokens_details"]["cached_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    assert found.tokens == expected
    assert found.fleet == {}
