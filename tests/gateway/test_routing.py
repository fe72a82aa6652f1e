"""Where requests go, as a client sees it, and whether what was predicted is what the engines found."""

import asyncio
import collections
import random

import pytest
from running_gateway import COMPLETIONS, eventually
from scripted_engine import response

from gateway.simulator.config import EngineConfig
from gateway.simulator.simulated_engine import SimulatedEngine


def predicted(answer) -> int:
    return int(answer.headers["x-gateway-prefix-tokens"])


def confirmed(answer) -> int:
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def replica(answer) -> str:
    return answer.headers["x-gateway-replica"]


@pytest.fixture
async def fleet(start_engine, start_gateway):
    """A gateway in front of three engines."""
    return await start_gateway(*[await start_engine() for _ in range(3)])


async def test_repeated_prompt_goes_where_it_is_warm(fleet, prose):
    for seed in range(8):
        text = prose(seed, 120)
        first = await fleet.ask(text, max_tokens=2)
        assert first.headers["x-gateway-decision"] == "cold"
        assert predicted(first) == confirmed(first) == 0
        for ending in ("", " And now?", " Why?"):
            again = await fleet.ask(text + ending, max_tokens=2)
            assert replica(again) == replica(first)
            assert again.headers["x-gateway-decision"] == "warm"
            assert predicted(again) == confirmed(again) > 100
            assert predicted(again) % 16 == 0


async def test_completions_are_routed_by_prefix_too(fleet, prose):
    body = {"model": "demo", "prompt": prose(1, 100), "max_tokens": 2}
    first = await fleet.http.post(COMPLETIONS, json=body)
    again = await fleet.http.post(COMPLETIONS, json=body)
    assert replica(again) == replica(first)
    assert predicted(again) == confirmed(again) > 80


async def test_different_prefixes_spread(fleet, prose):
    answers = [await fleet.ask(prose(seed, 60), max_tokens=1) for seed in range(60)]
    count = collections.Counter(replica(answer) for answer in answers)
    assert len(count) == 3
    assert min(count.values()) >= 10


async def test_same_prefix_leads_two_gateways_to_the_same_replica(start_engine, start_gateway, prose):
    engines = [await start_engine() for _ in range(3)]
    gateways = [await start_gateway(*engines) for _ in range(2)]
    for seed in range(10):
        first, second = [await gateway.ask(prose(seed, 60), max_tokens=1) for gateway in gateways]
        assert replica(first) == replica(second)


async def test_burst_with_one_new_prefix_stays_together(start_engine, start_gateway, prose):
    engines = [await start_engine(prefill_rate=10_000) for _ in range(3)]
    gateway = await start_gateway(*engines)
    prefix = prose(9, 1500)
    answers = await asyncio.gather(*(gateway.ask(f"{prefix} Number {n}?", max_tokens=2) for n in range(20)))
    assert len({replica(answer) for answer in answers}) == 1
    assert sum(answer.headers["x-gateway-decision"] == "warm" for answer in answers) == 19
    assert sum(confirmed(answer) > 1400 for answer in answers) == 19


async def test_hot_prefix_spreads_when_its_replica_is_busy(start_engine, start_gateway, prose):
    engines = [await start_engine(prefill_rate=20_000) for _ in range(3)]
    gateway = await start_gateway(*engines, placement={"prefill_tokens_per_second": 20_000})
    prefix = prose(9, 300)
    home = replica(await gateway.ask(prefix, max_tokens=1))
    answers = await asyncio.gather(
        *(gateway.ask(f"{prefix} {prose(100 + n, 1500)}", max_tokens=1, stream=True) for n in range(15))
    )
    count = collections.Counter(replica(answer) for answer in answers)
    assert len(count) == 3
    assert max(count.values()) <= 8
    assert home in count
    assert "balanced" in {answer.headers["x-gateway-decision"] for answer in answers}
    await gateway.settled(16)


async def test_long_prefill_elsewhere_keeps_newcomers_away(start_engine, start_gateway, prose):
    engines = [await start_engine(prefill_rate=4000) for _ in range(2)]
    gateway = await start_gateway(*engines)
    busy = asyncio.create_task(gateway.ask(prose(1, 4000), max_tokens=1))
    await eventually(lambda: any(engine.scheduler.running for engine in engines))
    occupied = next(f"r{n}" for n, engine in enumerate(engines) if engine.scheduler.running)
    short = [await gateway.ask(prose(seed, 30), max_tokens=1) for seed in range(50, 58)]
    assert {replica(answer) for answer in short} == {"r0", "r1"} - {occupied}
    assert replica(await busy) == occupied


async def test_conversation_is_predicted_to_the_token(fleet, prose):
    messages = [{"role": "system", "content": prose(1, 80)}, {"role": "user", "content": "Where is it?"}]
    home, before = None, 0
    for turn in range(6):
        answer = await fleet.ask(messages=messages, max_tokens=60, stream=False, min_tokens=50)
        usage = answer.json()["usage"]
        assert predicted(answer) == confirmed(answer)
        if turn:
            assert replica(answer) == home
            # Not only the last prompt is found again but the blocks its answer filled, too.
            assert predicted(answer) > before + 16
        home, before = replica(answer), usage["prompt_tokens"]
        messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": f"And number {turn}?"}]
    metrics = await fleet.settled(6)
    assert metrics.value("gateway_prediction_error_tokens_total") == 0
    assert metrics.value("gateway_token_parity_total", result="equal") == 6
    assert metrics.value("gateway_token_parity_total", result="different") == 0


async def test_streamed_conversation_is_predicted_to_the_token(fleet, sdk, prose):
    client = sdk(fleet)
    messages = [{"role": "system", "content": prose(2, 80)}, {"role": "user", "content": "Where is it?"}]
    for turn in range(4):
        stream = await client.chat.completions.create(model="demo", messages=messages, max_tokens=70, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"And number {turn}?"}]
    metrics = await fleet.settled(4)
    assert metrics.value("gateway_prediction_error_tokens_total") == 0
    reported = metrics.value("gateway_cached_tokens_total", evidence="confirmed")
    assert reported == metrics.value("gateway_cached_tokens_total", evidence="predicted") > 300


async def test_small_caches_are_predicted_with_their_evictions(start_engine, start_gateway, prose):
    gateway = await start_gateway(*[await start_engine(blocks=65) for _ in range(2)])
    order = random.Random(4)
    exact, warm = 0, 0
    for number in range(80):
        answer = await gateway.ask(prose(order.randrange(14), 150), max_tokens=20, seed=number)
        exact += predicted(answer) == confirmed(answer)
        warm += confirmed(answer) > 0
    assert exact >= 76
    assert 10 < warm < 80


async def test_restarted_engine_costs_one_wrong_prediction(start_engine, start_gateway, closing, prose):
    engine = await start_engine()
    gateway = await start_gateway(engine)
    texts = [prose(seed, 100) for seed in range(4)]
    for text in texts:
        await gateway.ask(text, max_tokens=1)
    await engine.kill()
    fresh = SimulatedEngine(EngineConfig(port=engine.port, prefill_rate=1e6, decode_ms=0))
    await fresh.start()
    closing.push_async_callback(fresh.kill)
    surprised = await gateway.ask(texts[3], max_tokens=1)
    assert surprised.status_code == 200
    assert predicted(surprised) > 0
    assert confirmed(surprised) == 0
    await gateway.settled(5)
    # What had been used no later than the prompt just missed is known to be gone as well.
    for text in texts[:3]:
        answer = await gateway.ask(text, max_tokens=1)
        assert predicted(answer) == confirmed(answer) == 0
    for text in texts:
        answer = await gateway.ask(text, max_tokens=1)
        assert predicted(answer) == confirmed(answer) > 0
    metrics = await gateway.settled(12)
    assert metrics.value("gateway_prediction_error_tokens_total", direction="over") == predicted(surprised)
    assert metrics.value("gateway_prediction_error_tokens_total", direction="under") == 0


async def test_engine_whose_process_is_another_is_known_to_be_empty(scripted, start_gateway, prose):
    def page(started: int) -> str:
        return (
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",enable_prefix_caching="True"} 1.0\n'
            f"vllm:num_requests_running 0.0\nprocess_start_time_seconds {started}\n"
        )

    scripted.metrics = page(100)
    scripted.says(response(b'{"choices":[]}'))
    gateway = await start_gateway(scripted, relay={"health_interval_seconds": 0.03})
    for expected in (False, True, True):
        assert (predicted(await gateway.ask(prose(1, 100))) > 0) == expected

    async def blocks() -> int:
        return (await gateway.replicas())["r0"]["index"]["blocks"]

    assert await blocks() > 0
    scripted.metrics = page(200)

    async def empty() -> bool:
        return await blocks() == 0

    await eventually(empty)
    assert (await gateway.replicas())["r0"]["index"]["capacity_blocks"] == 999
    assert predicted(await gateway.ask(prose(1, 100))) == 0


async def test_engine_without_prefix_caching_is_never_warm(scripted, start_gateway, prose):
    scripted.metrics = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="50",enable_prefix_caching="False"} 1.0\n'
    gateway = await start_gateway(scripted)
    for _ in range(3):
        assert (await gateway.ask(prose(1, 100))).headers["x-gateway-decision"] == "cold"


async def test_prompt_log_probabilities_do_not_spoil_the_index(gateway, prose):
    text = prose(1, 100)
    await gateway.ask(text, max_tokens=1)
    bypassing = await gateway.ask(text, max_tokens=1, prompt_logprobs=1)
    assert confirmed(bypassing) == 0
    after = await gateway.ask(text, max_tokens=1)
    assert predicted(after) == confirmed(after) > 0


async def test_prompt_is_warm_only_under_the_salt_it_was_sent_with(gateway, prose):
    text = prose(1, 100)
    for fields in ({"cache_salt": "one"}, {"cache_salt": "two"}, {}):
        first, again = [await gateway.ask(text, max_tokens=1, **fields) for _ in range(2)]
        assert predicted(first) == confirmed(first) == 0
        assert predicted(again) == confirmed(again) > 80


async def test_failed_request_is_not_taken_for_computed(gateway, engine, prose):
    await engine.set_fault("500:times=1")
    assert (await gateway.ask(prose(1, 100))).status_code == 500
    answer = await gateway.ask(prose(1, 100), max_tokens=1)
    assert predicted(answer) == confirmed(answer) == 0


async def test_block_size_of_each_replica_counts(start_engine, start_gateway, prose):
    sizes = {"r0": 16, "r1": 48}
    gateway = await start_gateway(*[await start_engine(block_size=size) for size in sizes.values()])
    seen = set()
    for seed in range(12):
        await gateway.ask(prose(seed, 150), max_tokens=1)
        answer = await gateway.ask(prose(seed, 150), max_tokens=1)
        size = sizes[replica(answer)]
        assert predicted(answer) == confirmed(answer)
        assert predicted(answer) == (answer.json()["usage"]["prompt_tokens"] - 1) // size * size
        seen.add(replica(answer))
    assert seen == set(sizes)


async def test_each_model_has_its_own_replicas(start_engine, start_gateway, prose):
    engines = {name: await start_engine(model=name) for name in ("small", "large")}
    gateway = await start_gateway(
        models=[
            {"id": name, "tokenizer": "builtin:demo", "replicas": [{"url": engine.url, "id": f"{name}-0"}]}
            for name, engine in engines.items()
        ]
    )
    for name in ("small", "large", "small", "large"):
        answer = await gateway.ask(prose(1, 50), model=name, max_tokens=1)
        assert replica(answer) == f"{name}-0"
        assert answer.json()["model"] == name
        assert predicted(answer) == confirmed(answer)
    metrics = await gateway.settled(4)
    assert metrics.value("gateway_requests_total", model="small") == 2


async def test_round_robin_takes_turns(start_engine, start_gateway, prose):
    gateway = await start_gateway(*[await start_engine() for _ in range(3)], placement={"policy": "round_robin"})
    turns = [replica(await gateway.ask(prose(1, 50), max_tokens=1)) for _ in range(9)]
    assert sorted(turns[:3]) == ["r0", "r1", "r2"]
    assert turns == turns[:3] * 3


async def test_least_load_avoids_the_busy(start_engine, start_gateway, prose, connect):
    engines = [await start_engine(decode_ms=20) for _ in range(3)]
    gateway = await start_gateway(*engines, placement={"policy": "least_load"})
    text = prose(1, 50)
    long = [asyncio.create_task(gateway.ask(text, max_tokens=100, ignore_eos=True)) for _ in range(2)]
    await eventually(lambda: sum(engine.scheduler.running for engine in engines) == 2)
    busy = {f"r{n}" for n, engine in enumerate(engines) if engine.scheduler.running}
    assert len(busy) == 2
    for _ in range(4):
        assert replica(await gateway.ask(text, max_tokens=1)) not in busy
    assert {replica(answer) for answer in await asyncio.gather(*long)} == busy


async def test_session_stays_with_its_replica(start_engine, start_gateway, prose):
    gateway = await start_gateway(*[await start_engine() for _ in range(3)], placement={"policy": "session"})
    homes = {}
    for number in range(20):
        session = f"session-{number}"
        visited = {
            replica(await gateway.ask(prose(number + turn, 40), headers={"x-session-id": session}, max_tokens=1))
            for turn in range(3)
        }
        assert len(visited) == 1
        homes[session] = visited.pop()
    assert set(homes.values()) == {"r0", "r1", "r2"}


async def test_index_that_fails_costs_no_request_its_answer(fleet, monkeypatch, prose):
    def broken(*_args: object) -> int:
        raise RuntimeError("the index is broken")

    monkeypatch.setattr(fleet.gateway._index, "holdings", broken)
    answers = [await fleet.ask(prose(seed, 60), max_tokens=1) for seed in range(2)]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-gateway-decision"] for answer in answers} == {"blind"}
    await fleet.settled(2)
