"""Declared prefixes in the engines' caches, over real sockets."""

import asyncio
import json

import pytest
import yaml
from running_gateway import eventually, held_answers
from tenancy import SYSTEM, ask_as, cached, error, sections, tenant

WARM = "/admin/api/warm"
PREFIX = {"model": "demo", "tenant": "a", "messages": [{"role": "system", "content": SYSTEM}]}


async def warmed(gateway, *prefixes, **more):
    """Order it, and wait until it is done."""
    answer = await gateway.admin.post(WARM, json={"prefixes": list(prefixes), "requests_per_second": 1000} | more)
    assert answer.status_code == 202, answer.text
    job = answer.json()

    async def over() -> bool:
        nonlocal job
        job = (await gateway.admin.get(f"{WARM}/{job['id']}")).json()
        return job["state"] != "running"

    await eventually(over)
    return job


async def test_the_first_client_finds_every_replica_warm(start_engine, start_gateway):
    engines = [await start_engine() for _ in range(3)]
    gateway = await start_gateway(*engines, **sections(tenant("a"), tenant("b")))
    job = await warmed(gateway, PREFIX)
    assert (job["state"], job["total"], job["done"], job["failed"]) == ("done", 3, 3, 0)
    assert [len(engine.requests) for engine in engines] == [1, 1, 1]
    sent = json.loads(engines[0].requests[0].body)
    assert sent["max_tokens"] == 1
    assert not {"tenant", "scope", "replicas"} & sent.keys()
    first = await ask_as(gateway, "a")
    assert cached(first) > 100
    assert first.headers["x-gateway-decision"] == "warm"
    assert cached(await ask_as(gateway, "b")) == 0


async def test_only_the_chosen_replica(start_engine, start_gateway):
    engines = [await start_engine() for _ in range(2)]
    gateway = await start_gateway(*engines, **sections(tenant("a")))
    await warmed(gateway, PREFIX, replicas=["r1"])
    assert [len(engine.requests) for engine in engines] == [0, 1]
    answer = await ask_as(gateway, "a")
    assert (answer.headers["x-gateway-replica"], cached(answer) > 100) == ("r1", True)


async def test_it_is_nobodys_traffic(engine, start_gateway):
    gateway = await start_gateway(engine, **sections(tenant("a", requests_per_second=1, prompt_tokens_per_minute=400)))
    await warmed(gateway, PREFIX, PREFIX, PREFIX)
    assert (await ask_as(gateway, "a")).status_code == 200  # it took nothing from the tenant's limits
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_requests_total") == 1
    assert metrics.value("gateway_warm_requests_total", result="ok") == 3
    (space,) = (await gateway.admin.get("/admin/api/spaces")).json()["spaces"]
    assert space["requests"] == 1


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"model": "nope"}, "prefixes[0].model"),
        ({"tenant": "nope"}, "prefixes[0].tenant"),
        ({"tenant": None}, "prefixes[0].tenant"),
        ({"messages": []}, "prefixes[0].messages"),
        ({"replicas": ["nope"]}, "prefixes[0].replicas"),
    ],
)
async def test_a_wrong_order_sends_nothing(engine, start_gateway, change, param):
    gateway = await start_gateway(engine, **sections(tenant("a")))
    prefix = {name: value for name, value in (PREFIX | change).items() if value is not None}
    answer = await gateway.admin.post(WARM, json={"prefixes": [prefix]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert not engine.requests


async def test_a_pinned_tenants_prefix_stays_in_its_region(start_engine, start_gateway):
    engines = [await start_engine() for _ in range(2)]
    replicas = [
        {"url": engine.url, "id": f"r{number}", "region": region}
        for number, (engine, region) in enumerate(zip(engines, ("eu", "us"), strict=True))
    ]
    gateway = await start_gateway(*engines, model={"replicas": replicas}, **sections(tenant("a", regions=("eu",))))
    job = await warmed(gateway, PREFIX)
    assert job["total"] == 1
    assert [len(engine.requests) for engine in engines] == [1, 0]
    answer = await gateway.admin.post(WARM, json={"prefixes": [PREFIX], "replicas": ["r1"]})
    assert answer.status_code == 400


async def test_a_refusal_of_the_engine_is_reported(scripted, start_gateway):
    gateway = await start_gateway(scripted, **sections(tenant("a")))
    await scripted.stop()
    job = await warmed(gateway, PREFIX)
    assert (job["done"], job["failed"]) == (0, 1) or job["failed"] == 1
    assert job["failures"][0]["message"]


async def test_a_replica_that_joins_is_warm_before_it_takes_traffic(start_engine, start_gateway, tmp_path):
    file = tmp_path / "prefixes.yaml"
    file.write_text(yaml.safe_dump([PREFIX]))
    engines = [await start_engine() for _ in range(2)]
    gateway = await start_gateway(
        *engines,
        **sections(tenant("a")),
        warm={"file": file, "requests_per_second": 1000.0},
        relay={"health_interval_seconds": 0.05},
    )

    async def both_ready() -> bool:
        return {replica["state"] for replica in (await gateway.replicas()).values()} == {"ready"}

    await eventually(both_ready)
    assert [len(engine.requests) for engine in engines] == [1, 1]
    assert cached(await ask_as(gateway, "a")) > 100

    await engines[1].kill()

    async def gone() -> bool:
        return (await gateway.replicas())["r1"]["state"] == "ejected"

    await eventually(gone)
    again = await start_engine(port=engines[1].port)
    release = held_answers(again)

    async def warming() -> bool:
        shown = (await gateway.replicas())["r1"]
        return (shown["state"], shown["warming"]) == ("starting", True)

    await eventually(warming)
    await eventually(lambda: bool(again.requests))
    for _ in range(5):  # while its cache is being filled, no request is sent there
        assert (await ask_as(gateway, "a", "x")).headers["x-gateway-replica"] == "r0"
    release.set()
    await eventually(both_ready)
    assert [json.loads(request.body)["messages"] for request in again.requests] == [PREFIX["messages"]]


async def test_an_updated_model_is_warmed_into_its_new_space_on_every_replica(start_engine, start_gateway, tmp_path):
    file = tmp_path / "prefixes.yaml"
    other = PREFIX | {"messages": [{"role": "system", "content": "Quite another prompt. " * 20}]}
    file.write_text(yaml.safe_dump([PREFIX, other]))
    engines = [await start_engine(root="/models/one") for _ in range(2)]
    gateway = await start_gateway(
        *engines,
        **sections(tenant("a")),
        warm={"file": file, "requests_per_second": 1000.0},
        relay={"health_interval_seconds": 0.05},
    )

    async def warm(times: int) -> bool:
        done = (await gateway.metrics()).value("gateway_warm_requests_total", result="ok")
        states = {replica["state"] for replica in (await gateway.replicas()).values()}
        return done >= times and states == {"ready"}

    await eventually(lambda: warm(4))
    engines[0].replace_model(root="/models/two", restart=True)  # faster than the checks would see it away

    async def updated() -> bool:
        return (await gateway.metrics()).value("gateway_resets_total", cause="model_update") == 1

    await eventually(updated)
    await eventually(lambda: warm(8))
    await asyncio.sleep(0.2)
    for replica in range(2):
        for messages in (PREFIX["messages"], other["messages"]):
            again = await warmed(gateway, PREFIX | {"messages": messages}, replicas=[f"r{replica}"])
            assert again["failed"] == 0
    alive = [
        space
        for space in (await gateway.admin.get("/admin/api/spaces?state=alive")).json()["spaces"]
        if space["tenant"] == "tenant:a"
    ]
    assert len(alive) == 1
    assert cached(await ask_as(gateway, "a")) > 100


async def test_the_only_replica_is_used_although_it_is_being_filled(start_engine, start_gateway, tmp_path):
    file = tmp_path / "prefixes.yaml"
    file.write_text(yaml.safe_dump([PREFIX] * 5))
    engine = await start_engine()
    gateway = await start_gateway(engine, **sections(tenant("a")), warm={"file": file, "requests_per_second": 1.0})
    assert (await ask_as(gateway, "a")).status_code == 200
    await asyncio.sleep(0)
    shown = (await gateway.replicas())["r0"]
    assert (shown["state"], shown["warming"], shown["accepts"]) == ("starting", True, True)


async def test_an_unknown_job_is_reported(gateway):
    assert error(await gateway.admin.get(f"{WARM}/nope")) == (404, "unknown_job")
