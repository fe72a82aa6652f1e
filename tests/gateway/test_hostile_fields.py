"""Fields made to be expensive, or to be of use for more than their request: refused or harmless, for all others too."""

import asyncio
import contextlib
import json
import time

import httpx
import pytest
from one_gateway import *  # noqa: F403
from patience import HANG_SECONDS
from running_gateway import CHAT, COMPLETIONS, eventually, know_each_other
from scripted_engine import ScriptedEngine, response
from tenancy import error, key, sections, tenant

from gateway.proxy import request_body

pytestmark = SHARED  # noqa: F405

LONG = b"word " * 400_000
"""Two megabytes: work that is done for all of it as often as a field is repeated takes many seconds."""

REPEATED = {
    "stream_options": b'"stream_options":{},' * 12_000,
    "escaped": b'"stream\\u005foptions":{"include_usage":false},' * 12_000,
    "cache_salt": b'"cache_salt":"x",' * 12_000,
    "include_usage": b'"stream_options":{%b"x":"%b"},' % (b'"include_usage":false,' * 12_000, LONG),
    "continuous_usage_stats": b'"stream_options":{%b"x":"%b"},' % (b'"continuous_usage_stats":true,' * 12_000, LONG),
}


async def longest_standstill(work: asyncio.Task) -> float:
    """The most CPU time in which this process did nothing else while something was done."""
    longest = 0.0
    before = time.process_time()
    while not work.done():
        await asyncio.sleep(0.01)
        now = time.process_time()
        longest, before = max(longest, now - before), now
    return longest


@pytest.mark.parametrize("members", REPEATED.values(), ids=REPEATED.keys())
async def test_a_repeated_field_delays_no_other_request(scripted, start_gateway, members):
    gateway = await start_gateway(scripted, **sections(tenant("a")))
    body = b"{" + members + b'"stream":true,' + b'"model":"demo","messages":[{"role":"user","content":"%b"}]}' % LONG
    asked = asyncio.create_task(gateway.send(body, authorization=f"Bearer {key('a')}"))
    standstill = await longest_standstill(asked)
    assert (await asked).status_code == 200
    sent = json.loads(scripted.received[-1].body)
    expected = json.loads(body) | {"stream_options": {"include_usage": True}, "cache_salt": sent["cache_salt"]}
    assert {**sent, "stream_options": {"include_usage": sent["stream_options"]["include_usage"]}} == expected
    assert standstill < 8


async def test_the_body_is_made_once_however_many_replicas_are_tried(start_gateway, closing, monkeypatch):
    made = []
    make = request_body.engine_body
    monkeypatch.setattr(request_body, "engine_body", lambda *given: made.append(given) or make(*given))
    engines = [ScriptedEngine() for _ in range(3)]
    for engine in engines:
        await engine.start()
        closing.push_async_callback(engine.stop)
        engine.says(response(b"{}", status="503 Service Unavailable"))
    gateway = await start_gateway(*engines, **sections(tenant("a")))
    body = b'{"stream":true,"model":"demo","messages":[{"role":"user","content":"Hi"}]}'
    answer = await gateway.send(body, authorization=f"Bearer {key('a')}")
    assert answer.status_code == 503
    (bodies,) = {tuple(received.body for received in engine.received) for engine in engines}
    assert len(bodies) == 1
    assert json.loads(bodies[0])["stream_options"] == {"include_usage": True}
    assert len(made) == 1


# Numbers

HUGE = 10**400
COUNTS = [HUGE, 2**64, 1_000_000, 16_385, 1e6, 1e300, "1000000", " 1_000_000 ", "9" * 401, "16385.0"]


async def ask(gateway, fields: dict, path: str = CHAT, **headers: str) -> httpx.Response:
    """A request whose numbers may be longer than what the client's own JSON writer takes."""
    text = {"prompt": "Hi"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "Hi"}]}
    return await gateway.send(json.dumps({"model": "demo"} | text | fields).encode(), path, **headers)


def refused(answer: httpx.Response, param: str, code: str) -> None:
    assert error(answer) == (400, code), answer.text
    assert answer.json()["error"]["param"] == param
    assert f"`{param}`" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("count", COUNTS, ids=lambda count: f"{count}"[:12])
async def test_more_choices_than_an_engine_computes_are_refused(behind, scripted, path, count):
    for field in ("n", "best_of"):
        refused(await ask(behind, {field: count}, path), field, "too_many_choices")
    assert not scripted.received
    await behind.settled(0)


@pytest.mark.parametrize(
    ("prompt", "n", "param"),
    [(["a"] * 4096, 5, "n"), ([[1, 2]] * 4096, 5.0, "n"), (["a"] * 3, 8192, "n"), (["a"] * 33, "512", "n")],
    ids=["texts", "ids", "n", "text"],
)
async def test_choices_times_prompts_are_limited(behind, scripted, prompt, n, param):
    refused(await ask(behind, {"prompt": prompt, "n": n}, COMPLETIONS), param, "too_many_choices")
    assert not scripted.received
    assert (await ask(behind, {"prompt": prompt[:2], "n": n}, COMPLETIONS)).status_code == 200
    assert (await ask(behind, {"prompt": [1] * 20_000, "n": 2}, COMPLETIONS)).status_code == 200


async def test_the_limit_of_sequences_is_a_setting(scripted, start_gateway):
    gateway = await start_gateway(scripted, server={"max_sequences": 8})
    refused(await ask(gateway, {"n": 9}), "n", "too_many_choices")
    refused(await ask(gateway, {"prompt": ["a"] * 9}, COMPLETIONS), "prompt", "too_many_choices")
    assert (await ask(gateway, {"n": 8})).status_code == 200


@pytest.mark.parametrize("count", [16_384, True, False, 2.0, "2", 2.5, "many", -1, 0, None, [HUGE], {"n": HUGE}, -HUGE])
async def test_any_value_of_a_count_fails_no_other_request(scripted, start_gateway, count):
    """Those that no engine takes are the engine's to refuse; meanwhile they are in flight there."""
    gateway = await start_gateway(scripted, queue={"max_seconds": 0})
    scripted.answer = hang
    waiting = asyncio.create_task(ask(gateway, {"n": count, "best_of": count}))
    await eventually(lambda: len(scripted.received) == 1)
    scripted.answer = scripted.reply
    for stream in (False, True):
        answer = await asyncio.wait_for(ask(gateway, {"stream": stream}), HANG_SECONDS)
        assert answer.status_code == 200, answer.text
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def hang(writer: asyncio.StreamWriter, received: object) -> None:
    await asyncio.sleep(3600)


@pytest.mark.parametrize("number", [HUGE, -HUGE, 1e300], ids=["large", "small", "float"])
async def test_a_number_beyond_64_bits_is_refused_where_the_gateway_reckons_with_it(behind, scripted, number):
    for field in ("max_tokens", "max_completion_tokens", "min_tokens", "truncate_prompt_tokens", "priority"):
        for path in (CHAT, COMPLETIONS):
            refused(await ask(behind, {field: number}, path), field, "invalid_value")
    assert not scripted.received


async def test_a_huge_count_changes_nothing_for_other_requests(scripted, start_gateway):
    """As it was: the request is in flight, and every later one is weighed against it."""
    gateway = await start_gateway(scripted, queue={"max_seconds": 3600})
    scripted.answer = hang
    for count in (HUGE, 1_000_000):
        first = asyncio.create_task(ask(gateway, {"n": count}))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(first), 0.5)
        scripted.answer = scripted.reply
        async with asyncio.timeout(HANG_SECONDS):
            answer = await ask(gateway, {})
        assert answer.status_code == 200, answer.text
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        scripted.answer = hang


async def test_gateways_that_share_their_state_go_on_seeing_each_other(scripted, start_group):
    first, second = await start_group([scripted])
    scripted.answer = hang
    waiting = [asyncio.create_task(ask(first, {"n": count})) for count in (HUGE, 16_384)]
    await asyncio.sleep(1.5)  # longer than a silent gateway is remembered
    await know_each_other(first, second)
    for gateway in (first, second):
        metrics = await gateway.metrics()
        assert metrics.value("gateway_state_errors_total") == 0
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


# Fields that reach beyond their own request

ACTING = [
    ('"vllm_xargs":{"kv_cache_report_mode":"full"}', "vllm_xargs.kv_cache_report_mode", "acts_on_engine"),
    ('"vllm_xargs":{"x":1,"kv_transfer_params":"x"}', "vllm_xargs.kv_transfer_params", "acts_on_engine"),
    ('"vllm_xargs":{"ec_transfer_params":[1]}', "vllm_xargs.ec_transfer_params", "acts_on_engine"),
    ('"vllm_xargs":{},"vllm_xargs":{"kv_cache_report_m\\u006fde":"full"}', "vllm_xargs.kv_cache_report_mode", None),
    ('"custom_logit_processor":"{}"', "custom_logit_processor", "acts_on_engine"),
    ('"ngram_corpus_id":"theirs"', "ngram_corpus_id", "names_cached"),
    ('"disagg_prefill_dp_rank":1', "disagg_prefill_dp_rank", "names_cached"),
    ('"kv_transfer_p\\u0061rams":{"remote_block_ids":[1]}', "kv_transfer_params", "names_cached"),
    ('"kv_transfer_params":null,"kv_transfer_params":{"remote_block_ids":[1]}', "kv_transfer_params", "names_cached"),
    ('"priority":-1', "priority", "priority_not_allowed"),
    ('"pri\\u006frity":"-5"', "priority", "priority_not_allowed"),
]
HARMLESS = [
    '"vllm_xargs":{"my_processor":1}',
    '"vllm_xargs":null',
    '"vllm_xargs":[1]',
    '"priority":null',
    '"priority":0',
    '"lora_path":null',
]


def spelled(members: str) -> bytes:
    return b'{"model":"demo","messages":[{"role":"user","content":"Hi"}],%b}' % members.encode()


@pytest.mark.parametrize(("members", "param", "code"), ACTING, ids=[members[:40] for members, *_ in ACTING])
async def test_a_field_that_acts_on_others_is_refused_where_they_are_kept_apart(
    scripted, start_gateway, members, param, code
):
    gateway = await start_gateway(scripted, **sections(tenant("a")))
    answer = await gateway.send(spelled(members), authorization=f"Bearer {key('a')}")
    refused(answer, param, code or "acts_on_engine")
    assert not scripted.received
    alone = await start_gateway(scripted, tenants=(tenant("a"),), spaces={"isolation": "none"})
    assert (await alone.send(spelled(members), authorization=f"Bearer {key('a')}")).status_code == 200
    assert scripted.received[-1].body == spelled(members)


@pytest.mark.parametrize("members", HARMLESS)
async def test_a_field_without_effect_on_other_requests_passes(scripted, start_gateway, members):
    gateway = await start_gateway(scripted, **sections(tenant("a", models=("demo",))))
    answer = await gateway.send(spelled(members), authorization=f"Bearer {key('a')}")
    assert answer.status_code == 200
    assert members.encode() in scripted.received[-1].body


async def test_a_tenant_may_be_allowed_to_go_first(scripted, start_gateway):
    gateway = await start_gateway(scripted, **sections(tenant("a", priority=True), tenant("b")))
    assert (await ask(gateway, {"priority": -1}, authorization=f"Bearer {key('a')}")).status_code == 200
    assert json.loads(scripted.received[-1].body)["priority"] == -1
    refused(
        await ask(gateway, {"priority": -1}, authorization=f"Bearer {key('b')}"), "priority", "priority_not_allowed"
    )


@pytest.mark.parametrize("isolation", ["tenant", "none"])
@pytest.mark.parametrize("named", ['"lora_path":"theirs"', '"lora_p\\u0061th":["theirs"]'])
async def test_a_tenant_of_certain_models_names_no_adapter_beside_them(scripted, start_gateway, isolation, named):
    tenants = tenant("a", models=("demo",)), tenant("b")
    gateway = await start_gateway(scripted, **sections(*tenants, isolation=isolation))
    answer = await gateway.send(spelled(named), authorization=f"Bearer {key('a')}")
    refused(answer, "lora_path", "adapter_not_allowed")
    assert not scripted.received
    assert (await gateway.send(spelled(named), authorization=f"Bearer {key('b')}")).status_code == 200
    for model in ("demo:theirs", "theirs"):
        answer = await gateway.send(
            spelled(named).replace(b'"demo"', b'"%b"' % model.encode()), authorization=f"Bearer {key('b')}"
        )
        assert error(answer) == (404, "model_not_found")


async def test_the_last_of_two_models_is_the_one_that_is_checked_and_asked_for(scripted, start_gateway):
    """As the engines' JSON parsers have it."""
    gateway = await start_gateway(scripted, **sections(tenant("a", models=("demo",))))
    for members, status in (('"mod\\u0065l":"theirs"', 404), ('"model":"theirs","mod\\u0065l":"demo"', 200)):
        answer = await gateway.send(spelled(members), authorization=f"Bearer {key('a')}")
        assert answer.status_code == status
    (received,) = scripted.received
    assert json.loads(received.body)["model"] == "demo"
