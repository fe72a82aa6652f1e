"""Models whose tokens come from the engine, or from nowhere."""

import asyncio

import pytest
import structlog
from running_gateway import CHAT, COMPLETIONS
from scripted_engine import response

ENGINE = {"tokenizer": "engine"}
RENDER = "/v1/chat/completions/render"


def predicted(answer) -> int:
    return int(answer.headers["x-gateway-prefix-tokens"])


def confirmed(answer) -> int:
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(("render", "source"), [(True, "engine_render"), (False, "engine_tokenize")])
async def test_engine_counts_the_tokens(start_engine, start_gateway, prose, render, source):
    gateway = await start_gateway(*[await start_engine(render=render) for _ in range(2)], model=ENGINE)
    for seed in range(4):
        first = await gateway.ask(prose(seed, 90), max_tokens=2)
        again = await gateway.ask(prose(seed, 90), max_tokens=2)
        assert first.headers["x-gateway-replica"] == again.headers["x-gateway-replica"]
        assert int(again.headers["x-gateway-prompt-tokens"]) == again.json()["usage"]["prompt_tokens"]
        assert predicted(again) == confirmed(again) > 80
        assert "x-gateway-tokens" not in again.headers
    metrics = await gateway.settled(8)
    assert metrics.value("gateway_encodings_total", source=source) == 8
    assert metrics.value("gateway_token_parity_total", result="equal") == 8


@pytest.mark.parametrize("render", [True, False])
async def test_next_turn_finds_the_answer_in_the_cache(start_engine, start_gateway, prose, render):
    engine = await start_engine(render=render)
    gateway = await start_gateway(engine, model=ENGINE)
    messages = [{"role": "user", "content": prose(1, 90)}]
    for turn in range(1, 4):
        answer = await gateway.ask(messages=messages, max_tokens=80, ignore_eos=True)
        await gateway.settled(turn)
        assert predicted(answer) == confirmed(answer)
        messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "Why?"}]
    assert predicted(answer) > 90 + 80 * 2
    asked = [request for request in engine.requests if request.path == "/tokenize"]
    assert sum(b"add_special_tokens" in request.body for request in asked) == 3


async def test_an_answer_is_settled_without_its_tokens(start_engine, start_gateway, prose):
    engine = await start_engine(fault="500:path=/tokenize")
    gateway = await start_gateway(engine, model=ENGINE)
    for turn in (1, 2):
        answer = await gateway.ask(prose(1, 90), max_tokens=80, ignore_eos=True)
        await gateway.settled(turn)
        assert answer.status_code == 200
    assert predicted(answer) == confirmed(answer) > 80


async def test_refused_endpoint_is_not_asked_for_every_request(start_engine, start_gateway):
    engine = await start_engine(render=False)
    gateway = await start_gateway(engine, model=ENGINE)
    for _ in range(5):
        await gateway.ask(max_tokens=1)
    paths = [request.path for request in engine.requests]
    assert paths.count(RENDER) == 1
    assert paths.count("/tokenize") == 5


@pytest.mark.parametrize("render", [True, False])
async def test_completions_with_several_prompts(start_engine, start_gateway, prose, render):
    gateway = await start_gateway(await start_engine(render=render), model=ENGINE)
    for prompt in ([prose(1, 40), prose(2, 50)], prose(3, 60)):
        body = {"model": "demo", "prompt": prompt, "max_tokens": 2}
        answer = await gateway.http.post(COMPLETIONS, json=body)
        assert int(answer.headers["x-gateway-prompt-tokens"]) == answer.json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize("fault", [f"500:path={RENDER}", f"hang:path={RENDER}", f"invalid_json:path={RENDER}"])
async def test_without_tokens_the_text_routes(start_engine, start_gateway, prose, fault):
    engines = [await start_engine(fault=fault) for _ in range(3)]
    # A busy machine may not even connect in so short a time: that is no reason here to go elsewhere.
    gateway = await start_gateway(
        *engines, model=ENGINE, encode={"engine_timeout_seconds": 0.1}, relay={"suspect_seconds": 0}
    )
    homes, moved = set(), 0
    for seed in range(6):
        answers = [await gateway.ask(prose(seed, 90) + tail, max_tokens=2) for tail in ("", " Why?")]
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.headers["x-gateway-decision"] for answer in answers} == {"blind"}
        assert {answer.headers["x-gateway-tokens"] for answer in answers} == {"estimated"}
        where = {answer.headers["x-gateway-replica"] for answer in answers}
        homes |= where
        if len(where) > 1:  # a replica that stood still on a busy machine is avoided
            moved += 1
        else:
            assert confirmed(answers[1]) > 60
    assert len(homes) > 1
    assert moved <= 1
    metrics = await gateway.settled(12)
    assert metrics.value("gateway_encodings_total", source="text") == 12
    # Stand-ins are not counted against the engine's tokens.
    assert metrics.value("gateway_token_parity_total") == 0


async def test_engine_that_recovers_is_asked_again(start_engine, start_gateway):
    engine = await start_engine(fault=f"500:times=1,path={RENDER}")
    gateway = await start_gateway(engine, model=ENGINE)
    assert (await gateway.ask()).headers["x-gateway-decision"] == "blind"
    assert (await gateway.ask()).headers["x-gateway-decision"] != "blind"


async def test_engine_that_offers_neither_endpoint(scripted, start_gateway):
    async def answer(writer, received):
        status = "200 OK" if received.line.startswith("POST /v1/chat/completions HTTP") else "404 Not Found"
        writer.write(f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}".encode())

    scripted.answer = answer
    gateway = await start_gateway(scripted, model=ENGINE)
    for _ in range(3):
        reported = await gateway.ask()
        assert reported.status_code == 200
        assert reported.headers["x-gateway-tokens"] == "estimated"
    # Each is asked once, not before every request.
    assert len(scripted.received) == 3 + 2


async def test_missing_tokenizer_folder_is_logged_and_the_engine_asked(engine, start_gateway, prose, tmp_path):
    with structlog.testing.capture_logs() as logs:
        gateway = await start_gateway(engine, model={"tokenizer": str(tmp_path / "nowhere")})
    (line,) = [line for line in logs if line["event"] == "tokenizer_unavailable"]
    assert line["log_level"] == "error"
    assert "nowhere" in line["problem"]
    assert line["fix"]
    first, again = [await gateway.ask(prose(1, 60), max_tokens=1) for _ in range(2)]
    assert first.headers["x-gateway-decision"] == "cold"
    assert predicted(again) == confirmed(again) > 0


async def test_request_the_local_tokenizer_cannot_take_is_asked_for(behind, scripted):
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    answer = await behind.ask(messages=[{"role": "user", "content": [picture]}])
    assert answer.status_code == 200
    assert answer.headers["x-gateway-tokens"] == "estimated"
    assert [received.line.split()[1] for received in scripted.received] == [RENDER, CHAT]
    metrics = await behind.settled(1)
    assert metrics.value("gateway_encodings_total", source="local") == 0


async def test_another_engine_is_asked_when_one_does_not_answer(start_engine, start_gateway):
    engines = [await start_engine(fault="hang:path=/v1/chat/completions/render"), await start_engine()]
    gateway = await start_gateway(*engines, model=ENGINE, encode={"engine_timeout_seconds": 1.5})
    for number in range(2):
        answer = await gateway.ask(f"Question {number}")
        assert "x-gateway-tokens" not in answer.headers


def completion(prompts: int) -> dict:
    return {"model": "demo", "prompt": [f"Question {number}" for number in range(prompts)], "max_tokens": 1}


@pytest.mark.parametrize(("prompts", "calls"), [(16, 16), (17, 0)])
async def test_many_prompts_are_not_tokenized_one_by_one(start_engine, start_gateway, prompts, calls):
    engine = await start_engine(render=False)
    gateway = await start_gateway(engine, model=ENGINE)
    answer = await gateway.http.post(COMPLETIONS, json=completion(prompts))
    assert answer.status_code == 200
    assert [request.path for request in engine.requests].count("/tokenize") == calls
    assert ("x-gateway-tokens" in answer.headers) == (calls == 0)


async def test_many_prompts_are_rendered_all_at_once(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(render=True), model=ENGINE)
    answer = await gateway.http.post(COMPLETIONS, json=completion(64))
    assert int(answer.headers["x-gateway-prompt-tokens"]) == answer.json()["usage"]["prompt_tokens"]


async def test_all_calls_for_one_request_have_a_common_time_limit(scripted, start_gateway):
    async def answer(writer, received):
        if received.line.startswith("POST /tokenize"):
            await asyncio.sleep(0.3)  # within the time of one call
            writer.write(response(b'{"tokens":[1,2,3]}'))
        elif "render" in received.line:
            writer.write(response(b"{}", status="404 Not Found"))
        else:
            await scripted.reply(writer, received)

    scripted.answer = answer
    gateway = await start_gateway(scripted, model=ENGINE, encode={"engine_timeout_seconds": 0.5})
    asked = await gateway.http.post(COMPLETIONS, json=completion(16))
    assert asked.status_code == 200
    assert asked.headers["x-gateway-tokens"] == "estimated"
    assert sum("/tokenize" in received.line for received in scripted.received) <= 4
