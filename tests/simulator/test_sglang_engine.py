import asyncio

import pytest
from event_reader import Mirror, fill, held, replay
from prometheus_client.parser import text_string_to_metric_families

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@pytest.fixture
def sglang(start):
    def sglang(**options):
        return start(**{"flavor": "sglang", "block_size": 4} | options)

    return sglang


async def ask(client, tokens, **fields):
    response = await client.post(COMPLETIONS, json={"prompt": list(tokens), "max_tokens": 1} | fields)
    assert response.status_code == 200, response.text
    return response.json()


async def test_cached_tokens_are_reported_only_with_the_report_and_only_if_there_are_any(sglang, connect):
    for report, details in ((None, None), (True, {"cached_tokens": 16})):
        client = connect(await sglang(prompt_tokens_details=report))
        assert (await ask(client, range(100, 120)))["usage"]["prompt_tokens_details"] is None
        assert (await ask(client, range(100, 120)))["usage"]["prompt_tokens_details"] == details


async def test_cached_tokens_are_those_of_all_prompts_once_each(sglang, connect):
    client = connect(await sglang(prompt_tokens_details=True))
    await ask(client, range(100, 121))
    body = {"prompt": [list(range(100, 121)), list(range(100, 111))], "n": 2, "max_tokens": 1}
    usage = (await client.post(COMPLETIONS, json=body)).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 20 + 8}


async def test_each_chunk_reports_the_cached_tokens(sglang, connect):
    client = connect(await sglang(prompt_tokens_details=True))
    await ask(client, range(100, 121))
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": list(range(100, 121)), "max_tokens": 3, "stream": True, "stream_options": options}
    text = (await client.post(COMPLETIONS, json=body)).text
    assert text.count('"cached_tokens":20') == 4


async def test_pages_of_one_token_match_all_but_the_last(sglang, connect):
    client = connect(await sglang(block_size=1, prompt_tokens_details=True))
    await ask(client, range(100, 107))
    assert (await ask(client, range(100, 107)))["usage"]["prompt_tokens_details"] == {"cached_tokens": 6}
    assert (await ask(client, range(100, 110)))["usage"]["prompt_tokens_details"] == {"cached_tokens": 7}


async def test_each_page_is_an_event_and_a_signed_number(sglang, connect):
    engine = await sglang(events="tcp://*:0", replay="tcp://*:0", adapters=("law",))
    client = connect(engine)
    await ask(client, range(100, 109), cache_salt="s", model="law")
    await ask(client, range(100, 160))
    first, second = await replay(engine.replay_endpoints[0])
    assert first.content[2] == 0
    reported, next_reported = first.events
    assert reported == {
        "type": "BlockStored",
        "block_hashes": reported["block_hashes"],
        "parent_block_hash": None,
        "token_ids": [100, 101, 102, 103],
        "block_size": 4,
        "lora_id": None,
        "medium": "GPU",
        "cache_salt": "s",
        "lora_name": "law",
    }
    assert next_reported["parent_block_hash"] == reported["block_hashes"][0]
    assert next_reported["cache_salt"] == "s"
    names = [event["block_hashes"][0] for event in second.events]
    assert len(names) == 15
    assert all(-(2**63) <= name < 2**63 for name in names)
    assert min(names) < 0 < max(names)
    assert not {"cache_salt", "lora_name", "extra_keys", "group_idx"} & second.events[0].keys()


async def test_equal_pages_computed_twice_are_kept_and_published_once(sglang, connect):
    engine = await sglang(events="tcp://*:0", replay="tcp://*:0")
    client = connect(engine)
    for _ in range(2):
        await ask(client, range(100, 108))
    (batch,) = await replay(engine.replay_endpoints[0])
    assert len(batch.events) == 2
    assert {block.copies for block in engine.content[0]} == {1}
    assert engine.cache.free_blocks == engine.cache.usable_blocks


async def test_what_is_evicted_together_is_one_event(sglang):
    engine = await sglang(events="tcp://*:0", replay="tcp://*:0", blocks=5)
    fill(engine, range(100, 116))
    fill(engine, range(200, 212))
    first, second = await replay(engine.replay_endpoints[0])
    removed = second.events[0]
    names = [event["block_hashes"][0] for event in first.events]
    assert removed == {"type": "BlockRemoved", "block_hashes": names[:0:-1], "medium": "GPU"}
    mirror = Mirror()
    mirror.apply([first, second])
    assert mirror.content == held(engine)


async def test_the_earlier_arrays_hold_the_salt_at_their_end(sglang, connect):
    engine = await sglang(events="tcp://*:0", replay="tcp://*:0", event_encoding="positional")
    client = connect(engine)
    await ask(client, range(100, 105), cache_salt="s")
    await ask(client, range(100, 105))
    (salted,), (plain,) = [batch.events for batch in await replay(engine.replay_endpoints[0])]
    assert salted == ["BlockStored", salted[1], None, [100, 101, 102, 103], 4, None, "GPU", {"cache_salt": "s"}]
    assert plain == ["BlockStored", plain[1], None, [100, 101, 102, 103], 4, None, "GPU"]


async def test_server_info_says_where_the_events_are(sglang, connect):
    engine = await sglang(events="tcp://*:0", replay="tcp://*:0", event_topic="kv", block_size=64, data_parallel_size=2)
    info = (await connect(engine).get("/server_info")).json()
    port, replay_port = (int(listed[0].split(":")[-1]) for listed in (engine.event_endpoints, engine.replay_endpoints))
    assert info["kv_events"] == {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": port,
        "topic": "kv",
        "block_size": 64,
        "dp_size": 2,
        "replay_endpoint_port_base": replay_port,
    }
    assert (info["page_size"], info["dp_size"]) == (64, 2)
    without_replay = (await connect(await sglang(events="tcp://0.0.0.0:0")).get("/server_info")).json()["kv_events"]
    assert "replay_endpoint_port_base" not in without_replay
    assert without_replay["endpoint_host"] == "0.0.0.0"
    assert (await connect(await sglang()).get("/server_info")).json()["kv_events"] is None


async def test_loads_report_the_requests_and_tokens_of_each_rank(sglang, connect):
    engine = await sglang(data_parallel_size=2, decode_ms=20, slots=1, blocks=101)
    client = connect(engine)
    running = [
        asyncio.create_task(
            client.post(
                COMPLETIONS,
                json={"prompt": list(range(30)), "max_tokens": 100, "ignore_eos": True},
                headers={"x-data-parallel-rank": "1"},
            )
        )
        for _ in range(2)
    ]
    while not engine.ranks.all[1].scheduler.waiting:
        await asyncio.sleep(0.001)
    reported = (await client.get("/v1/loads")).json()
    one = (await client.get("/v1/loads?dp_rank=0")).json()
    refused = await client.post("/flush_cache")
    for task in running:
        task.cancel()
    assert reported["dp_rank_count"] == 2
    idle, busy = reported["loads"]
    assert (idle["num_running_reqs"], idle["num_waiting_reqs"], idle["num_used_tokens"]) == (0, 0, 0)
    assert (busy["dp_rank"], busy["num_running_reqs"], busy["num_waiting_reqs"]) == (1, 1, 1)
    assert busy["num_used_tokens"] >= 30
    assert busy["num_total_tokens"] == busy["num_used_tokens"] + 30
    assert busy["max_total_num_tokens"] == 400
    assert reported["aggregate"]["total_reqs"] == 2
    assert [load["dp_rank"] for load in one["loads"]] == [0]
    assert refused.status_code == 400


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_idle_engine_flushes_its_cache(sglang, connect, method):
    engine = await sglang()
    client = connect(engine)
    await ask(client, range(100, 120))
    assert engine.content[0]
    assert (await client.request(method, "/flush_cache")).status_code == 200
    assert engine.content == [[]]


async def test_metrics_have_sglangs_names(sglang, connect):
    engine = await sglang(blocks=101)
    client = connect(engine)
    for _ in range(2):
        await ask(client, range(100, 121))
    text = (await client.get("/metrics")).text
    samples = {sample.name: sample for family in text_string_to_metric_families(text) for sample in family.samples}
    assert "vllm:" not in text
    labels = {"model_name": "demo", "engine_type": "unified", "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
    assert samples["sglang:num_running_reqs"].labels == labels
    assert samples["sglang:num_queue_reqs"].value == 0
    assert samples["sglang:token_usage"].value == 0
    assert samples["sglang:page_size"].value == 4
    assert samples["sglang:max_total_num_tokens"].value == 400
    assert samples["sglang:cached_tokens_total"].value == 20
    assert samples["sglang:cache_hit_rate"].value == pytest.approx(20 / 42)
    two = (await connect(await sglang(data_parallel_size=2)).get("/metrics")).text
    assert 'dp_rank="1"' in two
    assert 'dp_rank="0"' in two


async def test_errors_are_flat(sglang, connect):
    client = connect(await sglang())
    response = await client.post(CHAT, json={"model": "other", "messages": [{"role": "user", "content": "x"}]})
    assert response.status_code == 404
    assert response.json() == {
        "object": "error",
        "message": "The model `other` does not exist.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }


@pytest.mark.parametrize("path", ["/v1/tokenize", "/tokenize"])
async def test_tokenize_answers_in_the_shape_of_the_question(sglang, connect, path):
    client = connect(await sglang())
    one = (await client.post(path, json={"prompt": "Once upon a time"})).json()
    two = (await client.post(path, json={"prompt": ["Once upon a time", "Hi"]})).json()
    assert one["count"] == len(one["tokens"]) > 1
    assert two["tokens"][0] == one["tokens"]
    assert two["count"] == [len(tokens) for tokens in two["tokens"]]


async def test_adapters_are_models_of_their_own(sglang, connect):
    engine = await sglang(adapters=("law",), prompt_tokens_details=True)
    client = connect(engine)
    cards = (await client.get("/v1/models")).json()["data"]
    assert [(card["id"], card["parent"], card["owned_by"]) for card in cards] == [
        ("demo", None, "sglang"),
        ("law", "demo", "sglang"),
    ]
    await ask(client, range(100, 121))
    assert (await ask(client, range(100, 121), model="law"))["usage"]["prompt_tokens_details"] is None
    # The engine's own way to name an adapter.
    again = await ask(client, range(100, 121), model="demo:law")
    assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": 20}
    assert again["model"] == "law"


async def test_salt_and_extra_key_are_one_text_and_separate_requests(sglang, connect):
    client = connect(await sglang(prompt_tokens_details=True))

    async def cached(**fields) -> int:
        details = (await ask(client, range(100, 121), **fields))["usage"]["prompt_tokens_details"]
        return details["cached_tokens"] if details else 0

    assert await cached(cache_salt="ab") == 0
    assert await cached(cache_salt="a") == await cached() == 0
    assert await cached(extra_key="ab") == await cached(cache_salt="a", extra_key="b") == 20
    assert await cached(cache_salt="", extra_key=None) == await cached(cache_salt=[]) == 20
    assert await cached(cache_salt="a/@\\" * 100) == 0


@pytest.mark.parametrize("name", ["cache_salt", "extra_key"])
async def test_a_list_of_salts_fails_and_other_types_are_refused(sglang, connect, name):
    client = connect(await sglang())
    for value, status in ((["a"], 500), (["a", "b"], 500), (7, 400), ({"a": 1}, 400), ([1], 400)):
        answer = await client.post(COMPLETIONS, json={"prompt": [1, 2], name: value})
        assert answer.status_code == status
        assert name in answer.json()["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/kv_event_sources"), ("POST", f"{CHAT}/render"), ("POST", "/reset_prefix_cache"), ("GET", "/version")],
)
async def test_what_only_vllm_has_is_not_there(sglang, connect, method, path):
    assert (await connect(await sglang()).request(method, path)).status_code == 404


@pytest.mark.parametrize("path", ["/server_info", "/v1/loads", "/flush_cache"])
async def test_what_only_sglang_has_is_not_at_vllm(start, connect, path):
    assert (await connect(await start()).get(path)).status_code == 404
