"""Several gateways with one Redis: what one does is shared; without Redis each serves with its own state."""

import asyncio
import collections
import json
import time

from running_gateway import eventually, know_each_other
from tenancy import SECRET, SYSTEM, ask_as, cached, sections, tenant

from gateway.core.ids import ReplicaId, Target

LONG = "Which plants need little water and no direct sun? " * 20
SEES_LOAD = {"health_interval_seconds": 0.05}


def load(gateway, name="r0"):
    replica = gateway.gateway._fleet.find(ReplicaId(name))
    return replica.load(0, time.monotonic())


def blocks(gateway):
    """What a gateway believes to be cached, by replica."""
    return [gateway.gateway._index.state(each.targets[0]).blocks for each in gateway.gateway._fleet.replicas]


def replica(answer) -> str:
    return answer.headers["x-gateway-replica"]


async def hang_up(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# Load in flight


async def test_what_one_has_in_flight_the_others_know_at_once_and_exactly(start_engine, start_group, prose):
    engines = [await start_engine(decode_ms=20) for _ in range(2)]
    first, second = await start_group(engines, placement={"policy": "least_load"})
    long = [asyncio.create_task(first.ask(prose(n, 40), max_tokens=1500, ignore_eos=True)) for n in range(6)]
    # The engines have not been polled since the start.
    await eventually(lambda: [load(second, name).requests for name in ("r0", "r1")] == [3, 3])
    assert [load(first, name).requests for name in ("r0", "r1")] == [3, 3]
    await hang_up(long)
    await eventually(lambda: [load(second, name).requests for name in ("r0", "r1")] == [0, 0])


async def test_new_requests_go_where_no_other_gateway_has_sent_any(start_engine, start_gateway, redis_server, prose):
    engines = [await start_engine(prefill_rate=2000) for _ in range(2)]
    shared = {"state": redis_server.url, "spaces": {"secret": SECRET}, "queue": {"max_seconds": 0}}
    first = await start_gateway(engines[0], **shared)
    second = await start_gateway(*engines, **shared)
    await know_each_other(first, second)
    long = [asyncio.create_task(first.ask(prose(100 + n, 6000), max_tokens=1, stream=True)) for n in range(6)]
    await eventually(lambda: load(second).prefill_tokens > 25_000)
    answers = [await second.ask(prose(seed, 40), max_tokens=1) for seed in range(12)]
    assert {replica(answer) for answer in answers} == {"r1"}
    await hang_up(long)


async def test_requests_of_peers_are_not_counted_twice(start_engine, start_group, start_gateway, prose):
    engine = await start_engine(decode_ms=20)
    first, second = await start_group([engine], relay=SEES_LOAD)
    unknown = await start_gateway(engine)
    fields = {"max_tokens": 1500, "ignore_eos": True}
    tasks = [asyncio.create_task(first.ask(prose(n, 40), **fields)) for n in range(3)]
    tasks += [asyncio.create_task(second.ask(prose(10 + n, 40), **fields)) for n in range(2)]
    tasks += [asyncio.create_task(unknown.ask(prose(20 + n, 40), **fields)) for n in range(4)]
    await eventually(lambda: [load(each).requests for each in (first, second)] == [9, 9])
    await hang_up(tasks[:3])
    await eventually(lambda: [load(each).requests for each in (first, second)] == [6, 6])
    await hang_up(tasks[3:])
    await eventually(lambda: [load(each).requests for each in (first, second)] == [0, 0])


async def test_a_gateway_that_is_gone_is_forgotten_with_its_load(start_engine, start_group, prose):
    engine = await start_engine(decode_ms=20)
    first, second = await start_group([engine])
    long = [asyncio.create_task(first.ask(prose(n, 40), max_tokens=1500, ignore_eos=True)) for n in range(3)]
    await eventually(lambda: load(second).requests == 3)
    await first.gateway._cluster._exchange._tasks.cancel()  # as if it were cut off
    await eventually(lambda: load(second).requests == 0)
    await hang_up(long)


async def test_a_gateway_that_starts_learns_what_is_in_flight(
    start_engine, start_group, start_gateway, prose, redis_server
):
    engine = await start_engine(decode_ms=20)
    (first,) = await start_group([engine], count=1)
    long = [asyncio.create_task(first.ask(prose(n, 40), max_tokens=1500, ignore_eos=True)) for n in range(3)]
    await eventually(lambda: load(first).requests == 3)
    second = await start_gateway(engine, state=redis_server.url, spaces={"secret": SECRET})
    await eventually(lambda: load(second).requests == 3)
    await hang_up(long)


# Fresh routes


async def test_what_one_has_just_sent_the_others_expect_there(start_engine, start_group, prose):
    engines = [await start_engine() for _ in range(4)]
    first, second = await start_group(engines)
    for seed in range(6):
        home = replica(await first.ask(prose(seed, 100), max_tokens=1))
        await eventually(lambda: blocks(first) == blocks(second))
        answer = await second.ask(prose(seed, 100), max_tokens=1)
        assert (replica(answer), answer.headers["x-gateway-decision"]) == (home, "warm")
    assert (await second.settled(6)).value("gateway_prediction_error_tokens_total") == 0


async def test_a_prompt_that_is_still_computed_is_expected_there_as_well(start_engine, start_group, prose):
    engines = [await start_engine(prefill_rate=500) for _ in range(4)]
    first, second = await start_group(engines)
    asked = asyncio.create_task(first.ask(prose(1, 2000), max_tokens=1, stream=True))
    await eventually(lambda: any(load(second, f"r{n}").prefill_tokens for n in range(4)))
    (home,) = [f"r{n}" for n in range(4) if load(second, f"r{n}").prefill_tokens]
    held = second.gateway._index.state(Target(ReplicaId(home))).blocks
    assert held == first.gateway._index.state(Target(ReplicaId(home))).blocks > 0
    await hang_up([asked])
    # It was never computed.
    await eventually(lambda: second.gateway._index.state(Target(ReplicaId(home))).blocks == 0)


async def test_answers_are_known_to_others_for_the_next_turn(start_engine, start_group, prose):
    engines = [await start_engine() for _ in range(3)]
    first, second = await start_group(engines)
    question = [{"role": "user", "content": prose(1, 60)}]
    answer = await first.ask(messages=question, max_tokens=100, ignore_eos=True)
    home = Target(ReplicaId(replica(answer)))
    await eventually(lambda: blocks(first) == blocks(second))
    said = answer.json()["choices"][0]["message"]
    later = {"messages": [*question, said, {"role": "user", "content": "And?"}], "max_tokens": 1}
    turn = await second.ask(**later)
    assert replica(turn) == home.replica
    held = int(turn.headers["x-gateway-prefix-tokens"])
    assert held == turn.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert held > answer.json()["usage"]["prompt_tokens"]


# Spaces


async def reset(gateway, **selection):
    return await gateway.admin.post("/admin/api/spaces/reset", json=selection)


async def epochs(gateway):
    spaces = (await gateway.admin.get("/admin/api/spaces")).json()["spaces"]
    return {(space["tenant"], space["epoch"]) for space in spaces if space["state"] == "alive"}


async def test_gateways_lead_a_tenant_into_one_space(engine, start_group):
    options = sections(tenant("a"), tenant("b"))
    first, second = await start_group([engine], **options)
    await ask_as(first, "a")

    async def one():
        return await epochs(first) == await epochs(second) != set()

    await eventually(one)
    answer = await ask_as(second, "a")
    assert cached(answer) > 0
    assert cached(await ask_as(second, "b")) == 0


async def test_two_that_begin_a_space_at_once_go_on_with_one(engine, start_group):
    first, second = await start_group([engine], **sections(tenant("a")))
    await asyncio.gather(ask_as(first, "a"), ask_as(second, "a"))

    async def one():
        return len(await epochs(first)) == 1 and await epochs(first) == await epochs(second)

    await eventually(one)
    assert (await first.metrics()).value("gateway_resets_total", cause="manual") == 0


async def test_a_reset_at_one_holds_at_all(engine, start_group):
    first, second = await start_group([engine], **sections(tenant("a"), tenant("b")))
    for name in ("a", "b"):
        await ask_as(first, name)
        await eventually(lambda n=name: _same(first, second, n))
    assert cached(await ask_as(second, "a")) > 0
    before = await epochs(second)
    assert (await reset(first, tenant="a")).status_code == 200

    async def reported():
        return len(await epochs(second) & before) == 1

    await eventually(reported)
    assert cached(await ask_as(second, "a")) == 0
    assert cached(await ask_as(second, "b")) > 0
    assert (await second.metrics()).value("gateway_resets_total", cause="manual") == 1


async def _same(first, second, name):
    mine = {entry for entry in await epochs(first) if entry[0] == f"tenant:{name}"}
    return bool(mine) and mine <= await epochs(second)


async def test_a_reset_without_isolation_holds_at_all_and_outlives_them(
    engine, start_group, start_gateway, prose, redis_server
):
    first, second = await start_group([engine])
    await first.ask(prose(1, 100))
    assert (await second.ask(prose(1, 100))).json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert (await reset(first, all=True)).status_code == 200
    await eventually(lambda: bool(second.gateway._spaces.resets))
    answer = await second.ask(prose(1, 100))
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    salt = second.gateway._spaces.epochs[0].space.epoch
    assert salt > 0
    await first.stop()
    await second.stop()
    third = await start_gateway(engine, state=redis_server.url, spaces={"secret": SECRET})
    await third.ask(prose(2, 100))
    assert [life.space.epoch for life in third.gateway._spaces.epochs] == [salt]


async def test_spaces_outlive_all_gateways_and_a_flushed_redis(engine, start_group, start_gateway, redis_server):
    options = sections(tenant("a"))
    first, second = await start_group([engine], **options)
    await ask_as(first, "a")
    await eventually(lambda: _same(first, second, "a"))
    with redis_server.client() as client:
        await eventually(lambda: any(b"pgw:spaces:" in key for key in client.keys("*")))
        client.flushall()
        await eventually(lambda: any(client.hlen(key) > 1 for key in client.keys("pgw:spaces:*")))
    before = await epochs(first)
    await first.stop()
    await second.stop()
    third = await start_gateway(engine, state=redis_server.url, **options)
    answer = await ask_as(third, "a")
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert await epochs(third) == before


async def test_a_reset_that_could_not_be_sent_is_sent_later(engine, start_group, redis_server):
    first, second = await start_group([engine], **sections(tenant("a")))
    await ask_as(first, "a")
    await eventually(lambda: _same(first, second, "a"))
    before = await epochs(second)
    redis_server.kill()
    answer = await reset(first, all=True)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "state_failed")
    assert cached(await ask_as(first, "a")) == 0
    assert (await ask_as(second, "a")).status_code == 200  # it serves on, with its own state
    redis_server.start()

    async def reported():
        return not await epochs(second) & before and await _same(first, second, "a")

    await eventually(reported)


async def test_use_at_any_gateway_keeps_a_space_alive(engine, start_group):
    first, second = await start_group([engine], **sections(tenant("a"), idle_ttl_seconds=3))
    await ask_as(first, "a")
    await eventually(lambda: _same(first, second, "a"))
    before = await epochs(first)
    for _ in range(8):
        await asyncio.sleep(0.6)
        await ask_as(second, "a")
    assert await epochs(first) == before == await epochs(second)


async def test_after_a_reset_each_gateway_finds_what_was_warmed_again(engine, start_group, tmp_path):
    file = tmp_path / "prefixes.json"
    file.write_text(json.dumps([{"model": "demo", "tenant": "a", "messages": [{"role": "system", "content": SYSTEM}]}]))
    warm = {"file": file, "requests_per_second": 1000.0, "again": {"tokens_per_hour": 100_000}}
    first, second = await start_group([engine], **sections(tenant("a")), warm=warm)
    await ask_as(first, "a")
    assert (await reset(first, all=True)).status_code == 200

    async def warmed():
        jobs = [(await each.admin.get("/admin/api/warm")).json()["jobs"] for each in (first, second)]
        return all(any(job["cause"] == "reset" and job["done"] for job in each) for each in jobs)

    await eventually(warmed)
    await eventually(lambda: _same(first, second, "a"))
    for each in (first, second):
        answer = await ask_as(each, "a")
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 100, answer.headers


async def test_without_isolation_gateways_begin_each_epoch_together(engine, start_group):
    first, second = await start_group([engine], spaces={"secret": SECRET, "isolation": "none", "max_age_seconds": 3600})
    await first.ask(LONG)

    async def one_epoch():
        shown = [(await each.admin.get("/admin/api/spaces")).json()["spaces"] for each in (first, second)]
        return len(shown[0]) == len(shown[1]) == 1 and shown[0][0]["id"] == shown[1][0]["id"]

    await eventually(one_epoch)
    answer = await second.ask(LONG)
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


# Limits


async def test_a_tenant_has_its_limit_once(engine, start_group):
    options = sections(tenant("a", prompt_tokens_per_minute=4000, requests_per_second=1000))
    first, second = await start_group([engine], **options)

    def usage(gateway):
        """The tenant's at this gateway, and the sum of what it counts of the others."""
        state = gateway.gateway._gate._limits.find("a")
        return state.taken, tuple(map(sum, zip((0, 0, 0), *state._elsewhere.values(), strict=True)))

    def each_sees_the_other() -> bool:
        return all(usage(one)[0] == usage(other)[1] for one, other in ((first, second), (second, first)))

    for number in range(2):
        assert (await ask_as((first, second)[number], "a", f"first {number}")).status_code == 200
    await eventually(each_sees_the_other)
    statuses = collections.Counter()
    tokens = sum(usage(each)[0].tokens for each in (first, second))
    for number in range(40):
        answer = await ask_as((first, second)[number % 2], "a", str(number))
        statuses[answer.status_code] += 1
        if answer.status_code == 200:
            tokens += answer.json()["usage"]["prompt_tokens"]
            await eventually(each_sees_the_other)
    assert statuses[429] > 0
    assert 3000 < tokens <= 4000


async def test_running_requests_count_everywhere_and_end_everywhere(start_engine, start_group):
    engine = await start_engine(decode_ms=20)
    first, second = await start_group([engine], **sections(tenant("a", concurrent=3)))
    long = [asyncio.create_task(ask_as(first, "a", str(n), max_tokens=1500, ignore_eos=True)) for n in range(3)]

    async def refused():
        return (await ask_as(second, "a")).status_code == 429

    await eventually(refused)
    await hang_up(long)

    async def served():
        return (await ask_as(second, "a")).status_code == 200

    await eventually(served)


# Without Redis


async def test_requests_go_on_in_any_state_of_redis(engine, start_group, redis_server, prose):
    first, second = await start_group([engine], **sections(tenant("a")))
    await ask_as(first, "a")

    async def all_served(trouble):
        trouble()
        for number in range(6):
            began = time.monotonic()
            answers = await asyncio.gather(*(ask_as(each, "a", str(number)) for each in (first, second)))
            assert [answer.status_code for answer in answers] == [200, 200]
            assert time.monotonic() - began < 20
            await asyncio.sleep(0.3)

    await all_served(redis_server.hang)
    await all_served(redis_server.wake)
    await all_served(redis_server.kill)
    assert (await first.metrics()).value("gateway_state_errors_total", backend="redis") > 0
    redis_server.start()
    await know_each_other(first, second)
    with redis_server.client() as client:
        client.config_set("maxmemory", "1")  # full: nothing can be written
    await all_served(lambda: None)
    with redis_server.client() as client:
        client.config_set("maxmemory", "0")
    await eventually(lambda: _same(first, second, "a"))


async def test_a_gateway_starts_without_redis_and_joins_when_it_comes(engine, start_gateway, redis_server):
    redis_server.kill()
    options = sections(tenant("a")) | {"state": redis_server.url}
    group = [await start_gateway(engine, **options) for _ in range(2)]
    for gateway in group:
        assert (await ask_as(gateway, "a")).status_code == 200
    assert await epochs(group[0]) != await epochs(group[1])
    redis_server.start()
    await know_each_other(*group)
    await eventually(lambda: _same(*group, "a"))
    await eventually(lambda: _same(*reversed(group), "a"))
