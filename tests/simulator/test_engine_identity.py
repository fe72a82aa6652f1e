"""What an engine says it is, and how it becomes another one while it runs."""

import pytest
from event_reader import replay
from prometheus_client.parser import text_string_to_metric_families

COMPLETIONS = "/v1/completions"
MODEL = "/simulator/model"


async def identity(client) -> tuple[str, int, str]:
    """Root, context limit and release, from wherever the engine reports them."""
    (card,) = (await client.get("/v1/models")).json()["data"]
    version = await client.get("/version")
    if version.status_code == 200:
        return card["root"], card["max_model_len"], version.json()["version"]
    info = (await client.get("/server_info")).json()
    assert (card["id"], card["root"], info["served_model_name"]) == ("demo", "demo", "demo")
    assert info["context_length"] == card["max_model_len"]
    assert (await client.get("/v1/loads")).json()["version"] == info["version"]
    return info["model_path"], info["context_length"], info["version"]


async def cached(client) -> int:
    body = {"prompt": list(range(100, 140)), "max_tokens": 1}
    usage = (await client.post(COMPLETIONS, json=body)).json()["usage"]
    return (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)


async def start_time(client) -> float:
    page = (await client.get("/metrics")).text
    (found,) = (family for family in text_string_to_metric_families(page) if family.name.startswith("process_start"))
    return found.samples[0].value


@pytest.mark.parametrize(("flavor", "release"), [("vllm", "0.32.0"), ("sglang", "0.5.23")])
async def test_it_is_the_version_given_or_the_release_it_simulates(start, connect, flavor, release):
    plain = await start(flavor=flavor)
    assert await identity(connect(plain)) == ("demo", 32768, release)
    reported = await start(flavor=flavor, root="/models/a", engine_version="9.1", max_model_len=500)
    assert await identity(connect(reported)) == ("/models/a", 500, "9.1")


@pytest.mark.parametrize("flavor", ["vllm", "sglang"])
async def test_an_update_without_a_restart_changes_what_is_reported_and_keeps_the_cache(start, connect, flavor):
    engine = await start(flavor=flavor, prompt_tokens_details=True, record_requests=10)
    client = connect(engine)
    await cached(client)
    answer = await client.post(MODEL, json={"root": "/models/b", "max_model_len": 300})
    assert answer.json() == {"root": "/models/b", "max_model_len": 300, "version": (await identity(client))[2]}
    assert (await identity(client))[:2] == ("/models/b", 300)
    assert await cached(client) == 32
    await client.post(MODEL, json={"version": "10.0"})
    assert await identity(client) == ("/models/b", 300, "10.0")
    assert {request.path for request in engine.requests} == {COMPLETIONS}


async def test_an_update_with_a_restart_is_a_new_process(start, connect):
    engine = await start(events="tcp://*:0", replay="tcp://*:0")
    client = connect(engine)
    await cached(client)
    before = await start_time(client)
    engine.replace_model(root="/models/b", restart=True)
    assert (await identity(client))[0] == "/models/b"
    assert await start_time(client) > before
    assert await cached(client) == 0
    (batch,) = await replay(engine.replay_endpoints[0])
    assert batch.sequence == 0


async def test_the_context_limit_is_kept_from_then_on(start, connect):
    client = connect(await start())
    body = {"prompt": list(range(100, 140)), "max_tokens": 1}
    await client.post(MODEL, json={"max_model_len": 40})
    refused = await client.post(COMPLETIONS, json=body)
    assert refused.status_code == 400
    assert "40 tokens" in refused.json()["error"]["message"]
    await client.post(MODEL, json={"max_model_len": 41})
    assert (await client.post(COMPLETIONS, json=body)).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"root": 7}, "root"),
        ({"restart": "yes"}, "restart"),
        ({"max_model_len": True}, "max_model_len"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"max_model_len": 10**9}, "max_model_len"),
        ({"name": "x"}, "name"),
    ],
)
async def test_a_bad_update_is_refused_and_changes_nothing(start, connect, fields, param):
    client = connect(await start())
    refused = await client.post(MODEL, json={"version": "1"} | fields)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert await identity(client) == ("demo", 32768, "0.32.0")


async def test_no_fault_touches_the_control(start, connect):
    client = connect(await start(fault="500:path=*"))
    assert (await client.post(MODEL, json={"root": "/b"})).status_code == 200
