"""The Messages API over sockets: Anthropic's official client, and what no client should send."""

import asyncio
import json
import random

import anthropic
import pytest
from raw_http import post
from running_gateway import eventually, held_answers
from scripted_engine import REPLY, STREAM_HEAD, chunk, response
from structlog.testing import capture_logs
from tenancy import key, sections, tenant

PATH = "/v1/messages"
COUNT = f"{PATH}/count_tokens"
USER = [{"role": "user", "content": "Where is my order?"}]
ASK = {"model": "demo", "max_tokens": 30, "messages": USER}
TOOL = {
    "name": "weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
SDK = {"anthropic-version": "2023-06-01"}


@pytest.fixture
def claude(closing):
    """Makes an official client that does not retry by itself."""

    def make(gateway, **options):
        key = {} if "auth_token" in options else {"api_key": "sk-test"}
        client = anthropic.AsyncAnthropic(base_url=gateway.url, max_retries=0, **key | options)
        closing.push_async_callback(client.close)
        return client

    return make


@pytest.fixture
def client(claude, gateway):
    return claude(gateway)


def refused(answer, status: int, kind: str) -> str:
    """Check an error in the API's shape; returns its message."""
    body = answer.json()
    assert (answer.status_code, body["type"], body["error"]["type"]) == (status, "error", kind), answer.text
    assert body["request_id"] == answer.headers["x-request-id"]
    return body["error"]["message"]


def sent(engine) -> dict:
    """The body that the engine got last."""
    return json.loads(engine.received[-1].body)


# Answers


async def test_a_message_and_its_stream_say_the_same(client):
    whole = await client.messages.create(**ASK)
    assert (whole.type, whole.role, whole.stop_reason, whole.usage.output_tokens) == (
        "message",
        "assistant",
        "max_tokens",
        30,
    )
    async with client.messages.stream(**ASK) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 30)


async def test_usage_is_exact_from_the_beginning(client):
    system = [{"type": "text", "text": "Be brief. " * 100, "cache_control": {"type": "ephemeral"}}]
    first = await client.messages.create(**ASK, system=system)
    stream = await client.messages.create(**ASK, system=system, stream=True)
    found = [event async for event in stream]
    begun, ended = found[0].message.usage, found[-2].usage
    assert begun.cache_read_input_tokens == ended.cache_read_input_tokens > 0
    assert begun.input_tokens == ended.input_tokens
    total = begun.input_tokens + begun.cache_read_input_tokens + begun.cache_creation_input_tokens
    assert total == first.usage.input_tokens + first.usage.cache_read_input_tokens


async def test_a_tool_is_called_and_its_result_goes_back(client):
    async with client.messages.stream(
        **ASK | {"max_tokens": 200}, tools=[TOOL], tool_choice={"type": "tool", "name": "weather"}
    ) as stream:
        final = await stream.get_final_message()
    assert final.stop_reason == "tool_use"
    (call,) = [block for block in final.content if block.type == "tool_use"]
    assert (call.name, call.input.keys()) == ("weather", {"city"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "clear"}]}
    turn = [{"role": "assistant", "content": final.content}, {"role": "user", "content": [result]}]
    assert (await client.messages.create(**ASK | {"messages": USER + turn}, tools=[TOOL])).content[0].text


async def test_a_stop_sequence_is_named(client):
    word = (await client.messages.create(**ASK)).content[0].text.split()[3]
    answer = await client.messages.create(**ASK, stop_sequences=[f" {word}"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", f" {word}")


async def test_tokens_are_counted_without_the_engine(client, engine):
    members = {"model": "demo", "messages": USER, "system": "Be brief.", "tools": [TOOL]}
    before = len(engine._app.requests)
    counted = await client.messages.count_tokens(**members)
    assert len(engine._app.requests) == before
    answer = await client.messages.create(**members, max_tokens=1)
    assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_prewarm_fills_the_cache_and_says_nothing(client, stream):
    system = f"Prewarmed, {stream}. " * 60
    asked = ASK | {"system": system}
    answer = await client.messages.create(**asked | {"max_tokens": 0}, stream=stream)
    if stream:
        assert [event.type async for event in answer] == ["message_start", "message_delta", "message_stop"]
    else:
        assert (answer.content, answer.stop_reason, answer.usage.output_tokens) == ([], "max_tokens", 0)
    warm = (await client.messages.create(**asked)).usage
    assert warm.cache_read_input_tokens > 0.9 * (warm.input_tokens + warm.cache_read_input_tokens)


async def test_members_that_no_engine_takes_are_named_in_a_warning(claude, behind, scripted):
    tools = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "x\r\ny: z"}, TOOL]
    servers = [{"type": "url", "name": "parcels", "url": "https://mcp.example.com"}]
    more = {"tools": tools, "cache_salt": "mine", "mcp_servers": servers}
    answer = await behind.http.post(PATH, json=ASK | more)
    assert answer.headers["x-gateway-warning"] == (
        "left out: tools[0] (web_search_20250305), tools[1] (x??y??z), cache_salt (the gateway sets it), "
        "mcp_servers (engines call no servers)"
    )
    assert [tool["function"]["name"] for tool in sent(scripted)["tools"]] == ["weather"]


async def test_no_cache_hint_and_no_key_reaches_the_engine(behind, scripted):
    mark = {"cache_control": {"type": "ephemeral"}}
    block = {"type": "text", "text": "a"} | mark
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block]} | mark
    body = (
        ASK
        | mark
        | {"system": [block], "tools": [TOOL | mark], "messages": [{"role": "user", "content": [block, result]}]}
    )
    headers = {"x-api-key": "sk-ant-1", "authorization": "Bearer sk-ant-2"}
    assert (await behind.http.post(f"{PATH}?beta=true", json=body, headers=headers)).status_code == 200
    assert b"cache_control" not in scripted.received[-1].body
    assert not any("sk-ant" in value for _, value in scripted.received[-1].headers)
    assert scripted.received[-1].line == "POST /v1/chat/completions HTTP/1.1"


# A coding assistant


def assistants_request(turn: int) -> dict:
    """What a coding assistant sends in a turn of a conversation, of its usual form and size."""
    words = random.Random(5)

    def prose(length: int) -> str:
        return " ".join(
            words.choice(["order", "file", "tool", "never", "always", "user", "path"]) for _ in range(length)
        )

    mark = {"cache_control": {"type": "ephemeral"}}
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.332.a1b; cc_entrypoint=sdk-cli;"},
        {"type": "text", "text": "You are a coding assistant, and this is its system prompt. ."} | mark,
        {"type": "text", "text": prose(1200)} | mark,
    ]
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": False,
    }
    tools = [
        {
            "name": f"Tool{number}",
            "description": prose(300),
            "input_schema": schema | {"properties": {"a": {"type": "string"}}},
        }
        for number in range(12)
    ]
    tools[11]["defer_loading"] = True
    reminder = prose(900)
    messages = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": f"<system-reminder>{prose(60)}</system-reminder>"},
                {"type": "text", "text": "say hi"},
            ],
        },
        {"role": "system", "content": reminder if turn else [{"type": "text", "text": reminder}]},
    ]
    if turn:
        messages += [
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "The user greets.", "signature": "c2ln"},
                    {"type": "tool_use", "id": "toolu_1", "name": "Tool1", "input": {"a": 'echo "hi"\n'}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "hi", "is_error": False}],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]},
            {"role": "user", "content": [{"type": "text", "text": "and again"} | mark]},
        ]
    return {
        "model": "demo",
        "max_tokens": 32,
        "system": system,
        "tools": tools,
        "messages": messages,
        "stream": True,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": json.dumps({"device_id": "d", "account_uuid": "", "session_id": "s"})},
    }


async def test_the_second_turn_of_a_coding_assistant_is_cached(start_engine, start_gateway):
    engine = await start_engine()
    gateway = await start_gateway(engine)
    headers = SDK | {
        "anthropic-beta": "a-2025-01-01,b-2025-02-02",
        "x-api-key": "sk-test",
        "user-agent": "claude-cli/2.1.332",
    }
    with capture_logs() as logs:
        for turn in (0, 1):
            answer = await gateway.http.post(f"{PATH}?beta=true", json=assistants_request(turn), headers=headers)
            assert answer.status_code == 200, answer.text
            assert answer.text.rstrip().endswith('{"type":"message_stop"}')
    first, second = [line for line in logs if line["event"] == "request_settled"]
    assert (first["dialect"], first["parity"], second["parity"]) == ("messages", True, True)
    assert second["predicted_tokens"] == second["cached_tokens"] > 0.99 * first["prompt_tokens"]


@pytest.mark.parametrize("flavor", ["vllm", "sglang"])
async def test_tenants_do_not_share_a_prompt(start_engine, start_gateway, claude, flavor):
    engine = await start_engine(flavor=flavor, prompt_tokens_details=True)
    gateway = await start_gateway(engine, **sections(tenant("a"), tenant("b")))
    asked = ASK | {"system": "You answer questions about parcels. " * 40}
    reads = []
    for name in ("a", "a", "b"):
        answer = await claude(gateway, api_key=key(name)).messages.create(**asked)
        reads.append(answer.usage.cache_read_input_tokens)
    assert reads[0] == reads[2] == 0 < reads[1]


# Keys, limits and errors


async def test_both_headers_of_keys_count(start_engine, start_gateway, claude):
    gateway = await start_gateway(await start_engine(), **sections(tenant("a"), tenant("b")))
    with capture_logs() as logs:
        await claude(gateway, api_key=key("a")).messages.create(**ASK)
        await claude(gateway, auth_token=key("b")).messages.create(**ASK)
        both = {"x-api-key": key("a"), "authorization": f"Bearer {key('b')}"}
        assert (await gateway.http.post(PATH, json=ASK, headers=both)).status_code == 200
    assert [line["tenant"] for line in logs if line["event"] == "request_settled"] == ["a", "b", "b"]
    both = {"x-api-key": key("a"), "authorization": "Bearer wrong"}
    message = refused(await gateway.http.post(PATH, json=ASK, headers=both), 401, "authentication_error")
    assert "authorization, which counts where x-api-key is sent as well" in message
    refused(await gateway.http.post(PATH, json=ASK), 401, "authentication_error")
    refused(await gateway.http.post(COUNT, json=ASK, headers={"x-api-key": "wrong"}), 401, "authentication_error")
    refused(await gateway.http.get("/v1/models", headers=SDK), 401, "authentication_error")
    listed = await gateway.http.get("/v1/models", headers=SDK | {"x-api-key": key("a")})
    assert listed.json()["first_id"] == "demo"


async def test_limits_of_a_tenant_are_429_and_count_requests_for_counts(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), **sections(tenant("a", requests_per_second=0.01)))
    headers = {"x-api-key": key("a")}
    counted = await gateway.http.post(COUNT, json=ASK, headers=headers)
    assert (counted.status_code, counted.headers["x-ratelimit-remaining-requests"]) == (200, "0")
    for path in (PATH, COUNT):
        answer = await gateway.http.post(path, json=ASK, headers=headers)
        refused(answer, 429, "rate_limit_error")
        assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable", "529 Overloaded"])
async def test_an_engine_that_is_too_busy_is_an_overload(behind, scripted, claude, status):
    scripted.says(response(b'{"error":{"message":"Too much to do.","type":"x","code":1}}', status=status))
    with pytest.raises(anthropic.APIStatusError) as caught:
        await claude(behind).messages.create(**ASK)
    assert (caught.value.status_code, caught.value.body["error"]["type"]) == (529, "overloaded_error")
    assert int(caught.value.response.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    ("status", "expected", "kind"),
    [
        ("400 Bad Request", 400, "invalid_request_error"),
        ("500 Oops", 500, "api_error"),
        ("404 Not Found", 502, "api_error"),
    ],
)
async def test_an_engines_error_has_the_apis_shape(behind, scripted, status, expected, kind):
    problem = {"message": "`messages[1].content` is odd", "type": "BadRequestError", "param": "messages[1].content"}
    scripted.says(response(json.dumps({"error": problem}).encode(), status=status))
    answer = await behind.http.post(PATH, json=ASK | {"system": "s"})
    message = refused(answer, expected, kind)
    if expected < 502:
        assert message == "`messages[0].content` is odd"


async def test_no_replica_is_an_overload(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(fault="refuse"))
    answer = await gateway.http.post(PATH, json=ASK)
    refused(answer, 529, "overloaded_error")
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    ("body", "status", "kind", "said"),
    [
        (b"", 400, "invalid_request_error", "empty"),
        (b"[]", 400, "invalid_request_error", "object"),
        (b"{", 400, "invalid_request_error", "JSON"),
        (json.dumps(ASK | {"model": "other"}).encode(), 404, "not_found_error", "'other' does not exist"),
        (json.dumps(ASK | {"model": None}).encode(), 400, "invalid_request_error", "`model`"),
        (json.dumps(ASK | {"messages": []}).encode(), 400, "invalid_request_error", "`messages` is empty"),
        (json.dumps(ASK | {"stream": "yes"}).encode(), 400, "invalid_request_error", "`stream`"),
        (
            json.dumps(ASK | {"messages": [*USER, {"role": "user", "content": [{"type": "x"}]}]}).encode(),
            400,
            "invalid_request_error",
            "`messages[1].content[0].type`",
        ),
        (b'{"a":' * 600 + b"1" + b"}" * 600, 400, "invalid_request_error", "nested deeper"),
        (b" " * (16 * 2**20 + 1), 413, "request_too_large", "larger than"),
        (
            json.dumps(ASK | {"messages": [{"role": "user", "content": []}]}).encode(),
            400,
            "invalid_request_error",
            "`messages[0].content` must not be empty",
        ),
    ],
)
async def test_bad_bodies(gateway, body, status, kind, said):
    for path in (PATH, COUNT):
        answer = await gateway.send(body, path)
        assert said in refused(answer, status, kind)


async def test_wrong_methods_and_paths_have_the_apis_shape(gateway):
    for path in (PATH, COUNT, f"{PATH}/"):
        answer = await gateway.http.get(path)
        assert "use POST" in refused(answer, 405, "invalid_request_error")
        assert answer.headers["allow"] == "POST"
    refused(await gateway.http.post("/v1/messages/batches", json={}, headers=SDK), 404, "not_found_error")
    assert (await gateway.http.head("/")).status_code == 404


async def test_models_in_the_apis_shape(client, gateway):
    assert [model.id async for model in client.models.list(limit=1000)] == ["demo"]
    shown = await client.models.retrieve("demo")
    assert (shown.id, shown.type, shown.display_name, shown.max_input_tokens) == ("demo", "model", "demo", 32768)
    with pytest.raises(anthropic.NotFoundError):
        await client.models.retrieve("other")
    refused(await gateway.http.get("/v1/models?limit=0", headers=SDK), 400, "invalid_request_error")
    assert (await gateway.http.get("/v1/models")).json()["object"] == "list"


async def test_personal_data_is_reported_where_the_client_has_it(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), **sections(tenant("a", personal_data="block")))
    blocks = [{"type": "text", "text": text} for text in ("Be kind.", " Write to anna.smith@example.org.")]
    for path in (PATH, COUNT):
        answer = await gateway.http.post(path, json=ASK | {"system": blocks}, headers={"x-api-key": key("a")})
        assert "`system` holds personal data" in refused(answer, 400, "invalid_request_error")


# Streams that break


def delta(**members) -> bytes:
    return b"data: %b\n\n" % json.dumps({"model": "demo", "choices": [{"index": 0, "delta": members}]}).encode()


async def test_a_stream_that_breaks_inside_a_call_ends_in_an_error(behind, scripted, claude):
    call = {"index": 0, "id": "c", "function": {"name": "weather", "arguments": '{"ci'}}
    scripted.says(
        STREAM_HEAD, chunk(delta(role="assistant", content="")), chunk(delta(tool_calls=[call])), then_close=True
    )
    answer = await behind.http.post(PATH, json=ASK | {"stream": True, "tools": [TOOL]})
    last = answer.text.rstrip().rpartition("\n\n")[2]
    assert last.startswith("event: error\ndata: ")
    error = json.loads(last.partition("data: ")[2])
    assert (error["type"], error["error"]["type"]) == ("error", "api_error")
    assert "message_stop" not in answer.text
    assert "[DONE]" not in answer.text
    with pytest.raises(anthropic.APIStatusError):
        async with claude(behind).messages.stream(**ASK, tools=[TOOL]) as stream:
            await stream.get_final_message()


async def test_calls_that_an_engine_interleaves_come_one_after_the_other(behind, scripted, claude):
    pieces = [(0, "", "a"), (1, '{"city": "Ro', "b"), (0, '{"city":', None), (1, 'me"}', None), (0, ' "Bonn"}', None)]
    deltas = [
        delta(tool_calls=[{"index": index, "function": {"arguments": piece}} | ((named and {"id": named}) or {})])
        for index, piece, named in pieces
    ]
    scripted.says(STREAM_HEAD, *map(chunk, deltas), chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    async with claude(behind).messages.stream(**ASK, tools=[TOOL]) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_message()
    assert [(block.id, block.input) for block in final.content] == [("a", {"city": "Bonn"}), ("b", {"city": "Rome"})]
    of_blocks = [event.index for event in events if event.type.startswith("content_block_")]
    assert of_blocks == sorted(of_blocks)


async def test_a_call_that_is_whole_makes_way_for_the_next(behind, scripted, connect):
    arrived = asyncio.Event()

    async def answer(writer, received):
        for index in range(2):
            call = {"index": index, "id": f"c{index}", "function": {"name": "weather", "arguments": "{}"}}
            writer.write((b"" if index else STREAM_HEAD) + chunk(delta(tool_calls=[call])))
        await arrived.wait()
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    scripted.answer = answer
    connection = await connect(behind)
    await connection.send(post(PATH, json.dumps(ASK | {"stream": True}).encode()))
    async with asyncio.timeout(30):
        await connection.reader.readuntil(b'{"type":"content_block_stop","index":0}')
        await connection.reader.readuntil(b'"partial_json":"{}"')
        arrived.set()
        await connection.reader.readuntil(b"message_stop")


async def test_an_error_in_a_stream_is_the_apis(behind, scripted):
    error = b'data: {"error":{"message":"The engine is dead.","type":"InternalServerError","code":500}}\n\n'
    scripted.says(STREAM_HEAD, *map(chunk, (delta(content="a"), error, b"data: [DONE]\n\n")), b"0\r\n\r\n")
    answer = await behind.http.post(PATH, json=ASK | {"stream": True})
    assert answer.text.rstrip().rpartition("\n\n")[2].startswith("event: error\n")
    assert "The engine is dead." in answer.text


async def test_events_arrive_as_they_are_made(behind, scripted, connect):
    arrived = asyncio.Semaphore(0)

    async def answer(writer, received):
        writer.write(STREAM_HEAD)
        for number in range(3):
            writer.write(chunk(delta(content=f"w{number}")))
            await writer.drain()
            await arrived.acquire()
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    scripted.answer = answer
    connection = await connect(behind)
    await connection.send(post(PATH, json.dumps(ASK | {"stream": True}).encode()))
    async with asyncio.timeout(30):
        for number in range(3):
            await connection.reader.readuntil(b'"text":"w%d"}}\n\n' % number)
            arrived.release()
        await connection.reader.readuntil(b"message_stop")


async def test_a_client_that_leaves_ends_the_request(start_engine, start_gateway, connect):
    engine = await start_engine()
    gateway = await start_gateway(engine)
    held_answers(engine)
    connection = await connect(gateway)
    await connection.send(post(PATH, json.dumps(ASK).encode()))

    async def running(count: int) -> bool:
        return (await gateway.metrics()).value("gateway_replica_inflight") == count

    await eventually(lambda: running(1))
    connection.abort()
    await eventually(lambda: running(0))


async def test_a_reply_of_an_engine_without_usage_is_an_answer(behind, scripted):
    scripted.says(response(REPLY))
    answer = (await behind.http.post(PATH, json=ASK)).json()
    assert answer["content"] == [{"type": "text", "text": "ok"}]
    assert answer["usage"]["input_tokens"] > 0


async def test_what_an_engine_does_not_count_the_gateway_counts(behind, scripted, claude):
    pieces = [delta(role="assistant", content=""), *[delta(content="a")] * 3, b"data: [DONE]\n\n"]
    scripted.says(STREAM_HEAD, *map(chunk, pieces), b"0\r\n\r\n")
    async with claude(behind).messages.stream(**ASK) as stream:
        assert (await stream.get_final_message()).usage.output_tokens == 3


async def test_many_blocks_do_not_stop_others(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine())
    blocks = [{"type": "text", "text": "a"}] * 60_000
    body = json.dumps(ASK | {"messages": [{"role": "user", "content": blocks}]}).encode()
    small = 0

    async def others() -> None:
        nonlocal small
        while True:
            await gateway.http.get("/healthz")
            small += 1

    watch = asyncio.create_task(others())
    answer = await gateway.send(body, COUNT)
    watch.cancel()
    assert answer.status_code == 200
    assert answer.json()["input_tokens"] > 0
    assert small > 5
