"""Prefixes that are sent again by themselves, over real sockets: what the engines get, and what it costs and saves."""

import asyncio
import json

import pytest
import yaml
from running_gateway import CHAT, eventually
from tenancy import SYSTEM, ask_as, cached, sections, tenant

PREFIX = {"model": "demo", "tenant": "a", "messages": [{"role": "system", "content": SYSTEM}]}
OPEN = {name: value for name, value in PREFIX.items() if name != "tenant"}
RESET = "/admin/api/spaces/reset"
FAST = {"health_interval_seconds": 0.05}


@pytest.fixture
def warm(tmp_path):
    """The section of the configuration, with one declared prefix."""

    def section(prefix=PREFIX, **again):
        file = tmp_path / "prefixes.yaml"
        file.write_text(yaml.safe_dump([prefix]))
        named = {"file": file} if prefix else {}
        return {"warm": named | {"requests_per_second": 1000.0, "again": {"tokens_per_hour": 100_000} | again}}

    return section


async def overview(gateway):
    return (await gateway.admin.get("/admin/api/warm")).json()


def sent(engine):
    """The prompts of all generation requests: messages or token ids."""
    bodies = [json.loads(each.body) for each in engine.requests if each.path.endswith("/completions")]
    return [body.get("messages") or body["prompt"] for body in bodies]


async def totals(gateway):
    return {each["cause"]: each for each in (await overview(gateway))["totals"]}


async def done(gateway, cause):
    return any(job["cause"] == cause and job["done"] for job in (await overview(gateway))["jobs"])


async def test_after_a_reset_the_first_client_finds_its_prefix_and_the_gain_is_counted(engine, start_gateway, warm):
    gateway = await start_gateway(engine, **sections(tenant("a"), tenant("b")), **warm())
    await eventually(lambda: done(gateway, "joined"))
    assert (await gateway.admin.post(RESET, json={"tenant": "a"})).status_code == 200
    await eventually(lambda: done(gateway, "reset"))
    saved = cached(await ask_as(gateway, "a"))
    assert saved > 100
    assert cached(await ask_as(gateway, "a", "Another question")) >= saved
    found = (await totals(gateway))["reset"]
    assert (found["requests"], found["saved_tokens"]) == (1, saved)
    assert 0 < found["prefill_tokens"] - saved < 32
    assert found["gpu_seconds"] > 0
    metrics = await gateway.metrics()
    labels = {"model": "demo", "cause": "reset"}
    assert metrics.value("gateway_warm_prefill_tokens_total", **labels) == found["prefill_tokens"]
    assert metrics.value("gateway_warm_saved_tokens_total", **labels) == saved
    assert metrics.value("gateway_requests_total") == 2  # of clients
    again = (await overview(gateway))["again"]
    assert (again["tokens_used"], again["requests_used"]) == (found["prefill_tokens"], 1)


async def test_without_a_budget_a_reset_leaves_it_cold(engine, start_gateway, warm):
    gateway = await start_gateway(engine, **sections(tenant("a")), **warm(tokens_per_hour=0))
    await eventually(lambda: done(gateway, "joined"))
    assert (await gateway.admin.post(RESET, json={"tenant": "a"})).status_code == 200
    await asyncio.sleep(0.7)
    assert cached(await ask_as(gateway, "a")) == 0


async def test_a_space_that_all_share_is_kept_from_expiring(engine, start_gateway, warm):
    gateway = await start_gateway(engine, spaces={"idle_ttl_seconds": 6}, **warm(OPEN, when=("idle",)))
    await eventually(lambda: done(gateway, "joined"))
    (before,) = (await gateway.admin.get("/admin/api/spaces")).json()["spaces"]
    await eventually(lambda: done(gateway, "idle"))
    (after,) = (await gateway.admin.get("/admin/api/spaces")).json()["spaces"]
    assert after["id"] == before["id"]
    assert after["expires_at"] > before["expires_at"]


async def test_after_an_expiry_for_all_who_share_the_next_client_is_warm(engine, start_gateway, warm):
    gateway = await start_gateway(engine, spaces={"max_age_seconds": 6}, **warm(OPEN, when=("expiry",)))
    await eventually(lambda: done(gateway, "expiry"))
    messages = [*PREFIX["messages"], {"role": "user", "content": "Hello."}]
    answer = await gateway.http.post(CHAT, json={"model": "demo", "messages": messages, "max_tokens": 1})
    assert cached(answer) > 100
    (ended,) = (await gateway.admin.get("/admin/api/spaces?state=ended")).json()["spaces"]
    assert ended["cause"] == "max_age"


async def test_a_budget_that_is_used_up_sends_no_more(engine, start_gateway, warm):
    gateway = await start_gateway(engine, **sections(tenant("a")), **warm(requests_per_hour=1))
    await eventually(lambda: done(gateway, "joined"))
    assert (await gateway.admin.post(RESET, json={"tenant": "a"})).status_code == 200
    await eventually(lambda: done(gateway, "reset"))
    before = len(sent(engine))
    assert (await gateway.admin.post(RESET, json={"tenant": "a"})).status_code == 200

    async def waits() -> bool:
        return (await overview(gateway))["again"]["waiting"] == 1

    await eventually(waits)
    await asyncio.sleep(1.2)
    assert len(sent(engine)) == before
    assert cached(await ask_as(gateway, "a")) == 0


async def test_a_busy_replica_is_not_disturbed(start_engine, start_gateway, warm):
    engine = await start_engine(decode_ms=20)
    gateway = await start_gateway(engine, **sections(tenant("a"), tenant("b")), **warm())
    await eventually(lambda: done(gateway, "joined"))
    running = asyncio.create_task(ask_as(gateway, "b", max_tokens=2000, ignore_eos=True))

    async def computes() -> bool:
        return (await gateway.replicas())["r0"]["requests"] == 1

    await eventually(computes)
    before = len(sent(engine))
    assert (await gateway.admin.post(RESET, json={"tenant": "a"})).status_code == 200
    await asyncio.sleep(1.2)
    assert len(sent(engine)) == before
    assert (await overview(gateway))["again"]["waiting"] == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await eventually(lambda: done(gateway, "reset"))


async def test_a_dead_replica_fails_alone_and_the_others_are_warmed(start_engine, start_gateway, warm):
    engines = [await start_engine() for _ in range(2)]
    gateway = await start_gateway(*engines, **sections(tenant("a")), **warm(), relay={"health_interval_seconds": 60.0})

    async def both() -> bool:
        return sum(job["done"] for job in (await overview(gateway))["jobs"]) == 2

    await eventually(both)
    await engines[0].kill()  # no check has noticed it yet
    assert (await gateway.admin.post(RESET, json={"tenant": "a"})).status_code == 200

    async def over() -> bool:
        return any(job["cause"] == "reset" and job["state"] != "running" for job in (await overview(gateway))["jobs"])

    await eventually(over)
    job = next(job for job in (await overview(gateway))["jobs"] if job["cause"] == "reset")
    assert (job["done"], job["failed"], job["failures"][0]["replica"]) == (1, 1, "r0")
    answer = await ask_as(gateway, "a")
    assert (answer.headers["x-gateway-replica"], cached(answer) > 100) == ("r1", True)


async def test_a_restarted_engine_gets_the_hottest_prefix_of_the_traffic(start_engine, start_gateway, warm):
    engine = await start_engine()
    gateway = await start_gateway(engine, **sections(tenant("a")), **warm(None, hottest=4), relay=FAST)

    async def hot() -> bool:
        await ask_as(gateway, "a", f"Question {asyncio.get_running_loop().time()}")
        return (await overview(gateway))["again"]["hottest"] > 0

    await eventually(hot)
    await engine.kill()
    again = await start_engine(port=engine.port)
    await eventually(lambda: done(gateway, "restart"))
    (ids,) = sent(again)
    assert all(isinstance(each, int) for each in ids)
    answer = await ask_as(gateway, "a", "A new one")
    assert cached(answer) > 100
    assert cached(answer) >= len(ids) - 16
