"""Several gateways, and others, in front of the same engines: placement heeds what the engines are busy with."""

import asyncio
import itertools

import pytest
from running_gateway import each_answers, eventually
from scripted_engine import response

from gateway.core.engine_facts import EngineKind


def replica(answer) -> str:
    return answer.headers["x-gateway-replica"]


SEES_LOAD = {"health_interval_seconds": 0.05}
NO_QUEUE = {"max_seconds": 0}
"""For a gateway whose requests are to wait in the engine."""


def finished(engine) -> list[int]:
    """Answered requests of each rank."""
    return [rank.scheduler.totals.finished for rank in engine.ranks.all]


def waiting(engine) -> list[int]:
    return [rank.scheduler.waiting for rank in engine.ranks.all]


async def hang_up(tasks: list[asyncio.Task]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def sees(gateway, **counts: int) -> None:
    """Wait until a gateway has read these waiting requests off the engines' metrics."""

    async def seen() -> bool:
        states = await gateway.replicas()
        return all((states[name]["engine"]["waiting"] or 0) >= count for name, count in counts.items())

    await eventually(seen)


async def test_long_prompts_of_one_gateway_keep_the_new_ones_of_another_away(start_engine, start_gateway, prose):
    engines = [await start_engine(prefill_rate=2000) for _ in range(2)]
    first = await start_gateway(engines[0], queue=NO_QUEUE)
    second = await start_gateway(*engines, relay=SEES_LOAD)
    seeds = itertools.count(1_000)

    async def used() -> str:
        return replica(await second.ask(prose(next(seeds), 40), max_tokens=1))

    await each_answers(used, {"r0", "r1"})
    long = [asyncio.create_task(first.ask(prose(100 + n, 6000), max_tokens=1, stream=True)) for n in range(6)]
    await sees(second, r0=4)
    answers = [await second.ask(prose(seed, 40), max_tokens=1) for seed in range(200, 212)]
    assert waiting(engines[0])[0] > 0
    assert {replica(answer) for answer in answers} == {"r1"}
    await hang_up(long)
    # What it saw is not kept: once the engine is idle, it is as good as the other.
    await sees_idle(second)
    await each_answers(used, {"r0", "r1"})


async def sees_idle(gateway) -> None:
    async def seen() -> bool:
        engines = [state["engine"] for state in (await gateway.replicas()).values()]
        return all(engine["running"] == engine["waiting"] == 0 for engine in engines)

    await eventually(seen)


async def test_least_load_counts_the_requests_of_others(start_engine, start_gateway, prose):
    engines = [await start_engine(decode_ms=20) for _ in range(2)]
    first = await start_gateway(engines[1])
    second = await start_gateway(*engines, relay=SEES_LOAD, placement={"policy": "least_load"})
    long = [asyncio.create_task(first.ask(prose(1, 40), max_tokens=1500, ignore_eos=True)) for _ in range(3)]

    async def seen() -> bool:
        return (await second.replicas())["r1"]["engine"]["running"] == 3

    await eventually(seen)
    assert {replica(await second.ask(prose(seed, 40), max_tokens=1)) for seed in range(6)} == {"r0"}
    await hang_up(long)


async def test_own_requests_are_not_taken_for_those_of_others(start_engine, start_gateway, prose):
    engines = [await start_engine(decode_ms=20, slots=4) for _ in range(2)]
    gateway = await start_gateway(*engines, relay=SEES_LOAD)
    prefix = prose(1, 100)
    home = replica(await gateway.ask(prefix, max_tokens=1))
    fields = {"max_tokens": 20, "ignore_eos": True, "n": 4}
    burst = [asyncio.create_task(gateway.ask(f"{prefix} {n}", stream=True, **fields)) for n in range(5)]
    await sees(gateway, **{home: 12})
    # If each choice of an answer counted as a request, the warm replica would look overloaded.
    late = [asyncio.create_task(gateway.ask(f"{prefix} and {n}?", max_tokens=1)) for n in range(4)]
    assert {replica(answer) for answer in await asyncio.gather(*burst, *late)} == {home}
    await gateway.settled(10)


def page(waiting: int) -> str:
    return (
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",enable_prefix_caching="True",engine="0"} 1.0\n'
        'vllm:num_requests_running{engine="0"} 1.0\n'
        f'vllm:num_requests_waiting{{engine="0"}} {waiting}.0\n'
    )


async def test_load_that_has_not_been_read_for_long_counts_no_more(scripted, start_engine, start_gateway, prose):
    scripted.metrics = page(50)
    scripted.says(response(b'{"choices":[]}'))
    other = await start_engine()
    # So long that a stall of the test's machine is not "for long".
    gateway = await start_gateway(scripted, other, relay={"health_interval_seconds": 0.5})
    assert {replica(await gateway.ask(prose(seed, 40), max_tokens=1)) for seed in range(12)} == {"r1"}
    scripted.metrics_status = "500 Internal Server Error"
    seeds = iter(range(100, 10_000))

    async def chosen_again() -> bool:
        return replica(await gateway.ask(prose(next(seeds), 40), max_tokens=1)) == "r0"

    await eventually(chosen_again)


@pytest.mark.parametrize("policy", ["expected_ttft", "round_robin", "least_load", "session"])
async def test_every_rank_is_used_and_gets_what_it_was_chosen_for(start_engine, start_gateway, prose, policy):
    engine = await start_engine(data_parallel_size=3)
    gateway = await start_gateway(engine, placement={"policy": policy})
    for seed in range(24):
        answer = await gateway.ask(prose(seed, 60), max_tokens=1, headers={"x-session-id": f"s{seed}"})
        assert answer.status_code == 200
    asked = [dict(request.headers)[b"x-data-parallel-rank"] for request in engine.requests]
    assert set(asked) == {b"0", b"1", b"2"}
    assert [asked.count(b"%d" % n) for n in range(3)] == finished(engine)


@pytest.mark.parametrize("flavor", EngineKind)
async def test_repeated_prompt_goes_to_the_rank_that_holds_it(start_engine, start_gateway, prose, flavor):
    engine = await start_engine(data_parallel_size=4, flavor=flavor, prompt_tokens_details=True)
    gateway = await start_gateway(engine)
    for seed in range(12):
        for expected in ("cold", "warm", "warm"):
            answer = await gateway.ask(prose(seed, 100), max_tokens=1)
            assert answer.headers["x-gateway-decision"] == expected
            held = int(answer.headers["x-gateway-prefix-tokens"])
            details = answer.json()["usage"]["prompt_tokens_details"]
            assert held == (details["cached_tokens"] if details else 0)
    assert all(finished(engine))
    assert (await gateway.replicas())["r0"]["engine"]["ranks"] == 4
    metrics = await gateway.settled(36)
    assert metrics.value("gateway_prediction_error_tokens_total") == 0


async def test_busy_rank_is_avoided(start_engine, start_gateway, prose):
    engine = await start_engine(data_parallel_size=2, prefill_rate=500)
    gateway = await start_gateway(engine, queue=NO_QUEUE)
    other = await start_gateway(engine, relay=SEES_LOAD)
    rank = {"x-data-parallel-rank": "1"}
    long = [asyncio.create_task(gateway.ask(prose(n, 6000), max_tokens=1, headers=rank)) for n in range(5)]
    await sees(other, r0=3)
    for seed in range(100, 108):
        await other.ask(prose(seed, 40), max_tokens=1)
    assert waiting(engine)[1] > 0
    assert finished(engine)[0] == 8
    await hang_up(long)


async def test_rank_that_the_client_asks_for_is_kept(start_engine, start_gateway, prose):
    engine = await start_engine(data_parallel_size=4)
    gateway = await start_gateway(engine)
    text = prose(1, 100)
    for rank in ("2", "2", "1"):
        answer = await gateway.ask(text, max_tokens=1, headers={"x-data-parallel-rank": rank})
        held = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert int(answer.headers["x-gateway-prefix-tokens"]) == held
    sent = [[value for name, value in r.headers if name == b"x-data-parallel-rank"] for r in engine.requests]
    assert sent == [[b"2"], [b"2"], [b"1"]]
    assert finished(engine) == [0, 1, 2, 0]


async def test_rank_that_the_client_asks_for_leads_to_a_replica_that_has_it(start_engine, start_gateway, prose):
    engines = [await start_engine(), await start_engine(data_parallel_size=3)]
    gateway = await start_gateway(*engines)
    for seed in range(8):
        answer = await gateway.ask(prose(seed, 40), max_tokens=1, headers={"x-data-parallel-rank": "2"})
        assert replica(answer) == "r1"


@pytest.mark.parametrize("given", ["7", "x", "-1", "1" * 5000])
async def test_rank_that_no_replica_has_is_the_engines_to_refuse(scripted, start_gateway, given):
    gateway = await start_gateway(scripted)
    answer = await gateway.ask(headers={"x-data-parallel-rank": given})
    assert answer.status_code == 200
    assert scripted.received[0].values("x-data-parallel-rank") == [given]


async def test_replica_with_a_single_rank_is_sent_no_rank(scripted, start_gateway):
    scripted.metrics = page(0).replace('engine="0"', 'engine="3"')
    gateway = await start_gateway(scripted)
    assert (await gateway.ask()).status_code == 200
    assert scripted.received[0].values("x-data-parallel-rank") == []
