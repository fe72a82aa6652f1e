import asyncio
import contextlib
import random

import pytest
from event_reader import Mirror, Subscriber, held, replay
from prometheus_client.parser import text_string_to_metric_families

from gateway.simulator.publisher import ListenError

COMPLETIONS = "/v1/completions"


async def ask(client, tokens, rank=None, **fields):
    headers = {} if rank is None else {"x-data-parallel-rank": str(rank)}
    return await client.post(COMPLETIONS, json={"prompt": list(tokens), "max_tokens": 1} | fields, headers=headers)


def cached(response) -> int:
    assert response.status_code == 200, response.text
    return response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


async def test_each_rank_has_a_cache_of_its_own(start, connect):
    client = connect(await start(data_parallel_size=2))
    assert cached(await ask(client, range(100, 165), 1)) == 0
    assert cached(await ask(client, range(100, 165), 0)) == 0
    assert cached(await ask(client, range(100, 165), 1)) == 64


@pytest.mark.parametrize("rank", [2, -1])
async def test_a_rank_that_is_not_there_is_refused(start, connect, rank):
    client = connect(await start(data_parallel_size=2))
    response = await ask(client, range(20), rank)
    assert response.status_code == 400
    assert "out of range" in response.json()["error"]["message"]


async def test_what_is_no_number_leaves_the_choice_to_the_engine(start, connect):
    client = connect(await start(data_parallel_size=2))
    assert (await ask(client, range(20), "first")).status_code == 200


async def test_idle_ranks_take_turns(start, connect):
    engine = await start(data_parallel_size=3)
    client = connect(engine)
    for _ in range(6):
        await ask(client, range(20))
    assert [rank.scheduler.totals.finished for rank in engine.ranks.all] == [2, 2, 2]


async def test_the_least_busy_rank_is_chosen(start, connect):
    engine = await start(data_parallel_size=2, decode_ms=20)
    client = connect(engine)
    long = {"max_tokens": 100, "ignore_eos": True}
    busy = [asyncio.create_task(ask(client, range(20), 0, **long)) for _ in range(3)]
    while engine.ranks.all[0].scheduler.running < 3:
        await asyncio.sleep(0.001)
    free = [asyncio.create_task(ask(client, range(20), **long)) for _ in range(3)]
    while sum(rank.scheduler.running for rank in engine.ranks.all) < 6:
        await asyncio.sleep(0.001)
    assert [rank.scheduler.running for rank in engine.ranks.all] == [3, 3]
    for task in busy + free:
        task.cancel()


async def test_each_rank_publishes_on_sockets_of_its_own(start, connect):
    engine = await start(data_parallel_size=2, events="tcp://*:0", replay="tcp://*:0")
    client = connect(engine)
    assert len(set(engine.event_endpoints + engine.replay_endpoints)) == 4
    await ask(client, range(100, 133), 1)
    await ask(client, range(100, 165), 1)
    await ask(client, range(300, 333), 0)
    for rank, batches in enumerate([await replay(endpoint) for endpoint in engine.replay_endpoints]):
        assert [batch.sequence for batch in batches] == list(range(1 + rank))
        assert {batch.content[2] for batch in batches} == {rank}
        mirror = Mirror()
        mirror.apply(batches)
        assert mirror.content == held(engine, rank)
        assert len(mirror.content) == 2 + 2 * rank


async def test_rank_r_takes_the_port_plus_r(start, connect):
    # Free ports next to each other are found by trying.
    for base in range(random.randrange(20_000, 28_000), 60_000, 997):
        with contextlib.suppress(ListenError):
            engine = await start(data_parallel_size=2, events=f"tcp://*:{base}", replay=f"tcp://*:{base + 2}")
            break
    assert engine.event_endpoints == [f"tcp://*:{base}", f"tcp://*:{base + 1}"]
    assert engine.replay_endpoints == [f"tcp://*:{base + 2}", f"tcp://*:{base + 3}"]
    reported = (await connect(engine).get("/kv_event_sources")).json()
    assert [reported[rank]["endpoint"] for rank in ("0", "1")] == engine.event_endpoints
    assert [reported[rank]["replay_endpoint"] for rank in ("0", "1")] == engine.replay_endpoints
    subscriber = Subscriber(engine.event_endpoints[1])
    await subscriber.tune(engine, rank=1)
    subscriber.close()


async def test_metrics_distinguish_the_ranks(start, connect):
    engine = await start(data_parallel_size=2, decode_ms=20, blocks=101)
    client = connect(engine)
    running = asyncio.create_task(ask(client, range(20), 1, max_tokens=100, ignore_eos=True))
    while not engine.ranks.all[1].scheduler.running:
        await asyncio.sleep(0.001)
    families = list(text_string_to_metric_families((await client.get("/metrics")).text))
    running.cancel()
    samples = {(sample.name, sample.labels.get("engine")): sample for family in families for sample in family.samples}
    assert [samples["vllm:num_requests_running", rank].value for rank in ("0", "1")] == [0, 1]
    assert [samples["vllm:cache_config_info", rank].labels["num_gpu_blocks"] for rank in ("0", "1")] == ["202", "202"]
    assert ("process_start_time_seconds", None) not in samples


async def test_a_reset_is_of_every_rank(start, connect):
    engine = await start(data_parallel_size=2)
    client = connect(engine)
    for rank in (0, 1):
        await ask(client, range(100, 165), rank)
    await client.post("/reset_prefix_cache")
    assert engine.content == [[], []]
