"""A gateway whose replicas are found: in DNS, in Kubernetes, in a file."""

import asyncio
import json

import httpx
import pytest
import yaml
from discovery_fakes import FakeKubernetes, FakeNames, endpoint
from running_gateway import CHAT, Metrics, eventually, settings_for
from tenancy import SECRET, key, tenant

from gateway.discovery import discovery as follower
from gateway.server.reload import merged

SRV = "_http._tcp.vllm.test."


@pytest.fixture(autouse=True)
def ask_again_soon(monkeypatch):
    monkeypatch.setattr(follower, "_RETRY_SECONDS", (0.1,))
    monkeypatch.setattr("gateway.discovery.file_source._LOOK_SECONDS", 0.05)


@pytest.fixture
async def names(closing):
    server = await FakeNames().start()
    closing.callback(server.stop)
    return server


@pytest.fixture
async def api(closing):
    api = await FakeKubernetes().start()
    closing.push_async_callback(api.stop)
    return api


def found_in(discover, **sections):
    """Settings of a model with nothing but what is found."""
    return sections | {"model": {"replicas": [], "discover": discover}}


def kubernetes(api, **settings):
    return {"kubernetes": {"service": "vllm", "namespace": "ml", "api_url": api.url} | settings}


async def there(gateway, *names):
    """Wait until exactly these replicas are there and up."""

    async def holds():
        found = await gateway.replicas()
        return set(found) == set(names) and all(replica["up"] for replica in found.values())

    await eventually(holds)


async def errors(gateway, source):
    return (await gateway.metrics()).value("gateway_discovery_errors_total", model="demo", source=source)


def reported(engine):
    return [json.loads(request.body) for request in engine.requests if request.path == CHAT]


async def test_in_dns(names, start_engine, start_gateway):
    # Every engine has an address of its own, as pods have, and the same port.
    first = await start_engine(host="127.0.0.1")
    engines = {"127.0.0.1": first}
    for address in ("127.0.0.2", "127.0.0.3"):
        engines[address] = await start_engine(host=address, port=first.port)
    names.records = {("vllm.test.", "A"): ["127.0.0.1", "127.0.0.2"]}
    dns = {"name": "vllm.test.", "port": first.port, "interval_seconds": 0.1, "server": names.server}
    gateway = await start_gateway(**found_in({"dns": dns}))
    ids = [f"{address}:{first.port}" for address in engines]
    await there(gateway, *ids[:2])
    assert (await gateway.ask()).headers["x-gateway-replica"] in ids[:2]
    names.records = {("vllm.test.", "A"): ["127.0.0.2", "127.0.0.3"]}
    await there(gateway, *ids[1:])
    for number in range(10):
        assert (await gateway.ask(f"Question {number}.")).headers["x-gateway-replica"] in ids[1:]
    assert len(reported(engines["127.0.0.1"])) <= 1
    assert await errors(gateway, "dns") == 0


@pytest.mark.slow
async def test_under_load_no_request_notices_who_comes_and_goes(names, start_engine, start_gateway, closing):
    engines = [await start_engine(decode_ms=1.0, record_requests=5000) for _ in range(4)]

    def say(*numbers):
        names.records = {(SRV, "SRV"): [f"0 0 {engines[number].port} localhost." for number in numbers]}

    say(0, 1)
    gateway = await start_gateway(
        **found_in({"dns": {"srv": SRV, "interval_seconds": 0.1, "server": names.server}, "empty_after_seconds": 60})
    )
    answers = []
    stop = asyncio.Event()

    async def ask(number):
        while not stop.is_set():
            answers.append(
                await gateway.ask(f"Question {number} {len(answers)}.", max_tokens=8, stream=number % 2 == 0)
            )
            await asyncio.sleep(0.005)

    tasks = [asyncio.create_task(ask(number)) for number in range(4)]
    for now in ((0, 1, 2), (1, 2), (), (2, 3), (3, 0)):
        say(*now)
        if now:
            await there(gateway, *(f"localhost:{engines[number].port}" for number in now))
        wanted = len(answers) + 40
        await eventually(lambda wanted=wanted: len(answers) >= wanted)
    stop.set()
    await asyncio.gather(*tasks)
    assert [(answer.status_code, answer.text[:200]) for answer in answers if answer.status_code != 200] == []
    assert all("data: [DONE]" in answer.text or "choices" in answer.text for answer in answers)
    assert all(reported(engine) for engine in engines)
    await gateway.settled(len(answers))


async def test_those_that_stay_keep_their_cache(names, start_engine, start_gateway, prose):
    engines = [await start_engine() for _ in range(3)]

    def say(*numbers):
        names.records = {(SRV, "SRV"): [f"0 0 {engines[number].port} localhost." for number in numbers]}

    say(0, 1)
    gateway = await start_gateway(**found_in({"dns": {"srv": SRV, "interval_seconds": 0.1, "server": names.server}}))
    ids = [f"localhost:{engine.port}" for engine in engines]
    await there(gateway, *ids[:2])
    text = prose(3, 300)
    name = (await gateway.ask(text)).headers["x-gateway-replica"]
    await gateway.settled(1)
    stays, leaves = (0, 1) if name == ids[0] else (1, 0)
    say(stays, leaves, 2)
    await there(gateway, *ids)
    say(stays, 2)
    await there(gateway, ids[stays], ids[2])
    answer = await gateway.ask(text)
    assert answer.headers["x-gateway-replica"] == name
    assert int(answer.headers["x-gateway-prefix-tokens"]) > 300


async def test_a_source_that_fails_takes_nothing_away(names, start_engine, start_gateway):
    engine = await start_engine()
    names.records = {(SRV, "SRV"): [f"0 0 {engine.port} localhost."]}
    gateway = await start_gateway(
        **found_in({"dns": {"srv": SRV, "interval_seconds": 0.1, "server": names.server}, "empty_after_seconds": 1.5})
    )
    name = f"localhost:{engine.port}"
    await there(gateway, name)
    names.failing = {"SRV"}

    async def failed_often():
        return await errors(gateway, "dns") >= 20

    await eventually(failed_often)  # for longer than an answer with nothing would have to last
    await there(gateway, name)
    assert (await gateway.ask()).status_code == 200
    names.failing, names.records = set(), {}
    asked = len(names.questions)
    await eventually(lambda: len(names.questions) > asked)
    await there(gateway, name)  # an answer with nothing is not believed at once

    async def gone():
        return not await gateway.replicas()

    await eventually(gone)
    answer = await gateway.ask()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replica")
    names.records = {(SRV, "SRV"): [f"0 0 {engine.port} localhost."]}
    await there(gateway, name)
    assert (await gateway.ask()).status_code == 200


async def test_beside_those_of_the_configuration(names, start_engine, start_gateway):
    a, b = await start_engine(), await start_engine()
    names.records = {(SRV, "SRV"): [f"0 0 {engine.port} localhost." for engine in (a, b)]}
    replicas = [{"url": f"http://localhost:{a.port}", "id": "mine"}]
    discover = {"dns": {"srv": SRV, "interval_seconds": 0.1, "server": names.server}}
    gateway = await start_gateway(model={"replicas": replicas, "discover": discover})
    await there(gateway, "mine", f"localhost:{b.port}")  # who is named by both is one
    names.records = {}
    await there(gateway, "mine", f"localhost:{b.port}")
    names.records = {(SRV, "SRV"): ["0 0 9 localhost."]}

    async def changed():
        return set(await gateway.replicas()) == {"mine", "localhost:9"}

    await eventually(changed)


async def test_in_kubernetes(api, start_engine, start_gateway, prose):
    engines = [await start_engine() for _ in range(3)]
    api.put("s-0", endpoint("127.0.0.1", "vllm-0", zone="eu-1"), ports=(("http", engines[0].port),))
    api.put("s-1", endpoint("127.0.0.1", "vllm-1", zone="us-1"), ports=(("http", engines[1].port),))
    api.put("s-2", endpoint("127.0.0.1", "vllm-2", ready=False), ports=(("http", engines[2].port),))
    discover = kubernetes(api, port="http") | {"template": {"region": "zone"}}
    gateway = await start_gateway(
        **found_in(discover, tenants=[tenant("a", regions=("us-1",))], spaces={"secret": SECRET})
    )
    await there(gateway, "vllm-0.ml", "vllm-1.ml")  # who is not ready is not there yet
    assert {name: each["region"] for name, each in (await gateway.replicas()).items()} == {
        "vllm-0.ml": "eu-1",
        "vllm-1.ml": "us-1",
    }
    headers = {"authorization": f"Bearer {key('a')}"}
    answer = await gateway.ask(text := prose(4, 200), headers=headers)
    assert answer.headers["x-gateway-replica"] == "vllm-1.ml"
    await gateway.settled(1)
    api.put("s-2", endpoint("127.0.0.1", "vllm-2", zone="us-1"), ports=(("http", engines[2].port),))
    await there(gateway, "vllm-0.ml", "vllm-1.ml", "vllm-2.ml")

    async def state(name):
        return (await gateway.replicas()).get(name, {}).get("state")

    # Not ready: nothing is sent there, and nothing is forgotten.
    api.put("s-1", endpoint("127.0.0.1", "vllm-1", ready=False, zone="us-1"), ports=(("http", engines[1].port),))

    async def drains():
        return await state("vllm-1.ml") == "draining"

    await eventually(drains)
    before = len(reported(engines[1]))
    for number in range(4):
        answer = await gateway.ask(f"Question {number}.", headers=headers)
        assert answer.headers["x-gateway-replica"] == "vllm-2.ml"
    assert len(reported(engines[1])) == before
    api.put("s-1", endpoint("127.0.0.1", "vllm-1", zone="us-1"), ports=(("http", engines[1].port),))

    async def ready():
        return await state("vllm-1.ml") == "ready"

    await eventually(ready)
    answer = await gateway.ask(text, headers=headers)
    assert answer.headers["x-gateway-replica"] == "vllm-1.ml"
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 150


async def test_a_pod_that_ends_keeps_its_streams(api, start_engine, start_gateway):
    engines = [await start_engine(decode_ms=5.0), await start_engine()]
    api.put("s-0", endpoint("127.0.0.1", "vllm-0"), ports=(("http", engines[0].port),))
    gateway = await start_gateway(**found_in(kubernetes(api)))
    await there(gateway, "vllm-0.ml")
    body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 200}
    async with gateway.http.stream("POST", CHAT, json=body | {"stream": True, "ignore_eos": True}) as answer:
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith("data: ")
        api.put("s-1", endpoint("127.0.0.1", "vllm-1"), ports=(("http", engines[1].port),))
        api.put(
            "s-0",
            endpoint("127.0.0.1", "vllm-0", ready=False, serving=True, terminating=True),
            ports=(("http", engines[0].port),),
        )

        async def drains():
            found = await gateway.replicas()
            return found["vllm-0.ml"]["state"] == "draining" and bool(found.get("vllm-1.ml", {}).get("up"))

        await eventually(drains)
        api.delete("s-0")
        assert (await gateway.ask()).headers["x-gateway-replica"] == "vllm-1.ml"
        rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert len(rest) > 190
    await there(gateway, "vllm-1.ml")


async def test_a_pod_that_comes_back_elsewhere_is_the_same_replica(api, start_engine, start_gateway):
    a, b, c = [await start_engine() for _ in range(3)]
    api.put("s-0", endpoint("127.0.0.1", "vllm-0"), ports=(("http", a.port),))
    api.put("s-1", endpoint("127.0.0.1", "vllm-1"), ports=(("http", b.port),))
    gateway = await start_gateway(**found_in(kubernetes(api)))
    await there(gateway, "vllm-0.ml", "vllm-1.ml")
    api.put("s-0", endpoint("127.0.0.1", "vllm-0"), ports=(("http", c.port),))

    async def moved():
        return (await gateway.replicas())["vllm-0.ml"]["url"] == f"http://127.0.0.1:{c.port}"

    await eventually(moved)
    await there(gateway, "vllm-0.ml", "vllm-1.ml")
    for number in range(12):
        assert (await gateway.ask(f"Question {number}.")).status_code == 200
    assert reported(c)
    assert not [request for request in reported(a) if "Question" in str(request)]


async def test_an_api_that_comes_late_is_waited_for(api, start_engine, start_gateway):
    engine = await start_engine()
    api.status = 503
    gateway = await start_gateway(**found_in(kubernetes(api)))
    assert (await gateway.http.get("/readyz")).status_code == 503
    assert await errors(gateway, "kubernetes") >= 1
    api.put("s", endpoint("127.0.0.1", "vllm-0"), ports=(("http", engine.port),))
    api.status = 200
    await there(gateway, "vllm-0.ml")
    assert (await gateway.http.get("/readyz")).status_code == 200
    assert (await gateway.ask()).status_code == 200


async def test_in_a_file(start_engine, start_gateway, tmp_path):
    a, b = [await start_engine() for _ in range(2)]
    file = tmp_path / "replicas.yaml"
    file.write_text(yaml.safe_dump([a.url]))
    gateway = await start_gateway(**found_in({"file": {"path": str(file)}}))
    ids = [f"127.0.0.1:{engine.port}" for engine in (a, b)]
    await there(gateway, ids[0])
    file.write_text(yaml.safe_dump([a.url, {"url": b.url, "region": "eu", "drain": True}]))
    await there(gateway, *ids)
    shown = (await gateway.replicas())[ids[1]]
    assert (shown["region"], shown["state"]) == ("eu", "draining")
    file.write_text(yaml.safe_dump([b.url]))
    await there(gateway, ids[1])
    assert (await gateway.ask()).headers["x-gateway-replica"] == ids[1]
    file.write_text("- http://")

    async def reported_of():
        return await errors(gateway, "file") == 1

    await eventually(reported_of)
    assert (await gateway.ask()).headers["x-gateway-replica"] == ids[1]


async def test_where_they_are_found_can_be_changed_while_serving(names, api, start_engine, start_gateway):
    a, b, c = [await start_engine() for _ in range(3)]
    names.records = {(SRV, "SRV"): [f"0 0 {a.port} localhost."]}
    api.put("s", endpoint("127.0.0.1", "vllm-0"), ports=(("http", b.port),))
    dns = {"dns": {"srv": SRV, "interval_seconds": 0.1, "server": names.server}}
    gateway = await start_gateway(**found_in(dns))
    await there(gateway, f"localhost:{a.port}")

    async def change(**model):
        settings, waiting = merged(gateway.gateway._settings, settings_for([], model=model))
        assert waiting == []
        await gateway.gateway.reload(settings)

    await change(replicas=[], discover=kubernetes(api))
    await there(gateway, "vllm-0.ml")
    questions = len(names.questions)
    await change(replicas=[{"url": c.url, "id": "c"}])
    await there(gateway, "c")
    await eventually(lambda: api.watches == 0)
    assert len(names.questions) == questions
    await change(replicas=[{"url": c.url, "id": "c"}], discover=dns)
    await there(gateway, "c", f"localhost:{a.port}")


async def test_prefixes_of_the_file_wait_for_who_is_found(names, start_engine, start_gateway, tmp_path, prose):
    engine = await start_engine()
    file = tmp_path / "prefixes.yaml"
    prefix = {"model": "demo", "messages": [{"role": "system", "content": prose(5, 100)}]}
    name = f"localhost:{engine.port}"
    file.write_text(yaml.safe_dump([prefix, prefix | {"replicas": [name]}, prefix | {"replicas": ["not-there-yet"]}]))
    dns = {"dns": {"srv": SRV, "interval_seconds": 0.1, "server": names.server}}
    gateway = await start_gateway(**found_in(dns, warm={"file": str(file), "requests_per_second": 1000}))
    names.records = {(SRV, "SRV"): [f"0 0 {engine.port} localhost."]}
    await there(gateway, name)
    await eventually(lambda: len(reported(engine)) == 2)


async def test_the_command_reports_what_is_wrong_with_a_source(serve, start_engine, tmp_path):
    file = tmp_path / "replicas.yaml"
    models = [{"id": "demo", "tokenizer": "builtin:demo", "discover": {"file": {"path": str(file)}}}]
    serving = await serve(models=models)
    (event,) = serving.events("discovery_failed")
    assert (event["model"], event["source"]) == ("demo", "file")
    assert "No such file" in event["problem"]
    engine = await start_engine()
    file.write_text(yaml.safe_dump([engine.url]))
    await eventually(lambda: bool(serving.events("replica_up")))
    assert serving.events("discovery_recovered")
    async with httpx.AsyncClient(base_url=serving.admin_url) as client:
        page = Metrics((await client.get("/metrics")).text)
    assert page.value("gateway_discovery_errors_total", source="file") == 1
