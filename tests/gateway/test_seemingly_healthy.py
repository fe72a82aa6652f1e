"""Replicas that pass their health checks and take no requests: they hang, sleep, or are several."""

import asyncio
import itertools

from running_gateway import eventually

QUICK = {"health_interval_seconds": 0.1}


async def states(gateway):
    return {name: row["state"] for name, row in (await gateway.replicas()).items()}


async def test_one_that_hangs_loses_no_request_and_returns(start_engine, start_gateway):
    engines = [await start_engine() for _ in range(3)]
    gateway = await start_gateway(*engines, relay=QUICK | {"suspect_seconds": 0.5})
    statuses, asking = [], set()

    async def ask(number):
        answer = await gateway.ask(f"{number} " * 100, max_tokens=2, stream=number % 2 == 0)
        statuses.append(answer.status_code)

    async def traffic():
        for number in itertools.count():
            asking.add(asyncio.create_task(ask(number)))
            await asyncio.sleep(0.05)

    async def in_state(state):
        return (await states(gateway))["r1"] == state

    busy = asyncio.create_task(traffic())
    await eventually(lambda: len(statuses) > 30)
    await engines[1].set_fault("hang")
    await eventually(lambda: in_state("stuck"))
    await engines[1].set_fault("")
    await eventually(lambda: in_state("ready"))
    busy.cancel()
    await asyncio.gather(*asking)
    assert set(statuses) == {200}


async def test_one_alone_stays_however_long_it_is_silent(start_engine, start_gateway):
    engine = await start_engine()
    gateway = await start_gateway(engine, relay=QUICK)
    for _ in range(4):
        await gateway.ask("hello", max_tokens=2, stream=True)
    await engine.set_fault("hang")
    waiting = [asyncio.create_task(gateway.ask("hello", max_tokens=2, stream=True)) for _ in range(4)]

    async def silent():
        return (await gateway.replicas())["r0"]["silent_seconds"] > 3

    await eventually(silent)
    assert await states(gateway) == {"r0": "ready"}
    for each in waiting:
        each.cancel()


async def test_one_that_sleeps_gets_nothing_until_it_is_awake(scripted, start_engine, start_gateway):
    scripted.documents["/is_sleeping"] = b'{"is_sleeping": true}'
    other = await start_engine()
    gateway = await start_gateway(scripted, other, relay=QUICK)
    assert {(await gateway.ask(str(n), max_tokens=2)).headers["x-gateway-replica"] for n in range(6)} == {"r1"}
    assert (await states(gateway))["r0"] == "sleeping"
    scripted.documents["/is_sleeping"] = b'{"is_sleeping": false}'

    async def awake():
        return (await states(gateway))["r0"] == "ready"

    await eventually(awake)


async def test_a_model_whose_replicas_all_sleep(scripted, start_gateway):
    scripted.documents["/is_sleeping"] = b'{"is_sleeping": true}'
    gateway = await start_gateway(scripted, relay=QUICK)
    answer = await gateway.ask("hello")
    assert answer.status_code == 503
    assert "sleeps" in answer.json()["error"]["message"]
    assert (await gateway.http.get("/readyz")).status_code == 503


async def test_several_engines_behind_one_address(scripted, start_gateway):
    page = 'vllm:num_requests_running{model_name="demo"} 0\nprocess_start_time_seconds %d\n'
    scripted.metrics = page % 1000
    gateway = await start_gateway(scripted, relay=QUICK)

    async def several():
        scripted.metrics = page % (2000 if "1000" in scripted.metrics else 1000)
        await asyncio.sleep(0.2)
        return (await gateway.replicas())["r0"]["several_engines"]

    await eventually(several)
    answers = [await gateway.ask("word " * 100, max_tokens=2) for _ in range(3)]
    assert {each.headers["x-gateway-prefix-tokens"] for each in answers} == {"0"}
