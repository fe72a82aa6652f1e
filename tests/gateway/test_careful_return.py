"""A replica that failed, or has just come up, gets its share back with care."""

import asyncio
import contextlib

from running_gateway import eventually


def home(answer):
    assert answer.status_code == 200, answer.text
    return answer.headers["x-gateway-replica"]


async def requests(gateway) -> int:
    return sum(each["requests"] for each in (await gateway.replicas()).values())


@contextlib.asynccontextmanager
async def at_once(gateway, prose, count):
    """That many different prompts on their way, none of which is answered; in the end their clients leave."""
    tasks = [asyncio.create_task(gateway.ask(prose(seed, 40), max_tokens=1)) for seed in range(count)]

    async def are_there(wanted: int) -> bool:
        return await requests(gateway) == wanted

    try:
        await eventually(lambda: are_there(count))
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await eventually(lambda: are_there(0))


async def test_after_a_failure_one_request_at_a_time_tries_it_and_no_request_fails_for_that(
    start_engine, start_gateway, prose
):
    engines = [await start_engine(), await start_engine()]
    gateway = await start_gateway(*engines, relay={"suspect_seconds": 0.2})
    failed = home(await gateway.ask(prose(100, 40)))
    other = {"r0": "r1", "r1": "r0"}[failed]
    await engines[int(failed[1:])].set_fault("die_after_head:times=1")
    assert home(await gateway.ask(prose(100, 40))) == other

    async def may_be_tried() -> bool:
        shown = (await gateway.replicas())[failed]
        assert shown["state"] == "suspect"
        return bool(shown["accepts"])

    await eventually(may_be_tried)
    for engine in engines:
        await engine.set_fault("hang")
    async with at_once(gateway, prose, 20):
        reported = await gateway.replicas()
        assert (reported[failed]["requests"], reported[other]["requests"]) == (1, 19)
        assert not reported[failed]["accepts"]
    for engine in engines:
        await engine.set_fault("")
    assert (await gateway.replicas())[failed]["failures_in_a_row"] == 1

    async def back() -> bool:
        await gateway.ask(prose(100, 40))
        return (await gateway.replicas())[failed]["state"] == "ready"

    await eventually(back)


async def test_one_that_comes_up_beside_others_begins_with_one_request(start_engine, start_gateway, prose):
    engines = [await start_engine(), await start_engine()]
    relay = {"health_interval_seconds": 0.05, "unhealthy_after": 1, "slow_start_seconds": 3600}
    gateway = await start_gateway(*engines, relay=relay)
    assert {each["state"] for each in (await gateway.replicas()).values()} == {"ready"}  # those there from the start
    await engines[0].kill()

    async def state_is(state: str) -> bool:
        return (await gateway.replicas())["r0"]["state"] == state

    await eventually(lambda: state_is("ejected"))
    again = await start_engine(port=engines[0].port)
    await eventually(lambda: state_is("starting"))
    reported = (await gateway.replicas())["r0"]
    assert (reported["up"], reported["warming"], reported["accepts"]) == (True, False, True)
    for engine in (again, engines[1]):
        await engine.set_fault("hang")
    async with at_once(gateway, prose, 20):
        reported = await gateway.replicas()
        assert (reported["r0"]["requests"], reported["r1"]["requests"]) == (1, 19)
        assert not reported["r0"]["accepts"]
    # Without other replicas it takes what there is.
    await again.set_fault("")
    await engines[1].kill()
    for seed in range(5):
        assert home(await gateway.ask(prose(seed, 40), max_tokens=1)) == "r0"
