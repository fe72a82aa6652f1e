"""Comparisons with an earlier request in both vendors' fields, as their SDKs read them."""

import anthropic
import anthropic.types
import openai
import pytest
from openai.types.responses.response import PromptCacheDiagnostics
from pydantic import TypeAdapter

from gateway.api.diagnostics import anthropic_diagnostics, diagnosis_of, openai_diagnostics
from gateway.core.diagnosis import NOT_FOUND, UNAVAILABLE, PromptDiagnosis
from gateway.core.ids import RequestId, answer_id, requests_named
from gateway.explain.worker import explain_client

CODES = {
    "model": ("model_changed", "model_changed"),
    "system": ("system_changed", "input_changed"),
    "tools": ("tools_changed", "tools_changed"),
    "messages": ("messages_changed", "input_changed"),
    "context": ("messages_changed", "context_compacted"),
    "prompt_cache_key": ("unavailable", "prompt_cache_key_changed"),
    "text_format": ("unavailable", "text_format_changed"),
    "reasoning_effort": ("unavailable", "reasoning_effort_changed"),
    "verbosity": ("unavailable", "verbosity_changed"),
    "service_tier": ("unavailable", "service_tier_changed"),
    "parameters": ("unavailable", "input_changed"),
}
_openai = TypeAdapter(PromptCacheDiagnostics).validate_python


def _through_the_header(diagnosis: PromptDiagnosis) -> PromptDiagnosis:
    found = diagnosis_of({b"x-gateway-explained": diagnosis.header()})
    assert found == diagnosis
    return found


@pytest.mark.parametrize("changed", CODES)
def test_every_change_has_its_code(changed):
    diagnosis = _through_the_header(
        PromptDiagnosis("compared", changed, "system_changed", "system", 96, 128, "Do this.", {"evicted": 16})
    )
    own = {"reason": "system_changed", "place": "system", "tokens": 96, "fix": "Do this.", "fleet": {"evicted": 16}}
    message = anthropic.types.Diagnostics.model_validate(anthropic_diagnostics(diagnosis), strict=True)
    response = _openai(openai_diagnostics(diagnosis))
    assert (message.cache_miss_reason.type, response.reason) == CODES[changed]
    if message.cache_miss_reason.type != "unavailable":
        assert message.cache_miss_reason.cache_missed_input_tokens == 96
    assert (response.cache_missed_tokens, response.comparison_reusable_tokens) == (96, 128)
    assert message.gateway == response.gateway == own


@pytest.mark.parametrize(
    ("diagnosis", "of_message", "of_response"),
    [
        (NOT_FOUND, "previous_message_not_found", "comparison_response_not_found"),
        (UNAVAILABLE, "unavailable", "unavailable"),
        (PromptDiagnosis(reason="evicted", fleet={"evicted": 64}), "unavailable", "unavailable"),
    ],
)
def test_what_is_no_change_has_its_code_as_well(diagnosis, of_message, of_response):
    shown = anthropic_diagnostics(_through_the_header(diagnosis))
    assert anthropic.types.Diagnostics.model_validate(shown).cache_miss_reason.type == of_message
    assert shown["gateway"]["fleet"] == diagnosis.fleet
    assert _openai(openai_diagnostics(diagnosis)).type == of_response


def test_no_change_and_no_result_yet():
    assert anthropic_diagnostics(PromptDiagnosis()) is None
    assert _openai(openai_diagnostics(PromptDiagnosis())).type == "cache_hit"
    assert anthropic_diagnostics(PromptDiagnosis(changed="service_tier")) is None
    assert diagnosis_of({}) is None
    assert anthropic.types.Diagnostics.model_validate(anthropic_diagnostics(None)).cache_miss_reason is None
    assert _openai(openai_diagnostics(None)).type == "unavailable"


@pytest.mark.parametrize("request_id", ["0af3", "a-b", "msg_1", "_", "a/b c?", "x" * 128, "~!", "msg__61"])
@pytest.mark.parametrize("kind", ["msg", "resp"])
def test_an_answers_id_leads_back_to_its_request(kind, request_id):
    answer = answer_id(kind, RequestId(request_id))
    assert answer.replace("_", "").replace("-", "").isalnum()
    assert answer.isascii()
    assert requests_named(answer)[-1] == request_id
    assert requests_named(request_id)[0] == request_id


@pytest.mark.parametrize("given", ["msg__zz", "msg__ff", "msg_", "msg", "resp__"])
def test_an_id_that_leads_to_no_request_stands_for_itself(given):
    assert requests_named(given)[0] == given


SYSTEM = "You answer questions about parcels, invoices and returns, in one sentence each. " * 8
USER = [{"role": "user", "content": "Where is my parcel? " * 20}]


@pytest.fixture
async def explaining(start_engine, start_gateway, monkeypatch):
    """A gateway that compares prompts, in any time."""
    monkeypatch.setattr(explain_client, "_DIAGNOSE_SECONDS", 30.0)
    engine = await start_engine(prompt_tokens_details=True)
    return await start_gateway(engine, explain={"enabled": True})


async def test_a_message_names_the_one_before(explaining, closing):
    client = anthropic.AsyncAnthropic(base_url=explaining.url, api_key="sk-test", max_retries=0)
    closing.push_async_callback(client.close)
    ask = {"model": "demo", "max_tokens": 4, "messages": USER}
    first = await client.messages.create(**ask, system=SYSTEM, diagnostics={"previous_message_id": None})
    assert first.diagnostics is None
    named = {"diagnostics": {"previous_message_id": first.id}}
    blocks = [{"type": "text", "text": SYSTEM}]
    same = await client.messages.create(**ask, system=blocks, **named)
    assert same.diagnostics is None
    other = await client.messages.create(**ask, system=f"Hello. {SYSTEM}", **named)
    reason = other.diagnostics.cache_miss_reason
    assert reason.type == "system_changed"
    assert other.diagnostics.gateway["place"] == "system"
    assert 0 < reason.cache_missed_input_tokens <= other.usage.input_tokens + other.usage.cache_read_input_tokens
    async with client.messages.stream(**ask, system=f"Hello. {SYSTEM}", **named) as stream:
        (begun,) = [event async for event in stream if event.type == "message_start"]
    assert begun.message.diagnostics.cache_miss_reason.type == "system_changed"
    unknown = await client.messages.create(**ask, diagnostics={"previous_message_id": "msg_0"})
    assert unknown.diagnostics.cache_miss_reason.type == "previous_message_not_found"


async def test_a_response_names_the_one_before(explaining, closing):
    client = openai.AsyncOpenAI(base_url=f"{explaining.url}/v1", api_key="sk-test", max_retries=0)
    closing.push_async_callback(client.close)
    ask = {"model": "demo", "max_output_tokens": 4, "input": USER, "store": False}
    first = await client.responses.create(**ask, instructions=SYSTEM)
    named = {"prompt_cache_options": {"comparison_response_id": first.id}}
    same = await client.responses.create(**ask, instructions=SYSTEM, **named)
    assert same.prompt_cache_diagnostics.type == "cache_hit"
    other = await client.responses.create(**ask, instructions=f"Hello. {SYSTEM}", **named)
    found = other.prompt_cache_diagnostics
    assert (found.type, found.reason) == ("cache_miss", "input_changed")
    assert found.gateway["place"] == "instructions"
    stream = await client.responses.create(**ask, instructions=SYSTEM, stream=True, **named)
    events = [event async for event in stream]
    assert events[-1].response.prompt_cache_diagnostics.type == "cache_hit"
    gone = await client.responses.create(**ask, prompt_cache_options={"comparison_response_id": "resp_0"})
    assert gone.prompt_cache_diagnostics.type == "comparison_response_not_found"


TURNS = [
    *USER,
    {"role": "assistant", "content": "It is on its way. " * 20},
    {"role": "user", "content": "When does it arrive? " * 20},
]
SCHEMA = {"type": "object", "properties": {"number": {"type": "string"}}}
TOOL = {"name": "find", "description": "Finds parcels by their numbers. " * 10}
OTHER_TOOL = TOOL | {"description": "Looks up parcels by their numbers. " * 10}
OTHER_TURNS = [USER[0] | {"content": "Where is it now? " * 25}, *TURNS[1:]]


@pytest.fixture
async def two_models(start_engine, start_gateway, monkeypatch):
    """A gateway that compares prompts, in any time, in front of two models."""
    monkeypatch.setattr(explain_client, "_DIAGNOSE_SECONDS", 30.0)
    names = ("demo", "other")
    engines = [await start_engine(prompt_tokens_details=True, model=name) for name in names]
    models = [
        {"id": name, "tokenizer": "builtin:demo", "replicas": [{"url": engine.url}]}
        for name, engine in zip(names, engines, strict=True)
    ]
    return await start_gateway(*engines, models=models, explain={"enabled": True})


OF_MESSAGES = {
    "model_changed": {"model": "other"},
    "system_changed": {"system": f"Hello. {SYSTEM}"},
    "tools_changed": {"tools": [OTHER_TOOL | {"input_schema": SCHEMA}]},
    "messages_changed": {"messages": OTHER_TURNS},
    "previous_message_not_found": {"diagnostics": {"previous_message_id": "msg_0"}},
}


@pytest.mark.parametrize("code", OF_MESSAGES)
async def test_a_message_has_the_code_of_each_change_and_what_it_costs(two_models, closing, code):
    client = anthropic.AsyncAnthropic(base_url=two_models.url, api_key="sk-test", max_retries=0)
    closing.push_async_callback(client.close)
    tools = [TOOL | {"input_schema": SCHEMA}]
    base = {"model": "demo", "max_tokens": 4, "system": SYSTEM, "messages": TURNS, "tools": tools}
    first = await client.messages.create(**base)
    change = {"diagnostics": {"previous_message_id": first.id}} | OF_MESSAGES[code]
    other = await client.messages.create(**base | change)
    reason = other.diagnostics.cache_miss_reason
    assert reason.type == code
    again = [await client.messages.create(**base), await client.messages.create(**base | change)]
    computed_again = min(each.usage.cache_read_input_tokens for each in again) - other.usage.cache_read_input_tokens
    if code != "previous_message_not_found":
        assert reason.cache_missed_input_tokens == computed_again > 0


TEXT = {"verbosity": "low", "format": {"type": "text"}}
OF_RESPONSES = {
    "model_changed": {"model": "other"},
    "prompt_cache_key_changed": {"prompt_cache_key": "other"},
    "tools_changed": {"tools": [OTHER_TOOL | {"type": "function", "parameters": SCHEMA, "strict": False}]},
    "text_format_changed": {"text": TEXT | {"format": {"type": "json_object"}}},
    "reasoning_effort_changed": {"reasoning": {"effort": "high"}},
    "verbosity_changed": {"text": TEXT | {"verbosity": "high"}},
    "context_compacted": {"input": TURNS[1:]},
    "input_changed": {"input": OTHER_TURNS},
    "service_tier_changed": {"service_tier": "flex"},
}


@pytest.mark.parametrize("code", OF_RESPONSES)
async def test_a_response_has_the_code_of_each_change_and_what_it_costs(two_models, closing, code):
    client = openai.AsyncOpenAI(base_url=f"{two_models.url}/v1", api_key="sk-test", max_retries=0)
    closing.push_async_callback(client.close)
    tools = [TOOL | {"type": "function", "parameters": SCHEMA, "strict": False}]
    base = {"model": "demo", "max_output_tokens": 4, "instructions": SYSTEM, "input": TURNS, "tools": tools}
    base |= {"text": TEXT, "reasoning": {"effort": "low"}, "service_tier": "default", "prompt_cache_key": "one"}
    first = await client.responses.create(**base)
    changed = base | OF_RESPONSES[code]
    named = {"prompt_cache_options": {"comparison_response_id": first.id}}
    other = await client.responses.create(**changed, **named)
    found = other.prompt_cache_diagnostics
    assert (found.type, found.reason) == ("cache_miss", code)
    again = [await client.responses.create(**base), await client.responses.create(**changed)]
    cached = [each.usage.input_tokens_details.cached_tokens for each in (other, *again)]
    assert found.comparison_reusable_tokens == min(cached[1:]) > 0
    assert found.cache_missed_tokens == min(cached[1:]) - cached[0]


async def test_tokens_that_are_lost_in_the_fleet_are_unavailable_with_their_number(
    start_engine, start_gateway, closing, monkeypatch
):
    monkeypatch.setattr(explain_client, "_DIAGNOSE_SECONDS", 30.0)
    engines = [await start_engine(prompt_tokens_details=True) for _ in range(2)]
    gateway = await start_gateway(*engines, explain={"enabled": True})
    claude = anthropic.AsyncAnthropic(base_url=gateway.url, api_key="sk-test", max_retries=0)
    client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="sk-test", max_retries=0)
    for each in (claude, client):
        closing.push_async_callback(each.close)
    ask = {"model": "demo", "max_tokens": 4, "system": SYSTEM, "messages": TURNS}
    message = await claude.messages.create(**ask)
    other = {"model": "demo", "max_output_tokens": 4, "instructions": f"{SYSTEM} Hello.", "input": TURNS}
    response = await client.responses.create(**other)
    reusable = [
        (await claude.messages.create(**ask)).usage.cache_read_input_tokens,
        (await client.responses.create(**other)).usage.input_tokens_details.cached_tokens,
    ]
    (used,) = [f"r{number}" for number, engine in enumerate(engines) if engine.requests]
    await gateway.admin.post("/admin/api/replicas/drain", json={"replica": used, "drain": True})
    again = await claude.messages.create(**ask, diagnostics={"previous_message_id": message.id})
    named = {"prompt_cache_options": {"comparison_response_id": response.id}}
    answered = await client.responses.create(**other, **named)
    cached = again.usage.cache_read_input_tokens, answered.usage.input_tokens_details.cached_tokens
    assert again.diagnostics.cache_miss_reason.type == answered.prompt_cache_diagnostics.type == "unavailable"
    lost = [sum(each.gateway["fleet"].values()) for each in (again.diagnostics, answered.prompt_cache_diagnostics)]
    assert lost == [before - now for before, now in zip(reusable, cached, strict=True)]
    assert min(lost) > 0
