"""A pinned tenant's requests never leave its regions, in any state of the replicas there."""

import itertools

import pytest
from running_gateway import each_answers, eventually
from tenancy import ask_as, error, sections, tenant


@pytest.fixture
async def setup(start_engine, start_gateway):
    """Replicas r0 and r1 in eu, r2 in us, r3 in no region; a is pinned to eu, b to us, c to nothing."""
    engines = [await start_engine() for _ in range(4)]
    regions = ["eu", "eu", "us", ""]
    gateway = await start_gateway(
        *engines,
        model={
            "replicas": [
                {"url": engine.url, "id": f"r{number}", "region": region}
                for number, (engine, region) in enumerate(zip(engines, regions, strict=True))
            ]
        },
        **sections(tenant("a", regions=("eu",)), tenant("b", regions=("us",)), tenant("c")),
        relay={"health_interval_seconds": 0.1, "suspect_seconds": 0.1},
    )
    return gateway, engines


async def where(gateway, name, count=12):
    answers = [await ask_as(gateway, name, f"{name} {number}") for number in range(count)]
    return {answer.headers.get("x-gateway-replica") for answer in answers}


def asked(engine) -> int:
    return len(engine.requests)


async def test_each_stays_where_it_belongs(setup):
    gateway, _ = setup
    assert await where(gateway, "a") <= {"r0", "r1"}
    assert await where(gateway, "b") == {"r2"}
    numbers = itertools.count()

    async def anywhere() -> str:
        answer = await ask_as(gateway, "c", messages=[{"role": "user", "content": f"{next(numbers)} " * 300}])
        return answer.headers["x-gateway-replica"]

    await each_answers(anywhere, {"r0", "r1", "r2", "r3"})


async def test_failover_stays_in_the_region_and_then_there_is_none(setup):
    gateway, engines = setup
    await engines[0].kill()
    assert await where(gateway, "a") == {"r1"}
    await engines[1].kill()
    before = [asked(engine) for engine in engines[2:]]
    for _ in range(5):
        answer = await ask_as(gateway, "a")
        assert error(answer) == (503, "no_replica")
        assert "retry-after" in answer.headers

    async def reported() -> bool:
        return "in eu" in (await ask_as(gateway, "a")).json()["error"]["message"]

    await eventually(reported)
    assert [asked(engine) for engine in engines[2:]] == before
    assert await where(gateway, "b") == {"r2"}


async def test_a_client_cannot_ask_its_way_out(setup):
    gateway, engines = setup
    await ask_as(gateway, "b", headers={"x-data-parallel-rank": "0", "x-gateway-replica": "r0", "x-region": "eu"})
    assert [asked(engine) for engine in engines] == [0, 0, 1, 0]


async def test_tokens_are_asked_for_in_the_region_too(start_engine, start_gateway):
    """Where the engine tokenizes, the prompt travels there: it may not go elsewhere for that either."""
    engines = [await start_engine() for _ in range(2)]
    gateway = await start_gateway(
        *engines,
        model={
            "tokenizer": "engine",
            "replicas": [
                {"url": engine.url, "region": region} for engine, region in zip(engines, ("eu", "us"), strict=True)
            ],
        },
        **sections(tenant("a", regions=("us",))),
        relay={"health_interval_seconds": 0.1},
    )
    for number in range(6):
        assert (await ask_as(gateway, "a", str(number))).status_code == 200
    await engines[1].kill()
    for number in range(3):
        assert (await ask_as(gateway, "a", str(number))).status_code == 503
    assert asked(engines[0]) == 0


async def test_regions_are_shown(setup):
    gateway, _ = setup
    assert {name: state["region"] for name, state in (await gateway.replicas()).items()} == {
        "r0": "eu",
        "r1": "eu",
        "r2": "us",
        "r3": "",
    }
    await ask_as(gateway, "a")
    (space,) = (await gateway.admin.get("/admin/api/spaces")).json()["spaces"]
    assert space["region"] == "eu"
