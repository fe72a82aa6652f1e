import asyncio
import json

import httpx
import pytest
from patience import HANG_SECONDS
from prometheus_client.parser import text_string_to_metric_families

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "system", "content": "You are a helpful assistant. " * 30}, {"role": "user", "content": "Hello!"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_order",
            "parameters": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "count": {"type": "integer"}, "deep": {"type": "boolean"}},
            },
        },
    },
    {"type": "function", "function": {"name": "cancel", "parameters": {"type": "object", "properties": {}}}},
]


def chat(**fields):
    return {"model": "demo", "messages": MESSAGES} | fields


def completion(**fields):
    return {"model": "demo", "prompt": "Once upon a time"} | fields


async def post(client: httpx.AsyncClient, path: str, fields: dict) -> dict:
    response = await client.post(path, json=fields)
    assert response.status_code == 200, response.text
    return response.json()


async def events(client: httpx.AsyncClient, path: str, fields: dict) -> list[dict]:
    """The chunks of a stream, which has to end as streams end."""
    async with client.stream("POST", path, json=fields | {"stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in response.aiter_lines() if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_what_the_caches_hold_can_be_asked(start, connect):
    client = connect(await start(data_parallel_size=2))
    said = await post(client, CHAT, chat())
    full = (said["usage"]["prompt_tokens"] + said["usage"]["completion_tokens"] - 1) // 16
    assert full > 10

    used, idle = sorted((await client.get("/simulator/cache")).json()["ranks"], key=len, reverse=True)
    assert idle == []
    assert sorted(len(block["tokens"]) for block in used) == [16 * number for number in range(1, full + 1)]
    assert {(block["copies"], block["salt"], block["adapter"]) for block in used} == {(1, "", "")}
    longest = max(used, key=lambda block: len(block["tokens"]))
    assert all(block["tokens"] == longest["tokens"][: len(block["tokens"])] for block in used)

    await client.post("/reset_prefix_cache")
    assert (await client.get("/simulator/cache")).json() == {"ranks": [[], []]}


async def test_the_second_request_reads_the_prefix_of_the_first(start, connect):
    client = connect(await start())
    first = await post(client, CHAT, chat())
    second = await post(client, CHAT, chat())

    n = first["usage"]["prompt_tokens"]
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["usage"]["prompt_tokens_details"] == {"cached_tokens": (n - 1) // 16 * 16}
    assert first["choices"][0] == second["choices"][0]
    assert first["choices"][0]["finish_reason"] == "length"
    assert first["usage"]["completion_tokens"] == 16
    assert first["usage"]["total_tokens"] == n + 16


@pytest.mark.parametrize(("length", "hit"), [(64, 48), (65, 64)])
async def test_hits_end_one_token_before_the_prompts_end(start, connect, length, hit):
    client = connect(await start())
    body = completion(prompt=list(range(100, 100 + length)))
    await post(client, COMPLETIONS, body)
    assert (await post(client, COMPLETIONS, body))["usage"]["prompt_tokens_details"]["cached_tokens"] == hit


async def test_the_next_turn_hits_through_the_answer(start, connect):
    client = connect(await start(block_size=4))
    first = await post(client, CHAT, chat(max_tokens=400))
    assert first["choices"][0]["finish_reason"] == "stop"
    answer = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
    second = await post(client, CHAT, chat(messages=[*MESSAGES, answer, {"role": "user", "content": "Go on."}]))

    computed = first["usage"]["total_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == computed // 4 * 4


async def test_the_next_turn_hits_through_a_tool_call(start, connect):
    client = connect(await start(block_size=4))
    first = await post(client, CHAT, chat(tools=TOOLS, tool_choice="required"))
    message = first["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "found"}
    second = await post(client, CHAT, chat(tools=TOOLS, messages=[*MESSAGES, message, result]))

    computed = first["usage"]["total_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == computed // 4 * 4


async def test_a_stream_says_the_same_as_a_whole_answer(start, connect):
    client = connect(await start())
    whole = await post(client, CHAT, chat(max_tokens=20))
    chunks = await events(client, CHAT, chat(max_tokens=20))

    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert len(deltas) == 21
    assert "".join(delta["content"] for delta in deltas) == whole["choices"][0]["message"]["content"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 20 + ["length"]
    assert not any("usage" in chunk for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_a_stream_reports_usage_in_a_last_chunk_if_asked(start, connect):
    client = connect(await start())
    whole = await post(client, CHAT, chat())
    chunks = await events(client, CHAT, chat(stream_options={"include_usage": True}))

    assert chunks[-1]["choices"] == []
    cached = (whole["usage"]["prompt_tokens"] - 1) // 16 * 16
    assert chunks[-1]["usage"] == whole["usage"] | {"prompt_tokens_details": {"cached_tokens": cached}}
    assert not any("usage" in chunk for chunk in chunks[:-1])


async def test_a_stream_reports_usage_with_every_chunk_if_asked(start, connect):
    client = connect(await start())
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await events(client, COMPLETIONS, completion(max_tokens=3, stream_options=options))

    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 3]


async def test_chunks_arrive_one_by_one(start, connect):
    engine = await start(decode_ms=500)
    client = connect(engine)
    seen = 0
    async with client.stream("POST", COMPLETIONS, json=completion(max_tokens=200, stream=True)) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                assert engine.scheduler.running == 1  # the others are still to be computed
                seen += 1
                if seen == 2:
                    break


async def test_cached_tokens_are_reported_only_if_switched_on(start, connect):
    client = connect(await start(prompt_tokens_details=False))
    await post(client, CHAT, chat())
    assert (await post(client, CHAT, chat()))["usage"]["prompt_tokens_details"] is None


async def test_answers_depend_on_prompt_place_and_seed(start, connect):
    client = connect(await start())

    async def texts(**fields):
        return [choice["text"] for choice in (await post(client, COMPLETIONS, completion(**fields)))["choices"]]

    one, two = await texts(n=2)
    assert one != two
    assert await texts() == [one]
    assert await texts(prompt="Twice upon a time") != [one]
    seeded = await texts(seed=7)
    assert seeded != [one]
    assert await texts(seed=7) == seeded


async def test_several_prompts_report_the_last_ones_cached_tokens_only(start, connect):
    client = connect(await start())
    warm, cold = list(range(100, 165)), list(range(300, 340))
    await post(client, COMPLETIONS, completion(prompt=warm))
    body = await post(client, COMPLETIONS, completion(prompt=[warm, cold], n=2, max_tokens=2))

    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == 65 + 40
    assert body["usage"]["completion_tokens"] == 8
    # The last of the four sequences is the second run of the cold prompt.
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 32


async def test_a_prompt_as_text_and_as_ids_is_the_same(start, connect):
    client = connect(await start())
    ids = (await post(client, "/tokenize", {"prompt": "Once upon a time"}))["tokens"]
    answers = [
        (await post(client, COMPLETIONS, completion(prompt=prompt)))["choices"][0]["text"]
        for prompt in ("Once upon a time", ["Once upon a time"], ids, [ids])
    ]
    assert len(set(answers)) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_text_ends_the_answer_and_is_left_out(start, connect, stream):
    client = connect(await start())
    text = (await post(client, COMPLETIONS, completion()))["choices"][0]["text"]
    stop = text[20:26]
    body = completion(stop=["never said", stop])
    if stream:
        chunks = await events(client, COMPLETIONS, body)
        got = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        last = chunks[-1]["choices"][0]
    else:
        whole = await post(client, COMPLETIONS, body)
        last = whole["choices"][0]
        got = last["text"]
        assert whole["usage"]["completion_tokens"] < 16
    assert got == text[: text.index(stop)]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)


async def test_the_model_ends_its_turn_unless_forbidden(start, connect):
    client = connect(await start())
    ended = await post(client, COMPLETIONS, completion(max_tokens=1000))
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert ended["usage"]["completion_tokens"] < 200
    longer = await post(client, COMPLETIONS, completion(max_completion_tokens=300, ignore_eos=True))
    assert longer["choices"][0]["finish_reason"] == "length"
    assert longer["usage"]["completion_tokens"] == 300


@pytest.mark.parametrize(
    ("choice", "name", "reason"),
    [
        ("required", "find_order", "tool_calls"),
        ({"type": "function", "function": {"name": "cancel"}}, "cancel", "stop"),
    ],
)
async def test_a_forced_tool_call_has_arguments_of_its_schema(start, connect, choice, name, reason):
    client = connect(await start())
    body = chat(tools=TOOLS, tool_choice=choice)
    whole = (await post(client, CHAT, body))["choices"][0]
    call = whole["message"]["tool_calls"][0]
    chunks = [chunk["choices"][0] for chunk in await events(client, CHAT, body)]
    parts = [part for chunk in chunks for part in chunk["delta"].get("tool_calls", [])]

    assert whole["finish_reason"] == chunks[-1]["finish_reason"] == reason
    assert whole["message"]["content"] is None
    assert call["function"]["name"] == parts[0]["function"]["name"] == name
    assert "".join(part["function"]["arguments"] for part in parts) == call["function"]["arguments"]
    arguments = json.loads(call["function"]["arguments"])
    if name == "find_order":
        assert {key: type(value) for key, value in arguments.items()} == {"name": str, "count": int, "deep": bool}
    else:
        assert arguments == {}


async def test_tools_without_being_forced_are_answered_with_text(start, connect):
    client = connect(await start())
    choice = (await post(client, CHAT, chat(tools=TOOLS)))["choices"][0]
    assert choice["message"]["content"]
    assert choice["message"]["tool_calls"] == []


async def test_a_response_format_is_followed(start, connect):
    client = connect(await start())
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Ulm"]}, "days": {"type": "array", "items": {"type": "integer"}}},
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    text = (await post(client, CHAT, chat(response_format=wanted, max_tokens=100)))["choices"][0]["message"]["content"]
    body = json.loads(text)
    assert body["city"] == "Ulm"
    assert [type(day) for day in body["days"]] == [int]


async def test_logprobs_have_the_shape_of_each_api(start, connect):
    client = connect(await start())
    choice = (await post(client, CHAT, chat(logprobs=True, top_logprobs=2, max_tokens=3)))["choices"][0]
    content = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == choice["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] <= 0 for entry in content)
    assert bytes(content[0]["bytes"]).decode() == content[0]["token"]

    choice = (await post(client, COMPLETIONS, completion(logprobs=2, max_tokens=3)))["choices"][0]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert choice["logprobs"]["text_offset"][1] == len(choice["logprobs"]["tokens"][0])
    assert len(choice["logprobs"]["token_logprobs"]) == len(choice["logprobs"]["top_logprobs"]) == 3


async def test_prompt_logprobs_skip_the_cache(start, connect):
    client = connect(await start())
    await post(client, CHAT, chat())
    body = await post(client, CHAT, chat(prompt_logprobs=0))
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]


async def test_token_ids_are_sent_if_asked_and_equal_those_of_render_and_tokenize(start, connect):
    client = connect(await start())
    body = chat(tools=TOOLS, return_token_ids=True, max_tokens=3)
    reported = (await post(client, CHAT, body))["prompt_token_ids"]
    chunks = await events(client, CHAT, body)
    rendered = await post(client, f"{CHAT}/render", body)
    counted = await post(client, "/tokenize", chat(tools=TOOLS))

    assert reported == rendered["token_ids"] == counted["tokens"] == chunks[0]["prompt_token_ids"]
    assert counted["count"] == len(reported)
    assert counted["max_model_len"] == 32768
    assert sum(len(chunk["choices"][0].get("token_ids", [])) for chunk in chunks) == 3


async def test_completions_render_gives_one_entry_a_prompt(start, connect):
    client = connect(await start())
    one = await post(client, f"{COMPLETIONS}/render", completion(prompt=[1, 2, 3]))
    two = await post(client, f"{COMPLETIONS}/render", completion(prompt=[[1, 2, 3], [4]]))
    assert one["token_ids"] == [1, 2, 3]
    assert [entry["token_ids"] for entry in two] == [[1, 2, 3], [4]]


async def test_render_can_be_switched_off(start, connect):
    client = connect(await start(render=False))
    for path, body in ((CHAT, chat()), (COMPLETIONS, completion())):
        response = await client.post(f"{path}/render", json=body)
        assert response.status_code == 403
        assert response.json()["error"]["code"] == 403
    assert (await client.post("/tokenize", json=chat())).status_code == 200


async def test_models_health_and_version(start, connect):
    client = connect(await start(model="my/model", max_model_len=1000))
    (model,) = (await client.get("/v1/models")).json()["data"]
    assert (model["id"], model["root"], model["parent"], model["max_model_len"]) == ("my/model", "my/model", None, 1000)
    assert (await client.get("/health")).status_code == 200
    assert "version" in (await client.get("/version")).json()


async def test_metrics_report_load_cache_and_settings(start, connect):
    engine = await start(blocks=101, decode_ms=20)
    client = connect(engine)
    first = await post(client, CHAT, chat(max_tokens=1))
    running = asyncio.create_task(post(client, CHAT, chat(max_tokens=100, ignore_eos=True)))
    while engine.scheduler.running == 0:
        await asyncio.sleep(0.001)
    text = (await client.get("/metrics")).text
    running.cancel()

    samples = {sample.name: sample for family in text_string_to_metric_families(text) for sample in family.samples}
    n = first["usage"]["prompt_tokens"]
    assert samples["vllm:num_requests_running"].value == 1
    assert samples["vllm:num_requests_running"].labels["model_name"] == "demo"
    assert samples["vllm:num_requests_waiting"].value == 0
    assert 0 < samples["vllm:kv_cache_usage_perc"].value < 1
    assert samples["vllm:prefix_cache_queries_total"].value == samples["vllm:prompt_tokens_total"].value == 2 * n
    assert samples["vllm:prefix_cache_hits_total"].value == (n - 1) // 16 * 16
    info = samples["vllm:cache_config_info"].labels
    assert (info["block_size"], info["num_gpu_blocks"], info["enable_prefix_caching"]) == ("16", "101", "True")


async def test_an_idle_engine_shows_no_usage_however_warm_it_is(start, connect):
    client = connect(await start())
    await post(client, CHAT, chat())
    assert "\nvllm:kv_cache_usage_perc{" in (text := (await client.get("/metrics")).text)
    assert text.split("vllm:kv_cache_usage_perc{")[1].split("\n")[0].endswith(" 0.0")


async def test_the_prefix_cache_can_be_reset(start, connect):
    client = connect(await start())
    await post(client, CHAT, chat())
    assert (await client.post("/reset_prefix_cache")).status_code == 200
    assert (await post(client, CHAT, chat()))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_salts_separate_requests(start, connect):
    client = connect(await start())

    async def cached(**fields):
        return (await post(client, CHAT, chat(**fields)))["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert await cached(cache_salt="a-_Z") == 0
    assert await cached(cache_salt="b") == await cached() == 0
    assert await cached(cache_salt="a-_Z") > 0


async def test_adapters_are_served_beside_the_model_and_share_nothing_with_it(start, connect):
    client = connect(await start(adapters=("law", "poems")))
    cards = (await client.get("/v1/models")).json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [("demo", None), ("law", "demo"), ("poems", "demo")]

    async def cached(model: str) -> int:
        body = await post(client, CHAT, chat(model=model))
        assert body["model"] == model
        return body["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [await cached(model) for model in ("demo", "law", "poems")] == [0, 0, 0]
    assert await cached("law") == await cached("demo") > 0


async def test_unknown_fields_are_ignored_and_the_request_id_comes_back(start, connect):
    client = connect(await start())
    response = await client.post(CHAT, json=chat(frobnicate={"x": 1}, user="u"), headers={"x-request-id": "my-id"})
    assert response.status_code == 200
    assert response.headers["x-request-id"] == "my-id"
    assert (await client.get("/health")).headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "fields", "status", "said"),
    [
        (CHAT, {"model": "other"}, 404, "other"),
        (CHAT, {"messages": None}, 400, "messages"),
        (CHAT, {"messages": []}, 400, "messages"),
        (CHAT, {"messages": [{"content": "x"}]}, 400, "role"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, 400, "content"),
        (CHAT, {"max_tokens": 0}, 400, "max_tokens"),
        (CHAT, {"max_tokens": "5"}, 400, "max_tokens"),
        (CHAT, {"n": 0}, 400, "n must"),
        (CHAT, {"stream": "yes"}, 400, "stream"),
        (CHAT, {"stream_options": {"include_usage": True}}, 400, "stream"),
        (CHAT, {"stop": [""]}, 400, "stop"),
        (CHAT, {"top_logprobs": 2}, 400, "logprobs"),
        (CHAT, {"cache_salt": ""}, 400, "cache_salt"),
        (CHAT, {"cache_salt": "a" * 129}, 400, "cache_salt"),
        (CHAT, {"cache_salt": "a/b"}, 400, "cache_salt"),
        (CHAT, {"cache_salt": "a\x00b"}, 400, "cache_salt"),
        (CHAT, {"cache_salt": 7}, 400, "cache_salt"),
        (CHAT, {"cache_salt": ["a"]}, 400, "cache_salt"),
        (COMPLETIONS, {"cache_salt": "a@b"}, 400, "cache_salt"),
        (f"{CHAT}/render", {"cache_salt": "a\\b"}, 400, "cache_salt"),
        (CHAT, {"tool_choice": "required"}, 400, "tools"),
        (CHAT, {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, 400, "tool_choice"),
        (CHAT, {"tools": TOOLS, "tool_choice": ["auto"]}, 400, "tool_choice"),
        (CHAT, {"max_tokens": 32768}, 400, "maximum context length"),
        (CHAT, {"stream": True, "prompt_logprobs": 1}, 400, "prompt_logprobs"),
        (COMPLETIONS, {"prompt": [1] * 32768}, 400, "maximum context length"),
        (COMPLETIONS, {"prompt": None}, 400, "prompt"),
        (COMPLETIONS, {"prompt": ""}, 400, "prompt"),
        (COMPLETIONS, {"prompt": {"a": 1}}, 400, "prompt"),
    ],
)
async def test_a_bad_request_is_refused_in_the_engines_shape(start, connect, path, fields, status, said):
    client = connect(await start())
    response = await client.post(path, json=(chat() if path.startswith(CHAT) else completion()) | fields)
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert said in error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"a": "\\ud800"}x'])
async def test_what_is_no_json_object_is_refused(start, connect, body):
    client = connect(await start())
    response = await client.post(CHAT, content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "BadRequestError"


async def test_unknown_paths_and_methods(start, connect):
    client = connect(await start())
    assert (await client.get("/nowhere")).status_code == 404
    assert (await client.get(CHAT)).status_code == 405
    assert (await client.get("/nowhere")).json()["error"]["type"] == "NotFoundError"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_frees_everything_at_once(start, connect, stream):
    engine = await start(decode_ms=20)
    client = connect(engine)
    task = asyncio.create_task(client.post(CHAT, json=chat(max_tokens=1000, ignore_eos=True, n=3, stream=stream)))
    while engine.scheduler.running < 3:
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(HANG_SECONDS):
        while engine.scheduler.running or engine.cache.free_blocks != engine.cache.usable_blocks:
            await asyncio.sleep(0.001)
    assert engine.scheduler.totals.aborted == 3


async def test_requests_are_kept_raw_if_asked(start, connect):
    engine = await start(record_requests=2)
    client = connect(engine)
    raw = b'{ "messages" :[{"role":"user","content":"x"}],\n"big":12345678901234567890123, "model":"demo"}'
    await client.post("/tokenize", json={"prompt": "x"})
    await client.post("/tokenize", json={"prompt": "y"})
    await client.post(CHAT, content=raw, headers={"x-odd": "Value"})

    assert [request.path for request in engine.requests] == ["/tokenize", CHAT]
    assert engine.requests[-1].body == raw
    assert (b"x-odd", b"Value") in engine.requests[-1].headers


async def test_an_answer_is_not_held_back_by_the_socket(start, connect):
    client = connect(await start())
    loop = asyncio.get_running_loop()

    async def seconds() -> float:
        begun = loop.time()
        await post(client, CHAT, chat(max_tokens=1))
        return loop.time() - begun

    # A delayed acknowledgement adds 40 ms to each of them; a busy machine lets one of many through without a pause.
    for _ in range(300):
        if await seconds() < 0.03:
            return
    raise AssertionError("every answer is late")


async def test_two_hundred_requests_at_once(start, connect):
    engine = await start(slots=16, decode_ms=1)
    client = connect(engine)
    responses = await asyncio.gather(*(post(client, CHAT, chat(max_tokens=8)) for _ in range(200)))
    assert len({response["choices"][0]["message"]["content"] for response in responses}) == 1
    assert engine.scheduler.totals.finished == 200
    assert engine.cache.free_blocks == engine.cache.usable_blocks
