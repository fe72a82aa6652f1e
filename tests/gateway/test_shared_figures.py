"""Several gateways with one Redis: any of them reports the figures of all."""

import pytest
from running_gateway import eventually

from gateway.explain.worker import explain_replication as others

ON = {"enabled": True}


@pytest.fixture
def start_reporting(start_group):
    """Starts gateways that share their state, and write their figures often."""

    async def start(engine, count=3):
        group = await start_group([engine], count, explain=ON)
        for gateway in group:
            gateway.gateway._explain.peer_figures._write_seconds = 0.1
        return group

    return start


async def summary(gateway, **arguments):
    answer = await gateway.admin.get("/admin/api/summary", params=arguments)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def of_all(gateway, requests, gateways):
    found = {}

    async def there():
        found.update(await summary(gateway, gateways="all"))
        return (found["requests"], found["gateways"]["counted"]) == (requests, gateways)

    await eventually(there)
    return found


async def test_any_gateway_reports_the_figures_of_all(engine, start_reporting, redis_server):
    group = await start_reporting(engine)
    for number, gateway in enumerate(group):
        for _ in range(number + 1):
            await gateway.ask("Hello.", max_tokens=1, headers={"x-client": f"client-{number}"})
    for number, gateway in enumerate(group):
        whole = await of_all(gateway, 6, 3)
        assert whole["gateways"]["missing"] is False
        assert {each["source"]: each["requests"] for each in whole["by_source"]} == {
            f"client-{which}": which + 1 for which in range(3)
        }
        assert whole["hits"] + sum(each["tokens"] for each in whole["reasons"]) == whole["prompt_tokens"]
        own = await summary(gateway)
        assert own["requests"] == number + 1
        assert "gateways" not in own
    assert (await summary(group[0], gateways="all", source="client-1"))["requests"] == 2
    with redis_server.client() as client:
        (key,) = client.keys("pgw:figures:*")
        assert 0 < client.pttl(key) <= others.WRITTEN_SECONDS * 1000
        assert not any(b"client-1" in value for value in client.hgetall(key).values())


async def test_a_gateway_that_ends_drops_out(engine, start_reporting):
    first, second = await start_reporting(engine, count=2)
    await first.ask("Hello.", max_tokens=1)
    await second.ask("Hello.", max_tokens=1)
    await of_all(first, 2, 2)
    await second.stop()
    assert (await of_all(first, 1, 1))["gateways"]["missing"] is False


async def test_without_redis_its_own_figures_are_reported(engine, start_reporting, redis_server):
    first, second = await start_reporting(engine, count=2)
    await first.ask("Hello.", max_tokens=1)
    await second.ask("Hello.", max_tokens=1)
    await of_all(first, 2, 2)
    redis_server.kill()
    whole = await summary(first, gateways="all")
    assert (whole["requests"], whole["gateways"]) == (1, {"counted": 1, "missing": True})
    assert (await summary(first))["requests"] == 1
    redis_server.start()
    await of_all(first, 2, 2)


async def test_a_gateway_without_state_sees_no_other(engine, start_gateway):
    gateway = await start_gateway(engine, explain=ON)
    await gateway.ask("Hello.", max_tokens=1)
    assert (await of_all(gateway, 1, 1))["gateways"] == {"counted": 1, "missing": False}


async def test_other_values_are_refused(engine, start_reporting):
    (gateway,) = await start_reporting(engine, count=1)
    answer = await gateway.admin.get("/admin/api/summary?gateways=2")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "gateways")
    assert (await gateway.admin.get("/admin/api/reasons?gateways=all")).status_code == 400
