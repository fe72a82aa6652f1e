"""Taking a replica out of use while it serves: by an order, by the configuration, and back."""

import asyncio
import json
import signal

import httpx
import pytest
import yaml
from running_gateway import CHAT, eventually, held_answers
from tenancy import SYSTEM, ask_as, error, sections, tenant

DRAIN = "/admin/api/replicas/drain"


def replica(answer):
    assert answer.status_code == 200, answer.text
    return answer.headers["x-gateway-replica"]


async def drain(gateway, name, *, on=True):
    answer = await gateway.admin.post(DRAIN, json={"replica": name, "drain": on})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
async def setup(start_engine, start_gateway, prose):
    """Two engines, and the replica that is warm for a text."""
    engines = [await start_engine(decode_ms=2.0) for _ in range(2)]
    gateway = await start_gateway(*engines)
    home = replica(await gateway.ask(prose(1, 80), max_tokens=1))
    return gateway, engines, home, {"r0": "r1", "r1": "r0"}[home]


async def test_it_gets_no_new_requests_and_its_stream_ends_whole(start_engine, start_gateway, prose):
    # A stream of four seconds: it is open until all other requests are answered, on a busy machine as well.
    engines = [await start_engine(decode_ms=20.0) for _ in range(2)]
    gateway = await start_gateway(*engines)
    home = replica(await gateway.ask(prose(1, 80), max_tokens=1))
    other = {"r0": "r1", "r1": "r0"}[home]
    body = {"model": "demo", "messages": [{"role": "user", "content": prose(1, 80)}], "stream": True}
    body |= {"max_tokens": 200, "ignore_eos": True, "stream_options": {"include_usage": True}}
    async with gateway.http.stream("POST", CHAT, json=body) as answer:
        assert answer.headers["x-gateway-replica"] == home
        lines = answer.aiter_lines()
        await anext(lines)
        reported = await drain(gateway, home)
        assert reported == {
            "replica": home,
            "draining": True,
            "because": ["operator"],
            "requests": 1,
            "everywhere": False,
        }
        before = len(engines[int(home[1:])].requests)
        for number in range(6):
            assert replica(await gateway.ask(prose(1, 80), max_tokens=1)) == other, number
        shown = (await gateway.replicas())[home]
        assert (shown["state"], shown["accepts"], shown["up"], shown["requests"]) == ("draining", False, True, 1)
        assert shown["draining_because"] == ["operator"]
        rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2][6:])["usage"]["completion_tokens"] == 200
    assert len(engines[int(home[1:])].requests) == before
    assert (await gateway.replicas())[home]["requests"] == 0
    metrics = await gateway.metrics()
    assert metrics.value("gateway_replica_up", replica=home) == 1
    assert metrics.value("gateway_replica_state", replica=home, state="draining") == 1
    assert metrics.value("gateway_replica_state", replica=home) == 1
    assert metrics.value("gateway_failovers_total") == 0


async def test_back_in_use_it_still_has_its_blocks(setup, prose):
    gateway, _, home, other = setup
    await drain(gateway, home)
    assert replica(await gateway.ask(prose(2, 80), max_tokens=1)) == other
    reported = await drain(gateway, home, on=False)
    assert reported == {"replica": home, "draining": False, "because": [], "requests": 0, "everywhere": False}
    again = await gateway.ask(prose(1, 80), max_tokens=1)
    assert replica(again) == home
    assert again.headers["x-gateway-decision"] == "warm"
    assert (await gateway.replicas())[home]["state"] == "ready"


async def test_with_all_of_them_draining_there_is_none(setup, prose):
    gateway, _, _, _ = setup
    for name in ("r0", "r1"):
        await drain(gateway, name)
    answer = await gateway.ask(prose(1, 80))
    assert error(answer) == (503, "no_replica")
    assert "retry-after" in answer.headers
    assert (await gateway.http.get("/readyz")).status_code == 503
    await drain(gateway, "r1", on=False)
    assert replica(await gateway.ask(prose(1, 80))) == "r1"
    assert (await gateway.http.get("/readyz")).status_code == 200


async def test_a_request_is_not_tried_again_on_one_that_drains(setup, prose):
    gateway, engines, home, other = setup
    await drain(gateway, other)
    before = len(engines[int(other[1:])].requests)
    await engines[int(home[1:])].set_fault("die_before_first_byte")
    answer = await gateway.ask(prose(1, 80))
    assert answer.status_code == 502
    assert len(engines[int(other[1:])].requests) == before


async def test_an_unknown_replica_is_reported(setup):
    gateway, *_ = setup
    answer = await gateway.admin.post(DRAIN, json={"replica": "r7", "drain": True})
    assert error(answer) == (404, "unknown_replica")
    assert "r0, r1" in answer.json()["error"]["message"]
    assert {each["state"] for each in (await gateway.replicas()).values()} == {"ready"}


async def test_tokens_are_not_asked_of_one_that_drains(start_engine, start_gateway):
    engines = [await start_engine() for _ in range(2)]
    gateway = await start_gateway(*engines, model={"tokenizer": "engine"})
    await drain(gateway, "r0")
    engines[0].requests.clear()
    for number in range(6):
        assert replica(await gateway.ask(f"Question {number}")) == "r1"
    assert not engines[0].requests


async def test_one_that_drains_is_not_warmed(start_engine, start_gateway):
    engines = [await start_engine() for _ in range(2)]
    gateway = await start_gateway(*engines, **sections(tenant("a")))
    prefix = {"model": "demo", "tenant": "a", "messages": [{"role": "system", "content": SYSTEM}]}
    await drain(gateway, "r0")
    order = {"prefixes": [prefix], "requests_per_second": 1000}
    answer = await gateway.admin.post("/admin/api/warm", json=order | {"replicas": ["r0"]})
    assert error(answer) == (400, "replica_draining")
    job = (await gateway.admin.post("/admin/api/warm", json=order)).json()
    assert (job["total"], job["down"]) == (1, ["r0"])

    async def done() -> bool:
        return (await gateway.admin.get(f"/admin/api/warm/{job['id']}")).json()["state"] == "done"

    await eventually(done)
    assert [len(engine.requests) for engine in engines] == [0, 1]


async def test_filling_it_ends_when_it_drains_and_begins_anew_when_it_is_back(start_engine, start_gateway, tmp_path):
    file = tmp_path / "prefixes.yaml"
    prefix = {"model": "demo", "tenant": "a", "messages": [{"role": "system", "content": SYSTEM}]}
    file.write_text(yaml.safe_dump([prefix] * 3))
    engines = [await start_engine() for _ in range(2)]
    gateway = await start_gateway(
        *engines, **sections(tenant("a")), warm={"file": file, "requests_per_second": 0.2, "max_seconds": 600.0}
    )

    async def jobs() -> dict[str, list[str]]:
        listed = (await gateway.admin.get("/admin/api/warm")).json()["jobs"]
        return {name: [job["state"] for job in listed if job["joined"] == name] for name in ("r0", "r1")}

    assert await jobs() == {"r0": ["running"], "r1": ["running"]}
    await drain(gateway, "r0")

    async def cancelled() -> bool:
        return await jobs() == {"r0": ["cancelled"], "r1": ["running"]}

    await eventually(cancelled)
    assert not (await gateway.replicas())["r0"]["warming"]
    await drain(gateway, "r0", on=False)
    assert await jobs() == {"r0": ["running", "cancelled"], "r1": ["running"]}


async def test_a_pinned_tenant_has_none_when_its_regions_only_one_drains(start_engine, start_gateway):
    engines = [await start_engine() for _ in range(2)]
    replicas = [
        {"url": engine.url, "id": f"r{number}", "region": region}
        for number, (engine, region) in enumerate(zip(engines, ("eu", "us"), strict=True))
    ]
    gateway = await start_gateway(*engines, model={"replicas": replicas}, **sections(tenant("a", regions=("eu",))))
    await drain(gateway, "r0")
    assert error(await ask_as(gateway, "a")) == (503, "no_replica")
    assert not engines[1].requests


async def test_the_configuration_drains_from_the_start(start_engine, start_gateway, prose):
    engines = [await start_engine() for _ in range(2)]
    replicas = [{"url": engine.url, "id": f"r{number}", "drain": number == 0} for number, engine in enumerate(engines)]
    gateway = await start_gateway(*engines, model={"replicas": replicas})
    for number in range(6):
        assert replica(await gateway.ask(prose(number, 30))) == "r1"
    shown = (await gateway.replicas())["r0"]
    assert (shown["state"], shown["draining_because"], shown["up"]) == ("draining", ["configuration"], True)
    reported = await drain(gateway, "r0", on=False)
    assert (reported["draining"], reported["because"]) == (True, ["configuration"])
    assert replica(await gateway.ask(prose(9, 30))) == "r1"


async def test_with_a_redis_an_order_holds_at_every_gateway_and_at_those_that_come_later(
    start_engine, start_group, prose
):
    engines = [await start_engine() for _ in range(2)]

    async def state_is(gateway, state: str) -> bool:
        return (await gateway.replicas())["r0"]["state"] == state

    first, second = await start_group(engines)
    assert (await drain(first, "r0"))["everywhere"]
    await eventually(lambda: state_is(second, "draining"))
    (late,) = await start_group(engines, 1, peers=2)
    await eventually(lambda: state_is(late, "draining"))
    for number in range(6):
        assert replica(await late.ask(prose(number, 40), max_tokens=1)) == "r1"
    # Any of them can take it back.
    await drain(late, "r0", on=False)
    for gateway in (first, second):
        await eventually(lambda gateway=gateway: state_is(gateway, "ready"))
    assert (await first.replicas())["r0"]["draining_because"] == []


async def test_the_configuration_drains_and_takes_back_while_it_serves(serve, start_engine):
    engines = [await start_engine() for _ in range(2)]

    def models(*drains):
        replicas = [
            {"url": engine.url, "id": f"r{number}", "drain": drained}
            for number, (engine, drained) in enumerate(zip(engines, drains, strict=True))
        ]
        return [{"id": "demo", "tokenizer": "builtin:demo", "replicas": replicas}]

    serving = await serve(models=models(False, False))

    async def change(*drains):
        before = len(serving.events("reloaded"))
        file = serving.config
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"models": models(*drains)}))
        serving.process.send_signal(signal.SIGHUP)
        await eventually(lambda: len(serving.events("reloaded")) > before)

    async with httpx.AsyncClient(base_url=serving.url, timeout=60) as client:

        async def ask() -> str:
            body = {"model": "demo", "messages": [{"role": "user", "content": SYSTEM}], "max_tokens": 1}
            return replica(await client.post(CHAT, json=body))

        home = await ask()
        other = {"r0": "r1", "r1": "r0"}[home]
        body = {"model": "demo", "messages": [{"role": "user", "content": SYSTEM}], "stream": True}
        body |= {"max_tokens": 150, "ignore_eos": True}
        release = held_answers(engines[int(home[1:])])
        async with client.stream("POST", CHAT, json=body) as answer:
            assert answer.headers["x-gateway-replica"] == home
            lines = answer.aiter_lines()
            await anext(lines)
            await change(home == "r0", home == "r1")
            assert await ask() == other
            release.set()
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert not [line for line in rest if '"error"' in line]
        assert await ask() == other
        await change(False, False)
        assert await ask() == home
    assert not serving.events("restart_needed")
    (began,) = serving.events("replica_draining")
    (ended,) = serving.events("replica_drain_ended")
    assert (began["replica"], began["cause"], ended["replica"]) == (home, "configuration", home)


async def test_one_that_drains_may_go_down_and_come_back_and_drains_still(start_engine, start_gateway):
    engines = [await start_engine() for _ in range(2)]
    gateway = await start_gateway(*engines, relay={"health_interval_seconds": 0.05, "unhealthy_after": 1})
    await drain(gateway, "r0")
    await engines[0].kill()

    async def up(wanted: bool) -> bool:
        shown = (await gateway.replicas())["r0"]
        assert shown["state"] == "draining"
        return shown["up"] is wanted

    await eventually(lambda: up(False))
    again = await start_engine(port=engines[0].port)
    await eventually(lambda: up(True))
    await asyncio.sleep(0.1)
    for number in range(4):
        assert replica(await gateway.ask(f"Question {number}")) == "r1"
    assert not again.requests
    await drain(gateway, "r0", on=False)
    assert (await gateway.replicas())["r0"]["state"] == "ready"
