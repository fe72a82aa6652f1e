"""Replicas join, change and leave by a reload, while requests go on."""

import asyncio
import contextlib
import json

import httpx
import pytest
import yaml
from running_gateway import CHAT, Metrics, events_received, eventually, held_answers, settings_for
from tenancy import SECRET

from gateway.server.reload import merged

STREAM = {"stream": True, "max_tokens": 200, "ignore_eos": True}


def entry(engine, name, **more):
    return {"url": engine if isinstance(engine, str) else engine.url, "id": name} | more


async def reload(gateway, *replicas, **sections):
    """Have these replicas, as a changed file would; nothing of it may need a restart."""
    model = {"replicas": list(replicas)} | sections.pop("model", {})
    settings, waiting = merged(gateway.gateway._settings, settings_for([], model=model, **sections))
    assert waiting == []
    await gateway.gateway.reload(settings)


async def there(gateway, *names):
    """Wait until exactly these replicas are there and up."""

    async def holds():
        found = await gateway.replicas()
        return set(found) == set(names) and all(replica["up"] for replica in found.values())

    await eventually(holds)


def reported(engine):
    return [json.loads(request.body) for request in engine.requests if request.path == CHAT]


@pytest.fixture
async def ask_on(closing):
    """Asks without pause until the test ends; what is given back collects the answers."""

    async def begin(gateway, workers=6):
        answers = []
        stop = asyncio.Event()

        async def ask(number):
            count = 0
            while not stop.is_set():
                count += 1
                streamed = (number + count) % 2 == 0
                answer = await gateway.ask(f"Question {number} {count}.", max_tokens=8, stream=streamed)
                whole = answer.text.rstrip().endswith("data: [DONE]") if streamed else "choices" in answer.text
                answers.append((answer.status_code, whole and "error" not in answer.text, answer))
                await asyncio.sleep(0.002)

        tasks = [asyncio.create_task(ask(number)) for number in range(workers)]

        async def end():
            stop.set()
            await asyncio.gather(*tasks)

        closing.push_async_callback(end)
        return answers, end

    return begin


def failed(answers):
    return [(status, answer.text[:200]) for status, whole, answer in answers if status != 200 or not whole]


async def test_under_load_no_request_notices(start_engine, start_gateway, ask_on):
    a, b, c = [await start_engine(decode_ms=2.0, record_requests=5000) for _ in range(3)]
    gateway = await start_gateway(a, b)
    answers, end = await ask_on(gateway)

    async def some_more(count=60):
        wanted = len(answers) + count
        await eventually(lambda: len(answers) >= wanted)

    await some_more()
    await reload(gateway, entry(a, "r0"), entry(b, "r1"), entry(c, "r2"))  # one joins
    await there(gateway, "r0", "r1", "r2")
    await some_more()
    await reload(gateway, entry(b, "r1"), entry(c, "r2"))  # one leaves
    asked = len(reported(a))
    await there(gateway, "r1", "r2")
    await some_more()
    await reload(gateway, entry(a, "r3"))  # all are others
    await there(gateway, "r3")
    await some_more()
    await reload(gateway, entry(a, "r3"), entry(b, "r1"))
    await there(gateway, "r1", "r3")
    await some_more()
    await end()
    assert failed(answers) == []
    served = {answer.headers["x-gateway-replica"] for _, _, answer in answers}
    assert served == {"r0", "r1", "r2", "r3"}
    assert min(len(reported(engine)) for engine in (a, b, c)) > 10
    assert len(reported(a)) > asked
    await gateway.settled(len(answers))


async def test_an_operator_adds_and_removes_one_under_load(start_engine, start_gateway, ask_on):
    a, b = [await start_engine(decode_ms=2.0, record_requests=5000) for _ in range(2)]
    gateway = await start_gateway(a)
    answers, end = await ask_on(gateway)
    added = await gateway.admin.post("/admin/api/replicas", json={"model": "demo"} | entry(b, "added"))
    assert added.status_code == 200, added.text
    await eventually(lambda: len(reported(b)) > 10)
    await reload(gateway, entry(a, "r0"))  # what is added stays
    asked = len(reported(b))
    await eventually(lambda: len(reported(b)) > asked + 10)
    assert (await gateway.admin.delete("/admin/api/replicas/added")).status_code == 200
    await there(gateway, "r0")
    asked, count = len(reported(b)), len(answers)
    await eventually(lambda: len(answers) > count + 30)
    await end()
    assert failed(answers) == []
    assert len(reported(b)) == asked
    await gateway.settled(len(answers))


async def test_what_cannot_be_added_or_removed_is_refused(start_engine, start_gateway):
    a, b = await start_engine(), await start_engine()
    gateway = await start_gateway(a)

    async def refused(expected, **order):
        answer = await gateway.admin.post("/admin/api/replicas", json=order)
        assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == expected

    await refused(("model_not_found", "model"), model="none", url=b.url)
    await refused(("replica_exists", "id"), model="demo", url=b.url, id="r0")
    await refused(("replica_exists", "url"), model="demo", url=a.url, id="r7")
    for _ in range(2):  # the same once more changes nothing
        answer = await gateway.admin.post("/admin/api/replicas", json={"model": "demo", "url": b.url, "id": "r7"})
        assert answer.status_code == 200
    await refused(("replica_exists", "id"), model="demo", url=b.url, id="r7", region="eu")
    assert set(await gateway.replicas()) == {"r0", "r7"}
    for name in ("r0", "none"):
        answer = await gateway.admin.delete(f"/admin/api/replicas/{name}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_replica")
    for number in range(300):
        answer = await gateway.admin.post(
            "/admin/api/replicas", json={"model": "demo", "url": f"http://127.0.0.1:{number + 1}"}
        )
        if answer.status_code != 200:
            break
    assert answer.json()["error"]["code"] == "too_many_replicas"


async def test_one_that_leaves_gets_no_request_and_ends_its_streams(start_engine, start_gateway):
    a, b = await start_engine(), await start_engine()
    gateway = await start_gateway(a)
    release = held_answers(a)
    body = {"model": "demo", "messages": [{"role": "user", "content": "x"}]} | STREAM
    async with gateway.http.stream("POST", CHAT, json=body) as answer:
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith("data: ")
        await reload(gateway, entry(b, "r1"))
        await eventually(lambda: _up(gateway, "r1"))
        shown = (await gateway.replicas())["r0"]
        assert (shown["state"], shown["accepts"], shown["requests"]) == ("draining", False, 1)
        for number in range(5):
            other = await gateway.ask(f"Question {number}.")
            assert other.headers["x-gateway-replica"] == "r1"
        assert len(reported(a)) == 1
        await asyncio.sleep(2.2)  # longer than one that has nothing to do is kept
        assert (await gateway.replicas())["r0"]["requests"] == 1
        release.set()
        rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert len(rest) > 190
    await there(gateway, "r1")


async def _up(gateway, name):
    found = await gateway.replicas()
    return bool(name in found and found[name]["up"])


@pytest.mark.parametrize("how", ["leaves", "moves"])
async def test_connections_to_where_it_was_are_closed(scripted, start_engine, start_gateway, how):
    engine = await start_engine()
    gateway = await start_gateway(scripted)
    await gateway.ask()
    assert scripted._open
    await reload(gateway, entry(engine, "r0" if how == "moves" else "r1"))
    await eventually(lambda: not scripted._open)
    assert (await gateway.ask()).status_code == 200


async def test_those_that_stay_keep_what_is_known_of_them(start_engine, start_gateway, prose):
    engines = [await start_engine(events="tcp://*:0", replay="tcp://*:0") for _ in range(3)]
    gateway = await start_gateway(*engines[:2])

    async def live():
        found = await gateway.replicas()
        return all(feed["state"] == "live" for name in ("r0", "r1") for feed in found[name]["events"])

    await eventually(live)
    prompts = [prose(seed, 300) for seed in range(6)]
    held = {}
    for text in prompts:
        answer = await gateway.ask(text)
        held[text] = answer.headers["x-gateway-replica"]
    await gateway.settled(6)
    assert set(held.values()) == {"r0", "r1"}
    await events_received(gateway, engines[:2])
    before = await gateway.replicas()
    # Its address in other words: the same replica, and nothing of it is begun anew.
    for replicas in (
        [entry(engine, f"r{number}") for number, engine in enumerate(engines)],
        [entry(engine, f"r{number}", region="eu") for number, engine in enumerate(engines[:2])],
    ):
        await reload(gateway, *replicas)
        await there(gateway, *(replica["id"] for replica in replicas))
        after = await gateway.replicas()
        for name in ("r0", "r1"):
            for key in ("index", "learned", "state"):
                assert after[name][key] == before[name][key]
            (feed_before,), (feed_after,) = before[name]["events"], after[name]["events"]
            assert feed_after["state"] == "live"
            assert feed_after["batches"] >= feed_before["batches"]
            assert feed_after["gaps"] == 0
    for text in prompts:
        answer = await gateway.ask(text)
        assert answer.headers["x-gateway-replica"] == held[text]
        assert int(answer.headers["x-gateway-prefix-tokens"]) > 300
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 300


@pytest.mark.slow
async def test_nothing_of_one_that_left_stays(start_engine, start_gateway):
    a, b = [await start_engine(events="tcp://*:0", replay="tcp://*:0") for _ in range(2)]
    gateway = await start_gateway(a)
    index = gateway.gateway._index

    async def round_trip(name):
        await reload(gateway, entry(a, "r0"), entry(b, name))
        await there(gateway, "r0", name)
        for _ in range(2):
            await gateway.ask(f"To be kept by {name}.")
        assert f'"{name}"' in (await gateway.admin.get("/metrics")).text
        await reload(gateway, entry(a, "r0"))
        await there(gateway, "r0")

    async def size():
        page = (await gateway.admin.get("/metrics")).text
        tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith(("health-", "kv-events-r", "leav"))]
        known = len(index._feeds), len(index._capacity), len(index._predicted.trees), len(index._events._parts)
        return len(page.splitlines()), len(tasks), known

    await gateway.ask("To be kept by r0.")
    await round_trip("other-0")
    await gateway.settled(3)
    first = await size()
    for number in range(1, 4):
        await round_trip(f"other-{number}")
    await gateway.settled(9)
    page = (await gateway.admin.get("/metrics")).text
    assert "other-" not in page
    assert await size() == first


async def test_one_that_comes_back_before_its_last_answer_was_never_away(start_engine, start_gateway):
    a, b = [await start_engine() for _ in range(2)]
    gateway = await start_gateway(a, b)
    releases = [held_answers(engine) for engine in (a, b)]
    text = "The same question. " * 20
    body = {"model": "demo", "messages": [{"role": "user", "content": text}]} | STREAM
    async with gateway.http.stream("POST", CHAT, json=body) as answer:
        name = answer.headers["x-gateway-replica"]
        stays, leaves = (entry(a, "r0"), entry(b, "r1")) if name == "r1" else (entry(b, "r1"), entry(a, "r0"))
        await reload(gateway, stays)
        assert (await gateway.replicas())[name]["state"] == "draining"
        await reload(gateway, stays, leaves)
        assert (await gateway.replicas())[name]["state"] == "ready"
        for release in releases:
            release.set()
        await answer.aread()
    await asyncio.sleep(2.2)  # a request that waited for it to end does not wait any more
    assert set(await gateway.replicas()) == {"r0", "r1"}
    again = await gateway.ask(text)
    assert again.headers["x-gateway-replica"] == name
    assert int(again.headers["x-gateway-prefix-tokens"]) > 50
    assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 50


async def _pass_on(reader, writer):
    with contextlib.suppress(ConnectionError, asyncio.CancelledError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.close()


@pytest.fixture
async def another_address(closing):
    """Makes one more address at which an engine is reached."""

    async def open_for(engine):
        async def connected(reader, writer):
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", engine.port)
            await asyncio.gather(_pass_on(reader, inner_writer), _pass_on(inner_reader, writer))

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        closing.callback(server.close)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    return open_for


async def test_a_replica_that_moves_keeps_its_cache(start_engine, start_gateway, another_address, prose):
    engines = [await start_engine() for _ in range(2)]
    gateway = await start_gateway(*engines)
    text = prose(1, 300)
    name = (await gateway.ask(text)).headers["x-gateway-replica"]
    number = int(name[1])
    await gateway.settled(1)
    moved = await another_address(engines[number])
    urls = [engine.url for engine in engines]
    urls[number] = moved
    await reload(gateway, *(entry(url, f"r{position}") for position, url in enumerate(urls)))
    await there(gateway, "r0", "r1")
    assert (await gateway.replicas())[name]["url"] == moved
    answer = await gateway.ask(text)
    assert answer.headers["x-gateway-replica"] == name
    assert int(answer.headers["x-gateway-prefix-tokens"]) > 300


async def test_another_engine_at_another_address_begins_cold(start_engine, start_gateway, prose):
    engines = [await start_engine() for _ in range(2)]
    gateway = await start_gateway(engines[0])
    await asyncio.sleep(1.1)  # processes are distinguished by the second of their start
    text = prose(1, 300)
    await gateway.ask(text)
    await gateway.settled(1)
    await reload(gateway, entry(engines[1], "r0"))
    await there(gateway, "r0")
    answer = await gateway.ask(text)
    assert int(answer.headers["x-gateway-prefix-tokens"]) == 0
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_key_that_changes_is_sent_from_then_on(scripted, start_gateway):
    gateway = await start_gateway(scripted, model={"replicas": [entry(scripted, "r0", api_key="sk-old")]})
    await gateway.ask()
    await reload(gateway, entry(scripted, "r0", api_key="sk-new"))
    await gateway.ask()
    await reload(gateway, entry(scripted, "r0"))
    await gateway.ask()
    sent = [request.values("authorization") for request in scripted.received]
    assert sent == [["Bearer sk-old"], ["Bearer sk-new"], []]


async def test_a_new_one_is_warmed_before_it_is_used(start_engine, start_gateway, tmp_path, prose):
    file = tmp_path / "prefixes.yaml"
    file.write_text(yaml.safe_dump([{"model": "demo", "messages": [{"role": "system", "content": prose(5, 300)}]}] * 2))
    warm = {"file": str(file), "requests_per_second": 1000}
    a, b = [await start_engine() for _ in range(2)]
    relay = {"slow_start_seconds": 30}
    gateway = await start_gateway(a, warm=warm, relay=relay)
    await eventually(lambda: len(reported(a)) == 2)
    await reload(gateway, entry(a, "r0"), entry(b, "r1"), warm=warm, relay=relay)
    await there(gateway, "r0", "r1")
    await eventually(lambda: len(reported(b)) == 2)

    async def begun():
        shown = (await gateway.replicas())["r1"]
        return shown["state"] == "starting" and not shown["warming"]  # and gets its share little by little

    await eventually(begun)
    assert {request["max_tokens"] for request in reported(b)} == {1}


async def test_one_that_is_down_when_it_joins_takes_nothing_from_the_others(start_engine, start_gateway):
    engine = await start_engine()
    gateway = await start_gateway(engine)
    await reload(gateway, entry(engine, "r0"), entry("http://127.0.0.1:9", "r1"))

    async def noticed():
        return (await gateway.replicas())["r1"]["state"] == "ejected"

    for number in range(20):
        answer = await gateway.ask(f"Question {number}.")
        assert (answer.status_code, answer.headers["x-gateway-replica"]) == (200, "r0")
    await eventually(noticed)
    await reload(gateway, entry(engine, "r0"))
    await there(gateway, "r0")


async def test_a_name_that_goes_to_another_model_joins_there_when_it_has_left(start_engine, start_gateway):
    a, b = await start_engine(), await start_engine(model="other")

    def models(demo, other):
        return [
            {"id": name, "tokenizer": "builtin:demo", "replicas": replicas}
            for name, replicas in (("demo", demo), ("other", other))
        ]

    gateway = await start_gateway(models=models([entry(a, "r0")], [entry(b, "r1")]))
    settings, _ = merged(
        gateway.gateway._settings,
        settings_for([], models=models([entry(a, "r1")], [entry(b, "r2")])),
    )
    await gateway.gateway.reload(settings)
    await there(gateway, "r1", "r2")
    found = await gateway.replicas()
    assert {name: found[name]["model"] for name in found} == {"r1": "demo", "r2": "other"}
    assert (await gateway.ask()).headers["x-gateway-replica"] == "r1"


async def test_resets_know_the_model_of_one_that_joined(start_engine, start_gateway):
    engines = [await start_engine() for _ in range(2)]
    gateway = await start_gateway(engines[0], spaces={"secret": SECRET})
    await reload(gateway, entry(engines[1], "r9"), spaces={"secret": SECRET})
    await there(gateway, "r9")
    answer = await gateway.admin.post("/admin/api/spaces/reset", json={"model": "demo"})
    assert answer.status_code == 200, answer.text


class TestServe:
    """The command, and its file."""

    async def test_a_changed_file_is_enough(self, serve, start_engine):
        a, b = [await start_engine() for _ in range(2)]
        serving = await serve(a.url)
        file = serving.config
        settings = yaml.safe_load(file.read_text())
        settings["models"][0]["replicas"] = [{"url": b.url, "id": "b"}]
        file.write_text(yaml.safe_dump(settings))
        await eventually(lambda: bool(serving.events("replica_removed")))
        assert [event["replica"] for event in serving.events("replica_removed")] == [f"127.0.0.1:{a.port}"]
        assert not serving.events("restart_needed")
        async with httpx.AsyncClient(base_url=serving.url) as client:
            body = {"model": "demo", "messages": [{"role": "user", "content": "x"}]}
            answer = await client.post(CHAT, json=body)
        assert (answer.status_code, answer.headers["x-gateway-replica"]) == (200, "b")
        async with httpx.AsyncClient(base_url=serving.admin_url) as client:
            page = Metrics((await client.get("/metrics")).text)
        assert page.value("gateway_replica_up") == 1

    async def test_a_model_that_comes_or_goes_needs_a_restart(self, serve, start_engine):
        engine = await start_engine()
        serving = await serve(engine.url)
        file = serving.config
        settings = yaml.safe_load(file.read_text())
        settings["models"].append({"id": "more", "tokenizer": "builtin:demo", "replicas": ["http://127.0.0.1:9"]})
        file.write_text(yaml.safe_dump(settings))
        await eventually(lambda: bool(serving.events("restart_needed")))
        assert serving.events("restart_needed")[0]["keys"] == ["models"]
