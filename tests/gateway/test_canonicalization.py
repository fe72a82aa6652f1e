"""Canonicalization as clients, engines and operators see it."""

import itertools
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from running_gateway import COMPLETIONS, RunningGateway, eventually
from tenancy import ask_as, sections, tenant

BLOCK = 16
RULES = "You answer questions about parcels, invoices and returns, in one sentence each. " * 20
SUFFIX = {"dynamic-suffix": "apply"}
OBSERVED: dict[str, str] = {}
ALL = {
    "unicode": "apply",
    "whitespace": "apply",
    "pattern": "apply",
    "document-order": "apply",
    "role-order": "apply",
    "tool-order": "apply",
    "json-keys": "apply",
    "dynamic-suffix": "apply",
    "history-trim": "apply",
}
FAULTY = (
    b'{ "model" : "demo",\r\n "max_tokens": 1, "temperature": 1.0, "zz": [1.50, 1e2, 12345678901234567890],'
    b' "messages": [{"role": "user", "content": "First\\u200b me.  \\r\\n\\n\\n\\nThen you."},'
    b' {"role":"system","content":"Session id: 4c1f0b9e-63a4-4c1e-9a53-0b5f1d9c7e11.  \\nBe kind.\\t\\n"}],'
    b' "tools": [{"function": {"parameters": {"type": "object", "properties": {"b": {}, "a": {}}}, "name": "zebra"},'
    b' "type": "function"}, {"type": "function", "function": {"name": "ant"}}]}'
)


def stamp(minutes: float = 0) -> str:
    """The present time as an application would write it, some minutes on."""
    return f"{datetime.now(UTC) + timedelta(minutes=minutes):%Y-%m-%d %H:%M:%S} UTC"


def reported_time(question: str, minutes: float = 0) -> list[dict[str, Any]]:
    """A prompt that begins with the time."""
    return [
        {"role": "system", "content": f"Current time: {stamp(minutes)}\n{RULES}"},
        {"role": "user", "content": question},
    ]


def cached(answer: httpx.Response) -> int:
    assert answer.status_code == 200, answer.text
    tokens: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert int(answer.headers["x-gateway-prefix-tokens"]) == tokens
    return tokens


def prompt(answer: httpx.Response) -> int:
    tokens: int = answer.json()["usage"]["prompt_tokens"]
    assert int(answer.headers["x-gateway-prompt-tokens"]) == tokens
    return tokens


def sent(engine: Any, index: int = -1) -> dict[str, Any]:
    """What the engine got."""
    body: dict[str, Any] = json.loads(engine.requests[index].body)
    return body


@pytest.fixture
async def applying(engine, start_gateway):
    """A gateway that moves what varies."""
    return await start_gateway(engine, model={"canon": SUFFIX})


@pytest.mark.parametrize("rules", [{}, dict.fromkeys(ALL, "observe"), dict.fromkeys(ALL, "off")])
async def test_nothing_changes_a_byte_unless_configured(engine, start_gateway, rules):
    gateway = await start_gateway(engine, canon={"rules": rules})
    answer = await gateway.send(FAULTY)
    assert answer.status_code == 200
    assert engine.requests[-1].body == FAULTY
    assert "x-gateway-canonical" not in answer.headers


async def test_all_rules_together_leave_everything_else_as_it_came(engine, start_gateway):
    gateway = await start_gateway(engine, canon={"rules": ALL})
    answer = await gateway.send(FAULTY)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-gateway-canonical"].split(",") == [
        "unicode",
        "whitespace",
        "role-order",
        "tool-order",
        "json-keys",
        "dynamic-suffix",
    ]
    body = engine.requests[-1].body
    before = FAULTY[: FAULTY.index(b'"messages"')]
    assert body.startswith(before)
    system, user = json.loads(body)["messages"]
    assert system["role"] == "system"
    assert "4c1f0b9e" not in system["content"]
    assert system["content"].endswith("Be kind.")
    assert user["content"].startswith("First me.\n\nThen you.")
    assert user["content"].count("4c1f0b9e-63a4-4c1e-9a53-0b5f1d9c7e11") == 1
    tools = json.loads(body)["tools"]
    assert [tool["function"]["name"] for tool in tools] == ["ant", "zebra"]
    assert sorted(map(str, tools)) != sorted(map(str, json.loads(FAULTY)["tools"]))
    assert {tool["function"]["name"]: tool for tool in tools} == {
        tool["function"]["name"]: tool for tool in json.loads(FAULTY)["tools"]
    }
    assert prompt(answer) > 0


async def test_a_prompt_that_begins_with_the_time_is_reused(applying, engine):
    first = await applying.ask(messages=reported_time("Where is it?"), max_tokens=1)
    assert first.headers["x-gateway-canonical"] == "dynamic-suffix"
    assert cached(first) == 0
    later = await applying.ask(messages=reported_time("How much is it?", minutes=7), max_tokens=1)
    assert cached(later) > 0.9 * prompt(later) - 100
    time = stamp(7)[:16]
    system, user = sent(engine)["messages"]
    assert time not in system["content"]
    assert user["content"].startswith("How much is it?")
    assert user["content"].count(time) == 1


async def test_without_the_rule_the_same_prompt_is_computed_again(gateway):
    await gateway.ask(messages=reported_time("Where is it?"), max_tokens=1)
    assert cached(await gateway.ask(messages=reported_time("How much is it?", minutes=7), max_tokens=1)) <= BLOCK


async def test_a_client_may_turn_it_off_for_a_request(applying, engine):
    messages = reported_time("Where is it?")
    answer = await applying.ask(messages=messages, headers={"x-gateway-canonical": "off"})
    assert "x-gateway-canonical" not in answer.headers
    assert sent(engine)["messages"] == messages


async def converse(gateway: RunningGateway, turns: int, **fields: Any) -> list[tuple[int, int]]:
    """A conversation whose every request states another time: cached and prompt tokens by turn."""
    history: list[dict[str, Any]] = []
    figures = []
    for turn in range(turns):
        history.append({"role": "user", "content": f"Question {turn}: what about parcel {turn * 7}?"})
        system = {"role": "system", "content": f"Current time: {stamp(3 * turn)}\n{RULES}"}
        answer = await gateway.ask(messages=[system, *history], max_tokens=12, **fields)
        figures.append((cached(answer), prompt(answer)))
        history.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]})
    return figures


async def test_a_conversation_only_ever_grows(applying):
    figures = await converse(applying, 10)
    for (_, before), (again, _) in itertools.pairwise(figures):
        assert again >= before // BLOCK * BLOCK * 0.95


async def test_a_conversation_goes_on_when_its_context_is_forgotten(engine, start_gateway):
    """Another gateway takes over that shares nothing with the first: one miss, then all is as before."""
    first = await start_gateway(engine, model={"canon": SUFFIX})
    second = await start_gateway(engine, model={"canon": SUFFIX}, explain={"enabled": True})
    history: list[dict[str, Any]] = []
    figures, ids = [], []
    for turn in range(6):
        history.append({"role": "user", "content": f"Question {turn}: what about parcel {turn * 7}?"})
        system = {"role": "system", "content": f"Current time: {stamp(3 * turn)}\n{RULES}"}
        gateway = first if turn < 3 else second
        answer = await gateway.ask(messages=[system, *history], max_tokens=12)
        assert answer.status_code == 200
        usage = answer.json()["usage"]
        figures.append((usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]))
        ids.append(answer.headers["x-request-id"])
        history.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]})
    lost = figures[3]
    assert lost[0] < figures[2][1] // BLOCK * BLOCK * 0.95
    for turn in (4, 5):
        assert figures[turn][0] >= figures[turn - 1][1] // BLOCK * BLOCK * 0.9

    async def reported() -> bool:
        return (await second.admin.get(f"/admin/api/requests/{ids[3]}")).status_code == 200

    await eventually(reported)
    detail = (await second.admin.get(f"/admin/api/requests/{ids[3]}")).json()
    assert detail["canonicalization"]["context_lost"] is True


async def test_a_tenant_has_modes_of_its_own(engine, start_gateway):
    gateway = await start_gateway(
        engine, model={"canon": SUFFIX}, **sections(tenant("a"), tenant("b", canon={"dynamic-suffix": "off"}))
    )
    messages = reported_time("Where is it?")
    assert (await ask_as(gateway, "a", messages=messages)).headers["x-gateway-canonical"] == "dynamic-suffix"
    assert "x-gateway-canonical" not in (await ask_as(gateway, "b", messages=messages)).headers
    assert sent(engine)["messages"] == messages


async def test_a_route_has_modes_of_its_own(engine, start_gateway):
    gateway = await start_gateway(
        engine, canon={"rules": {"whitespace": "apply"}, "routes": {COMPLETIONS: {"whitespace": "off"}}}
    )
    text = "Once upon a time  \r\nthere was"
    await gateway.http.post(COMPLETIONS, json={"model": "demo", "prompt": text, "max_tokens": 1})
    assert sent(engine)["prompt"] == text
    await gateway.ask(text, max_tokens=1)
    assert sent(engine)["messages"][0]["content"] == "Once upon a time\nthere was"


async def test_no_tenant_finds_the_context_of_another_tenant(engine, start_gateway):
    """The same conversation to the letter: each tenant gets its own blocks back, or none."""
    gateway = await start_gateway(engine, model={"canon": SUFFIX}, **sections(tenant("a"), tenant("b")))
    history = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "And now?"},
    ]

    def asked(session: str, upto: int) -> list[dict[str, Any]]:
        return [{"role": "system", "content": f"Session id: {session}\n{RULES}"}, *history[:upto]]

    await ask_as(gateway, "a", messages=asked("aaaaaaaa-1111-4111-8111-aaaaaaaaaaaa", 1))
    await ask_as(gateway, "b", messages=asked("bbbbbbbb-2222-4222-8222-bbbbbbbbbbbb", 3))
    assert "aaaaaaaa" not in json.dumps(sent(engine))
    assert "bbbbbbbb-2222" in json.dumps(sent(engine))


async def test_conversations_of_one_tenant_are_kept_apart_by_their_slots(engine, start_gateway):
    slot = {"name": "customer", "regex": "^Customer: (.+)$"}
    gateway = await start_gateway(engine, model={"canon": SUFFIX}, canon={"dynamic_suffix": {"slots": [slot]}})

    def asked(customer: str, *history: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"role": "system", "content": f"Customer: {customer}\n{RULES}"}, *history]

    hi = {"role": "user", "content": "hi"}
    await gateway.ask(messages=asked("Alice Archer", hi), max_tokens=1)
    more = [hi, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Who am I?"}]
    await gateway.ask(messages=asked("Bob Baker", *more), max_tokens=1)
    assert "Alice" not in json.dumps(sent(engine))
    assert json.dumps(sent(engine)).count("Bob Baker") == 1


async def test_personal_data_is_masked_before_anything_is_moved(engine, start_gateway):
    gateway = await start_gateway(engine, model={"canon": SUFFIX}, personal_data={"mode": "mask"})
    messages = reported_time("Where is it?")
    messages[0]["content"] += "\nWrite to jane.doe@example.com."
    answer = await gateway.ask(messages=messages, max_tokens=1)
    assert answer.headers["x-gateway-canonical"] == "dynamic-suffix"
    assert "jane.doe" not in json.dumps(sent(engine))
    assert "[email]" in sent(engine)["messages"][0]["content"]


async def test_a_long_conversation_is_cut_and_says_so(start_engine, start_gateway):
    engine = await start_engine(max_model_len=1000)
    gateway = await start_gateway(engine, model={"canon": {"history-trim": "apply"}})
    history = [{"role": "system", "content": "Be short."}]
    for turn in range(30):
        history += [
            {"role": "user", "content": f"Question {turn}. " + "Tell me about parcels and invoices. " * 5},
            {"role": "assistant", "content": f"Answer {turn}. " + "They are on their way to you now. " * 5},
        ]
    history.append({"role": "user", "content": "And the last one?"})
    answer = await gateway.ask(messages=history, max_tokens=20)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-gateway-canonical"] == "history-trim"
    left = sent(engine)["messages"]
    assert int(answer.headers["x-gateway-cut-messages"]) == len(history) - len(left) > 0
    assert left[0] == history[0]
    assert left[1]["role"] == "user"
    assert left[1:] == history[-len(left) + 1 :]
    refused = await gateway.ask(messages=history, max_tokens=20, headers={"x-gateway-canonical": "off"})
    assert refused.status_code == 400


async def test_requests_of_one_prompt_cache_key_go_to_one_replica(start_engine, start_gateway):
    engines = [await start_engine() for _ in range(3)]
    gateway = await start_gateway(*engines, placement={"policy": "session"})
    replicas = set()
    for number in range(8):
        answer = await gateway.ask(f"Question {number}?", max_tokens=1, prompt_cache_key="support")
        replicas.add(answer.headers["x-gateway-replica"])
    assert len(replicas) == 1
    assert sent(engines[int(replicas.pop()[1:])])["prompt_cache_key"] == "support"


async def test_hints_are_taken_out_where_that_is_configured(engine, start_gateway):
    gateway = await start_gateway(
        engine, canon={"prompt_cache_key": "strip", "cache_control": "strip", "billing_header": "strip"}
    )
    mark = {"type": "ephemeral"}
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=4f2a1;"},
        {"type": "text", "text": "Be kind.", "cache_control": mark},
    ]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Hello."}]
    answer = await gateway.ask(messages=messages, prompt_cache_key="support", max_tokens=1)
    assert answer.status_code == 200
    body = sent(engine)
    assert "prompt_cache_key" not in body
    assert body["messages"][0]["content"] == [{"type": "text", "text": "Be kind."}]


async def test_streams_and_the_official_client_get_the_same(applying, engine, sdk):
    client = sdk(applying)
    stream = await client.chat.completions.create(
        model="demo", messages=reported_time("Where is it?"), max_tokens=4, stream=True
    )
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    assert text
    assert "Current time" not in sent(engine)["messages"][0]["content"].replace("[context 1]", "")


async def test_odd_requests_pass_as_they_came(engine, start_gateway):
    gateway = await start_gateway(engine, canon={"rules": ALL})
    for messages in (
        [{"role": "user", "content": None}],
        [{"role": "assistant", "content": "x"}],
        [{"role": "system", "content": f"Current time: {stamp()}"}],
        [{"role": "tool", "content": [{"type": "odd", "text": 3}]}],
    ):
        await gateway.ask(messages=messages, max_tokens=1)
        if engine.requests:
            assert sent(engine)["messages"] == messages


async def test_a_rule_that_fails_costs_no_request_its_answer(applying, engine, monkeypatch):
    class Broken:
        def canonical(self, *_: object) -> None:
            raise RuntimeError("secret prompt text")

    monkeypatch.setattr(applying.gateway._canon, "_rulebook", Broken())
    messages = reported_time("Where is it?")
    answer = await applying.ask(messages=messages, max_tokens=1)
    assert answer.status_code == 200
    assert sent(engine)["messages"] == messages


SOURCES = [f"The {name} is described in the handbook, with opening hours, prices and rules." for name in "pqrst"]
NUMBERED = {
    "name": "sources",
    "regex": r"^\[\d+\] .+$",
    "number": r"^\[(\d+)\]",
    "numbers": "renumber",
}


def retrieved(order: list[int], question: str) -> dict[str, str]:
    lines = [f"[{number}] {SOURCES[index]}" for number, index in enumerate(order, 1)]
    return {"role": "user", "content": "\n".join([*lines, question])}


async def test_documents_in_any_order_are_reused_and_an_answer_keeps_its_numbers(engine, start_gateway):
    gateway = await start_gateway(
        engine, model={"canon": {"document-order": "apply"}}, canon={"document_order": {"documents": [NUMBERED]}}
    )
    reused = []
    for order in ([4, 2, 0, 1, 3], [1, 0, 3, 2, 4], [3, 4, 1, 0, 2]):
        messages = [retrieved(order, f"Which of [1] and [2] is right, for 1{order[0]} people?")]
        answer = await gateway.ask(messages=messages, max_tokens=8)
        reused.append(cached(answer))
        got = sent(engine)["messages"][0]["content"]
        cited = got.splitlines()[-1].split("[")[1][0]
        # The citation names the same document as before.
        assert f"[{cited}] {SOURCES[order[0]]}" in got
    documents = prompt(answer) - 40
    assert reused[0] == 0
    assert min(reused[1:]) > documents - 2 * BLOCK
    # In the next turn, the documents have the numbers that the answer used.
    later = [{"role": "assistant", "content": "It is [1]."}, {"role": "user", "content": "And what does [2] say?"}]
    answer = await gateway.ask(messages=[*messages, *later], max_tokens=8)
    assert answer.headers["x-gateway-canonical"] == "document-order"
    assert sent(engine)["messages"] == [sent(engine, -2)["messages"][0], *later]


async def test_undeclared_documents_go_as_they_came(engine, start_gateway):
    gateway = await start_gateway(engine, model={"canon": {"document-order": "apply"}})
    messages = [retrieved([4, 2, 0, 1, 3], "Which is right?")]
    answer = await gateway.ask(messages=messages, max_tokens=8)
    assert "x-gateway-canonical" not in answer.headers
    assert sent(engine)["messages"] == messages
