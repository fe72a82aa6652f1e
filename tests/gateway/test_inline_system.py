"""System messages inside a conversation, the limit of the answer, and refusals, in requests of another API."""

import asyncio
import contextlib
from typing import Any

import orjson
import pytest
from running_gateway import RunningGateway, settings_for

from gateway.api.dialects import DialectRequest, Translated
from gateway.core.client_places import ClientPlaces
from gateway.core.engine_facts import EngineKind
from gateway.core.errors import GatewayError
from gateway.simulator.simulated_engine import SimulatedEngine

PATH = "/v1/as-messages"
TEXT = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
END = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
SYSTEM_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n{% endif %}{% endfor %}"
    f"{{% for m in messages %}}{{% if m.role != 'system' %}}{TEXT}{{% endif %}}{{% endfor %}}{END}"
)
REFUSING = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}"
    f"{{% endif %}}{TEXT}{{% endfor %}}{END}"
)
PLAIN = f"{{% for m in messages %}}{TEXT}{{% endfor %}}{END}"
OFF = {"rules": {"inline-system": "off"}}


class AsMessages:
    """A dialect whose requests and answers are those of chats."""

    name = "messages"

    async def translate(self, asked: DialectRequest) -> Translated:
        places = [f"messages[{n}]" for n in range(len(asked.fields["messages"]))]
        return Translated(dict(asked.fields), ClientPlaces(places), contextlib.nullcontext)

    def refusal(self, problem: GatewayError, request_id: str) -> tuple[int, bytes]:
        return problem.status, orjson.dumps({"said": problem.message})


@pytest.fixture
def translating(closing, start_engine, tmp_path):
    """Starts an engine with a chat template, and a gateway that takes translated requests for it."""

    async def start(
        template: str = PLAIN,
        model: dict[str, Any] | None = None,
        sections: dict[str, Any] | None = None,
        **options: Any,
    ) -> tuple[RunningGateway, SimulatedEngine]:
        file = tmp_path / "template.jinja"
        file.write_text(template)
        # A block is longer than all reminders together.
        engine = await start_engine(chat_template=file, block_size=64, **options)
        model = {"chat_template": str(file)} | (model or {})
        running = RunningGateway(settings_for([engine], model=model, **sections or {}))
        running.gateway.public.dialects = {PATH: AsMessages()}
        await running.start()
        closing.push_async_callback(running.stop)
        return running, engine

    return start


def turn(number: int) -> list[dict[str, str]]:
    question = {"role": "user", "content": f"Question {number}: " + f"what about part {number} of it? " * 10}
    return [question, {"role": "system", "content": f"Reminder {number}."}]


async def cached(gateway: RunningGateway, path: str = PATH) -> list[int]:
    """Cached tokens of four turns with a reminder each; -1 where the engine refuses the turn."""
    history, tokens = [{"role": "system", "content": "You help. "}], []
    for number in range(4):
        history += turn(number)
        answer = await gateway.http.post(path, json={"model": "demo", "messages": history, "max_tokens": 5})
        usage = answer.json().get("usage", {})
        tokens.append(usage["prompt_tokens_details"]["cached_tokens"] if answer.status_code == 200 else -1)
        history.append({"role": "assistant", "content": "I did that."})
    return tokens


@pytest.mark.parametrize("template", [SYSTEM_FIRST, REFUSING, PLAIN])
@pytest.mark.parametrize("tokenizer", ["builtin:demo", "engine"])
async def test_cached_tokens_grow_with_every_turn(translating, template, tokenizer):
    model = {"tokenizer": "engine", "chat_template": None} if tokenizer == "engine" else {}
    gateway, _ = await translating(template, model)
    first, *later = await cached(gateway)
    assert first == 0
    assert 0 < later[0] < later[1] < later[2]


@pytest.mark.parametrize(("template", "expected"), [(SYSTEM_FIRST, [0, 0, 0, 0]), (REFUSING, [-1, -1, -1, -1])])
async def test_without_the_rule_every_reminder_changes_the_whole_prompt(translating, template, expected):
    gateway, _ = await translating(template, sections={"canon": OFF})
    assert await cached(gateway) == expected


async def test_chat_requests_are_changed_only_where_the_operator_says_so(translating):
    gateway, engine = await translating(SYSTEM_FIRST)
    assert await cached(gateway, "/v1/chat/completions") == [0, 0, 0, 0]
    body = b'{"model":"demo","messages":[{"role":"developer","content":"A"},{"role":"user","content":"B"}]}'
    await gateway.send(body)
    assert orjson.loads(engine.requests[-1].body)["messages"] == orjson.loads(body)["messages"]
    gateway, _ = await translating(SYSTEM_FIRST, sections={"canon": {"rules": {"inline-system": "apply"}}})
    assert sorted(await cached(gateway, "/v1/chat/completions"))[1] > 0


async def test_the_answer_names_the_rule(translating):
    gateway, _ = await translating(REFUSING)
    body = {"model": "demo", "messages": [*turn(0), {"role": "assistant", "content": "Yes."}, *turn(1)]}
    answer = await gateway.http.post(PATH, json=body)
    assert answer.headers["x-gateway-canonical"] == "inline-system"


async def test_what_the_template_needs_does_not_depend_on_the_size_of_a_request_and_on_its_group(translating):
    much = [*turn(0)[:1], {"role": "user", "content": "x" * 5_000_000}]  # more than is canonicalized
    history = [*turn(0), {"role": "assistant", "content": "Yes."}, *turn(1)]
    sections = {"experiment": {"cold_share": 0.5}, "explain": {"enabled": True}}
    gateway, engine = await translating(REFUSING, sections=sections)
    groups = set()
    for number in range(20):
        body = {"model": "demo", "messages": history, "user": str(number)}
        answer = await gateway.http.post(PATH, json=body, headers={"x-session-id": str(number)})
        assert answer.is_success
        groups.add(answer.headers["x-gateway-group"])
    assert len(groups) == 2
    await gateway.http.post(PATH, json={"model": "demo", "messages": [*history, *much]})
    sent = orjson.loads(engine.requests[-1].body)["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user", "user", "user", "user"]


@pytest.mark.parametrize("flavor", [EngineKind.VLLM, EngineKind.SGLANG])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_the_answer_is_as_long_as_the_context_leaves_room_for(translating, flavor, name):
    gateway, engine = await translating(max_model_len=200, flavor=flavor)
    body = {"model": "demo", "messages": turn(0)[:1], name: 32_000}
    answer = await gateway.http.post(PATH, json=body)
    assert answer.status_code == 200
    prompt = answer.json()["usage"]["prompt_tokens"]
    room = 200 - prompt - (flavor is EngineKind.SGLANG)  # SGLang takes a sum below its limit
    assert answer.headers["x-gateway-warning"] == f"max_tokens lowered to {room}"
    assert orjson.loads(engine.requests[-1].body)[name] == room
    short = await gateway.http.post(PATH, json=body | {name: room})
    assert "x-gateway-warning" not in short.headers
    assert orjson.loads(engine.requests[-1].body)[name] == room


async def test_chat_requests_and_too_long_prompts_are_refused_as_before(translating):
    gateway, engine = await translating(max_model_len=200)
    body = {"model": "demo", "messages": turn(0)[:1], "max_tokens": 32_000}
    assert (await gateway.http.post("/v1/chat/completions", json=body)).status_code == 400
    assert orjson.loads(engine.requests[-1].body)["max_tokens"] == 32_000
    long = await gateway.http.post(PATH, json=body | {"messages": [{"role": "user", "content": "word " * 400}]})
    assert long.status_code == 400
    assert "200 tokens" in long.text


async def test_a_refused_client_that_comes_back_at_the_announced_time_is_served(translating):
    """One at a time is computed, in about a second; two may wait, and the others are refused."""
    queue = {"max_requests": 2, "busy_seconds": 0.01, "max_seconds": 60}
    gateway, _ = await translating(prefill_rate=400.0, slots=1, sections={"queue": queue})

    async def asks(number: int) -> list[int]:
        body = {
            "model": "demo",
            "messages": [{"role": "user", "content": f"{number} " + "word " * 400}],
            "max_tokens": 1,
        }
        first = await gateway.http.post(PATH, json=body)
        if first.status_code == 200:
            return [200]
        await asyncio.sleep(int(first.headers["retry-after"]))
        return [first.status_code, (await gateway.http.post(PATH, json=body)).status_code]

    answers = sorted(await asyncio.gather(*map(asks, range(4))))
    assert answers == [[200], [200], [200], [429, 200]]
