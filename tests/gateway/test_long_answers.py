"""A whole answer that takes longer than the first byte may is not computed again while its replica answers others."""

import asyncio

from running_gateway import eventually


async def test_the_same_is_not_begun_elsewhere_and_no_replica_is_blamed(start_engine, start_gateway):
    engines = [await start_engine(decode_ms=20.0) for _ in range(2)]
    gateway = await start_gateway(*engines, relay={"first_byte_timeout_seconds": 4})
    first = await gateway.ask(max_tokens=2)  # where the prompt is warm from now on
    name = first.headers["x-gateway-replica"]
    long = asyncio.create_task(gateway.ask(max_tokens=2000, ignore_eos=True))
    await eventually(lambda: any(engine.scheduler.running for engine in engines))
    short = await gateway.ask(max_tokens=2)
    assert short.headers["x-gateway-replica"] == name
    answer = await long
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "replica_timeout")
    assert [len(engine.requests) for engine in engines] == ([3, 0] if name == "r0" else [0, 3])
    assert (await gateway.replicas())[name]["state"] == "ready"
    await gateway.settled(3)


async def test_a_replica_that_answers_nothing_is_no_longer_used(start_engine, start_gateway):
    engines = [await start_engine() for _ in range(2)]
    gateway = await start_gateway(*engines, relay={"first_byte_timeout_seconds": 0.5})
    name = (await gateway.ask(max_tokens=2)).headers["x-gateway-replica"]
    await engines[int(name[1:])].set_fault("hang")
    answer = await gateway.ask(max_tokens=2)
    assert answer.status_code == 200
    assert answer.headers["x-gateway-replica"] != name
    assert (await gateway.replicas())[name]["state"] == "suspect"
