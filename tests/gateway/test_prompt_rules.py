"""The gateway makes the prompts that its engines make, finds out how they do, and says so where it cannot."""

import asyncio
import json

import pytest
import structlog
from running_gateway import COMPLETIONS
from scripted_engine import response

from gateway.core.engine_facts import EngineKind
from gateway.core.request import Endpoint
from gateway.engines import ChatRules, chat_rules
from gateway.tokenize.load_tokenizer import BUILTIN, load_local
from gateway.tokenize.local import LocalEncoder

TOOLS = [
    {"type": "function", "function": {"name": f"t{n}", "description": "Does it.", "parameters": {"type": "object"}}}
    for n in range(3)
]
PARTS = [{"type": "text", "text": "One, two, three."}, {"type": "text", "text": "Four!\n"}]
RICH = {
    "messages": [
        {"role": "system", "content": PARTS},
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "t0", "arguments": '{ "a":1 }'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": PARTS},
    ],
    "tools": TOOLS,
}
SGLANG_PAGE = "".join(f"sglang:{name} 1.0\n" for name in ("num_running_reqs", "page_size", "max_total_num_tokens"))


def sglang(**more):
    return {"flavor": EngineKind.SGLANG, "prompt_tokens_details": True} | more


async def counts(gateway, **fields):
    """Prompt tokens here, and at the engine."""
    answer = await gateway.ask(max_tokens=1, **fields)
    assert answer.status_code == 200, answer.text
    return int(answer.headers["x-gateway-prompt-tokens"]), answer.json()["usage"]["prompt_tokens"]


async def finding(gateway, replica="r0"):
    return (await gateway.replicas())[replica]["prompt_finding"]


@pytest.mark.parametrize(
    "fields",
    [
        RICH,
        RICH | {"tool_choice": "none"},
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "Yes"}]},
        RICH | {"reasoning_effort": "high", "truncate_prompt_tokens": 4},
    ],
)
@pytest.mark.parametrize("tokenizer", ["builtin:demo", "engine"])
async def test_prompts_of_sglang_have_its_tokens(start_engine, start_gateway, fields, tokenizer):
    gateway = await start_gateway(await start_engine(**sglang()), model={"tokenizer": tokenizer})
    own, counted = await counts(gateway, **fields)
    assert own == counted
    assert await finding(gateway) == ""


async def test_prompts_of_both_engines_differ():
    demo = load_local("builtin:demo")
    vllm = demo.encode(Endpoint.CHAT, RICH)
    assert vllm != demo.encode(Endpoint.CHAT, RICH, chat_rules(EngineKind.SGLANG, ""))


async def test_most_replicas_decide_and_the_others_are_named(start_engine, start_gateway):
    engines = [await start_engine(), await start_engine(**sglang()), await start_engine(**sglang())]
    gateway = await start_gateway(*engines)
    for number in range(12):
        begun = {"role": "user", "content": [{"type": "text", "text": f"{number}"}, *PARTS]}
        await counts(gateway, messages=[begun, *RICH["messages"]])
    await gateway.settled(12)
    assert [bool(await finding(gateway, each)) for each in ("r0", "r1", "r2")] == [True, False, False]
    assert "vLLM" in await finding(gateway)


@pytest.mark.parametrize("tokenizer", ["builtin:demo", "engine"])
async def test_excluded_tools_are_found_out(start_engine, start_gateway, tokenizer):
    engine = await start_engine(excludes_tools=True, render=False)
    gateway = await start_gateway(engine, model={"tokenizer": tokenizer})
    with structlog.testing.capture_logs() as logs:
        first = await counts(gateway, **RICH, tool_choice="none")
        await gateway.settled(1)
        second = await counts(gateway, **RICH, tool_choice="none")
    assert first[0] > first[1]
    assert second[0] == second[1]
    assert ["exclude-tools" in entry["rules"] for entry in logs if entry["event"] == "prompt_rules_found"] == [True]
    assert await finding(gateway) == ""
    own, counted = await counts(gateway, **RICH)
    assert own == counted


async def test_excluded_tools_can_be_set(start_engine, start_gateway):
    setting = {"exclude_tools_when_tool_choice_none": True}
    gateway = await start_gateway(await start_engine(excludes_tools=True), model=setting)
    own, counted = await counts(gateway, **RICH, tool_choice="none")
    assert own == counted


async def test_a_wrong_setting_is_named(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), model={"exclude_tools_when_tool_choice_none": True})
    await counts(gateway, **RICH, tool_choice="none")
    await gateway.settled(1)
    assert "exclude_tools_when_tool_choice_none" in await finding(gateway)


@pytest.mark.parametrize("tokenizer", ["builtin:demo", "engine"])
async def test_requests_sent_before_the_rules_were_found_are_no_finding(start_engine, start_gateway, tokenizer):
    engine = await start_engine(excludes_tools=True, render=False)
    gateway = await start_gateway(engine, model={"tokenizer": tokenizer})
    await asyncio.gather(*(counts(gateway, **RICH, tool_choice="none") for _ in range(6)))
    await gateway.settled(6)
    assert await finding(gateway) == ""


class Counting:
    """An SGLang of an earlier release, or one with other rules: it takes no chats at ``/tokenize``."""

    def __init__(self, engine, rules: ChatRules, version: str, metrics: str = SGLANG_PAGE, **local):
        self._encoder: LocalEncoder = load_local("builtin:demo", **local)
        self._rules = rules
        engine.metrics = metrics
        engine.documents["/server_info"] = json.dumps({"version": version, "model_path": "demo"}).encode()
        engine.answer = self.reply

    async def reply(self, writer, received):
        if b"tokenize" in received.line.encode():
            writer.write(response(b"{}", status="400 Bad Request"))
            return
        (ids,) = self._encoder.encode(Endpoint.CHAT, json.loads(received.body), self._rules)
        usage = {"prompt_tokens": len(ids) // 4, "completion_tokens": 1, "total_tokens": 1 + len(ids) // 4}
        choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
        writer.write(response(json.dumps({"choices": [choice], "usage": usage}).encode()))


@pytest.mark.parametrize("release", ["0.5.10.post1", "0.5.20", "0.5.23"])
async def test_tools_are_those_of_the_release(scripted, start_gateway, release):
    Counting(scripted, chat_rules(EngineKind.SGLANG, release), release)
    gateway = await start_gateway(scripted)
    own, counted = await counts(gateway, **RICH)
    assert own == counted


@pytest.mark.parametrize("page", [SGLANG_PAGE, ""])
async def test_another_form_of_tools_is_found_out(scripted, start_gateway, page):
    Counting(scripted, chat_rules(EngineKind.SGLANG, "0.5.9"), "0.5.23", page)
    gateway = await start_gateway(scripted)
    first = await counts(gateway, **RICH)
    await gateway.settled(1)
    second = await counts(gateway, **RICH)
    assert first[0] != first[1]
    assert second[0] == second[1]


async def test_another_template_is_a_finding_once(scripted, start_gateway):
    other = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    Counting(scripted, chat_rules(EngineKind.SGLANG, ""), "0.5.23", chat_template=other)
    gateway = await start_gateway(scripted)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            await counts(gateway, **RICH)
        await gateway.settled(3)
    said = [(entry["log_level"], entry["replica"]) for entry in logs if entry["event"] == "prompt_tokens_differ"]
    assert said == [("warning", "r0")]
    assert "--chat-template" in await finding(gateway)


async def test_a_finding_ends_when_counts_are_equal_again(scripted, start_gateway):
    other = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    Counting(scripted, chat_rules(EngineKind.SGLANG, ""), "0.5.23", chat_template=other)
    gateway = await start_gateway(scripted)
    await counts(gateway, **RICH)
    await gateway.settled(1)
    assert await finding(gateway)
    Counting(scripted, chat_rules(EngineKind.SGLANG, "0.5.23"), "0.5.23")
    for _ in range(20):
        own, counted = await counts(gateway, **RICH)
        assert own == counted
    await gateway.settled(21)
    assert await finding(gateway) == ""


async def test_another_template_is_found_before_the_first_request(start_engine, start_gateway, tmp_path):
    other = tmp_path / "other.jinja"
    other.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:")
    gateway = await start_gateway(await start_engine(**sglang(chat_template=other)))
    assert "--chat-template" in await finding(gateway)


async def test_an_engine_that_cannot_tokenize_chats_needs_a_tokenizer_here(start_engine, start_gateway, capsys):
    engine = await start_engine(**sglang(render=False, record_requests=20))
    gateway = await start_gateway(engine, model={"tokenizer": "engine"})
    assert "models[].tokenizer" in await finding(gateway)
    assert "prompt_tokens_differ" in capsys.readouterr().out
    before = len(engine.requests)
    assert (await gateway.ask()).status_code == 200
    assert [each.path for each in list(engine.requests)[before:]] == ["/v1/chat/completions"]


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2], [3, 4, 5]]])
async def test_token_ids_need_no_tokenizer(start_engine, start_gateway, prompt):
    gateway = await start_gateway(await start_engine(**sglang(render=False)), model={"tokenizer": "engine"})
    answer = await gateway.http.post(COMPLETIONS, json={"model": "demo", "prompt": prompt, "max_tokens": 1})
    assert answer.headers["x-gateway-decision"] != "blind"
    assert int(answer.headers["x-gateway-prompt-tokens"]) == answer.json()["usage"]["prompt_tokens"]


async def test_tokenizer_files_that_an_sglang_names_are_used_where_they_are_here(start_engine, start_gateway):
    engine = await start_engine(**sglang(render=False, root=str(BUILTIN / "demo"), record_requests=20))
    gateway = await start_gateway(engine, model={"tokenizer": "engine"})
    async with asyncio.timeout(60):
        while (await gateway.ask(messages=RICH["messages"], max_tokens=1)).headers["x-gateway-decision"] == "blind":
            await asyncio.sleep(0.1)
    own, counted = await counts(gateway, **RICH)
    assert own == counted
    assert await finding(gateway) == ""


@pytest.mark.parametrize("root", ["/nowhere/model", "no-such/model-of-the-hub", "tests"])
async def test_tokenizer_files_that_are_not_here_leave_the_finding(start_engine, start_gateway, root):
    engine = await start_engine(**sglang(render=False, root=root))
    gateway = await start_gateway(engine, model={"tokenizer": "engine"})
    assert (await gateway.ask(messages=RICH["messages"], max_tokens=1)).headers["x-gateway-decision"] == "blind"
    assert "/tokenize takes no chat requests" in await finding(gateway)
