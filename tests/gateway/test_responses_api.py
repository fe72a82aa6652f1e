"""The Responses API over sockets, mostly by the official client: answers, chains, what is stored, and what fails."""

import asyncio
import gc
import json
import socket
import time

import openai
import pytest
from api_errors import problem
from patience import HANG_SECONDS
from raw_http import Connection, post
from running_gateway import eventually, held_answers, know_each_other
from scripted_engine import REPLY, STREAM_HEAD, chunk, response
from tenancy import SECRET, key, sections, tenant

from gateway.api.dialects import responses_dialect

PATH = "/v1/responses"
MAIL = "Write to anna.smith@example.org."
MIB = 1024 * 1024
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
NAMED = {"type": "function", "name": "weather"}
SHORT = {"model": "demo", "max_output_tokens": 8}


@pytest.fixture
def client(sdk, gateway):
    return sdk(gateway)


def prompts(engine):
    """The messages and tools of the last two requests that the engine got."""
    return [(sent["messages"], sent.get("tools")) for sent in sent_to(engine)[-2:]]


def delta(**members):
    """An event of a chat stream."""
    return chunk(b"data: " + json.dumps({"choices": [{"index": 0, "delta": members}]}).encode() + b"\n\n")


END = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def sent_to(engine):
    return [json.loads(request.body) for request in engine.requests if request.path.endswith("/chat/completions")]


# Create


async def test_an_answer_is_a_response_with_usage(client):
    answer = await client.responses.create(**SHORT, input="Hello.", instructions="Be brief.")
    assert answer.output_text
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.usage.output_tokens == 8
    assert answer.usage.total_tokens == answer.usage.input_tokens + 8
    again = await client.responses.create(**SHORT, input="Hello. " * 40)
    again = await client.responses.create(**SHORT, input="Hello. " * 40)
    details = again.usage.input_tokens_details
    assert details.cached_tokens > 0
    assert details.cached_tokens + details.cache_write_tokens == again.usage.input_tokens


async def test_a_stream_has_typed_events_in_order_and_no_end_mark(client, gateway):
    body = {**SHORT, "input": "Hello.", "stream": True}
    raw = (await gateway.send(json.dumps(body).encode(), PATH)).text
    assert "[DONE]" not in raw
    events = [event async for event in await client.responses.create(**body)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = list(dict.fromkeys(event.type.removeprefix("response.") for event in events))
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "incomplete"),
    ]
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == events[-1].response.output_text
    assert events[-1].response.usage.output_tokens == 8


async def test_a_tool_is_called_in_a_stream_and_its_result_goes_back(client):
    async with client.responses.stream(model="demo", input="Rain?", tools=[WEATHER], tool_choice=NAMED) as stream:
        final = await stream.get_final_response()
    (call,) = final.output
    assert call.type == "function_call"
    assert json.loads(call.arguments).keys() == {"city"}
    items = [
        {"role": "user", "content": "Rain?"},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "dry"},
    ]
    assert (await client.responses.create(**SHORT, input=items, tools=[WEATHER])).output_text


async def test_custom_and_namespaced_tools_are_called_by_their_own_names(client):
    space = {"type": "namespace", "name": "sky", "description": "The sky", "tools": [WEATHER]}
    custom = {"type": "custom", "name": "patch", "description": "Apply a patch"}
    answer = await client.responses.create(
        model="demo", input="Rain?", tools=[space], tool_choice={**NAMED, "name": "sky__weather"}
    )
    assert (answer.output[0].namespace, answer.output[0].name) == ("sky", "weather")
    body = {"model": "demo", "input": "Go.", "tools": [custom], "tool_choice": {"type": "custom", "name": "patch"}}
    answer = await client.responses.create(**body)
    assert (answer.output[0].type, answer.output[0].name) == ("custom_tool_call", "patch")
    events = [event async for event in await client.responses.create(**body, stream=True)]
    deltas = "".join(e.delta for e in events if e.type == "response.custom_tool_call_input.delta")
    assert deltas == events[-1].response.output[0].input == answer.output[0].input


async def test_what_cannot_be_had_here_is_left_out_with_a_warning(client):
    raw = await client.responses.with_raw_response.create(
        **SHORT, input="News?", tools=[{"type": "web_search"}, WEATHER], include=["reasoning.encrypted_content"]
    )
    assert raw.headers["x-gateway-warning"] == "tool web_search left out"


# Chains


async def test_a_chain_by_id_has_the_prompt_of_the_stateless_request(client, engine):
    first = await client.responses.create(model="demo", input="Rain?", tools=[WEATHER], tool_choice=NAMED)
    result = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "dry"}
    second = await client.responses.create(
        **SHORT, input=[result], previous_response_id=first.id, tools=[WEATHER], instructions="Be brief."
    )
    items = [{"role": "user", "content": "Rain?"}, *(each.model_dump(exclude_none=True) for each in first.output)]
    other = await client.responses.create(
        **SHORT, input=[*items, result], tools=[WEATHER], instructions="Be brief.", store=False
    )
    by_id, stateless = prompts(engine)
    assert by_id == stateless
    assert second.usage.input_tokens == other.usage.input_tokens
    assert second.previous_response_id == first.id
    # The chain goes on, and may fork.
    await client.responses.create(**SHORT, input="And now?", previous_response_id=second.id)
    assert [m["role"] for m in sent_to(engine)[-1]["messages"]] == ["user", "assistant", "tool", "assistant", "user"]
    await client.responses.create(**SHORT, input="Or?", previous_response_id=first.id)
    assert [m["role"] for m in sent_to(engine)[-1]["messages"]] == ["user", "assistant", "user"]


async def test_a_conversation_grows_by_every_response(client, engine):
    for number in range(3):
        answer = await client.responses.create(**SHORT, input=f"Question {number}", conversation="support-7")
        assert answer.conversation.id == "support-7"
    roles = [message["role"] for message in sent_to(engine)[-1]["messages"]]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    await client.responses.create(**SHORT, input="x", conversation={"id": "support-8"})
    assert len(sent_to(engine)[-1]["messages"]) == 1


async def test_an_item_of_a_stored_response_can_be_referred_to(client, engine):
    first = await client.responses.create(**SHORT, input="Hello.")
    question = (await client.responses.input_items.list(first.id)).data[0].id
    references = [{"id": question}, {"type": None, "id": question}, {"type": "item_reference", "id": question}]
    references.append({"id": first.output[0].id})
    await client.responses.create(**SHORT, input=[*references, {"role": "user", "content": "More."}])
    assert [m["content"] for m in sent_to(engine)[-1]["messages"]] == [
        *(["Hello."] * 3),
        first.output_text,
        "More.",
    ]
    for unknown in ("msg_1", first.output[0].id[:-1] + "9", f"msg_{32 * '0'}0000"):
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(**SHORT, input=[{"type": "item_reference", "id": unknown}])
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(**SHORT, input=[{"id": unknown}])


# What is stored


async def test_a_response_can_be_retrieved_listed_and_deleted(client):
    stream = await client.responses.create(
        **SHORT, input=[{"role": "user", "content": f"Part {n}"} for n in range(5)], stream=True
    )
    made = [event async for event in stream][-1].response
    found = await client.responses.retrieve(made.id)
    assert (found.output_text, found.usage) == (made.output_text, made.usage)
    page = await client.responses.input_items.list(made.id, limit=2)
    assert [item.content[0].text for item in page.data] == ["Part 4", "Part 3"]
    assert page.has_more
    assert [i.content[0].text async for i in client.responses.input_items.list(made.id, limit=2, order="asc")] == [
        f"Part {n}" for n in range(5)
    ]
    await client.responses.delete(made.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            await call(made.id)
    with pytest.raises(openai.NotFoundError) as refused:
        await client.responses.create(**SHORT, input="x", previous_response_id=made.id)
    assert refused.value.param == "previous_response_id"


async def test_nothing_is_kept_without_store(client):
    answer = await client.responses.create(**SHORT, input="Hello.", store=False)
    assert answer.store is False
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(answer.id)


async def test_another_tenants_id_is_as_unknown_as_any(sdk, engine, start_gateway):
    gateway = await start_gateway(engine, **sections(tenant("a"), tenant("b")))
    own, other = (sdk(gateway).with_options(api_key=key(name)) for name in "ab")
    made = await own.responses.create(**SHORT, input="Hello.", background=True)
    await own.responses.create(**SHORT, input="Hello.", conversation="c")
    seen = []
    for id_ in (made.id, f"resp_{32 * '0'}"):
        for call in (other.responses.retrieve, other.responses.delete, other.responses.cancel):
            with pytest.raises(openai.NotFoundError) as refused:
                await call(id_)
            seen.append(refused.value.body["message"].replace(id_, ""))
    assert len(set(seen)) == 1
    assert (await own.responses.retrieve(made.id)).id == made.id
    await other.responses.create(**SHORT, input="Hello.", conversation="c")
    assert len(sent_to(engine)[-1]["messages"]) == 1


async def test_responses_are_forgotten_after_their_time(sdk, engine, start_gateway):
    client = sdk(await start_gateway(engine, responses={"ttl_seconds": 1}))
    made = await client.responses.create(**SHORT, input="Hello.")

    async def forgotten():
        await asyncio.sleep(1.1)  # every look at it begins its time anew
        try:
            await client.responses.retrieve(made.id)
        except openai.NotFoundError:
            return True
        return False

    await eventually(forgotten)


async def test_a_full_store_is_said_in_a_header_and_refuses_what_needs_it(sdk, engine, start_gateway):
    gateway = await start_gateway(engine, responses={"max_mib": 1})
    client = sdk(gateway)
    long = "word " * 150_000
    raw = await client.responses.with_raw_response.create(**SHORT, input="Hello.")
    first = raw.parse()
    assert "x-gateway-warning" not in raw.headers
    async with asyncio.timeout(60):
        while "x-gateway-warning" not in raw.headers:
            items = [
                {"role": "user", "content": "Hi."},
                {"type": "reasoning", "summary": [], "encrypted_content": f"x{long[:400_000]}"},
            ]
            raw = await client.responses.with_raw_response.create(**SHORT, input=items)
            if "not stored" not in raw.headers.get("x-gateway-warning", ""):
                raw.headers.pop("x-gateway-warning", None)
    assert "response_store_full" in raw.headers["x-gateway-warning"]
    assert raw.parse().store is False
    answer = await gateway.http.post(PATH, json={**SHORT, "input": long[:500_000], "background": True})
    problem(answer, 503, "response_store_full")
    assert int(answer.headers["retry-after"]) > 1
    # What is there can be continued, and what is deleted makes room.
    await client.responses.create(**SHORT, input="More.", previous_response_id=first.id, store=False)


# Background


async def test_a_background_response_is_answered_at_once_and_goes_on(client, engine):
    released = held_answers(engine)
    made = await client.responses.create(**SHORT, input="Hello.", background=True)
    assert made.status == "in_progress"
    assert (await client.responses.retrieve(made.id)).status == "in_progress"
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(**SHORT, input="x", previous_response_id=made.id)
    assert refused.value.code == "response_not_complete"
    released.set()

    async def done():
        return (await client.responses.retrieve(made.id)).status == "incomplete"

    await eventually(done)
    found = await client.responses.retrieve(made.id)
    assert found.output_text
    assert found.usage.output_tokens == 8
    assert (await client.responses.cancel(made.id)).status == "incomplete"


async def test_a_background_response_can_be_cancelled(client, engine, gateway):
    released = held_answers(engine)
    made = await client.responses.create(**SHORT, input="Hello.", background=True)
    await eventually(lambda: is_one(gateway.in_flight()))
    assert (await client.responses.cancel(made.id)).status == "cancelled"
    await gateway.settled(1)
    assert (await client.responses.retrieve(made.id)).status == "cancelled"
    released.set()
    foreground = await client.responses.create(**SHORT, input="x")
    answer = await gateway.http.post(f"{PATH}/{foreground.id}/cancel")
    problem(answer, 400, "not_background")


async def is_one(count):
    return await count == 1


async def test_a_background_stream_goes_on_without_its_client(client, engine, gateway):
    released = held_answers(engine)
    stream = await client.responses.create(**SHORT, input="Hello.", background=True, stream=True)
    event = await anext(aiter(stream))
    await stream.close()
    released.set()

    async def done():
        return (await client.responses.retrieve(event.response.id)).status == "incomplete"

    await eventually(done)
    assert (await client.responses.retrieve(event.response.id)).output_text


async def test_a_cancelled_background_stream_ends_with_an_event(client, engine):
    held_answers(engine)
    stream = await client.responses.create(**SHORT, input="Hello.", background=True, stream=True)
    events = aiter(stream)
    begun = await anext(events)
    assert (await client.responses.cancel(begun.response.id)).status == "cancelled"
    rest = [event async for event in events]
    assert [event.sequence_number for event in rest] == list(range(1, len(rest) + 1))
    assert (rest[-1].type, rest[-1].response.status) == ("response.incomplete", "cancelled")
    assert (await client.responses.retrieve(begun.response.id)).status == "cancelled"


async def test_a_background_stream_does_not_wait_for_its_client(behind, scripted, sdk):
    pieces = [delta(content="x" * 4096)] * 4096
    scripted.says(STREAM_HEAD, *(b"".join(pieces[at : at + 64]) for at in range(0, len(pieces), 64)), END)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", behind.port))
    connection = Connection(*await asyncio.open_connection(sock=client, limit=4096))
    try:
        body = {**SHORT, "input": "Hello.", "background": True, "stream": True}
        await connection.send(post(PATH, json.dumps(body).encode()))
        begun = await connection.reader.readuntil(b'"status":"in_progress"')
        id_ = begun.partition(b'"id":"')[2].partition(b'"')[0].decode()
        responses = sdk(behind).responses

        async def done():  # the client reads nothing of it
            return (await responses.retrieve(id_)).status == "completed"

        await eventually(done)
        assert len((await responses.retrieve(id_)).output_text) == 4096 * 4096
    finally:
        connection.abort()


async def test_background_responses_are_bounded(sdk, engine, start_gateway):
    limits = {"max_background": 3, "max_background_tenant": 2}
    gateway = await start_gateway(engine, responses=limits, **sections(tenant("a"), tenant("b")))
    release = held_answers(engine)
    own, other = (sdk(gateway).with_options(api_key=key(name)) for name in "ab")
    for client in (own, own, other):
        await client.responses.create(**SHORT, input="Hello.", background=True)
    for client in (own, other):
        with pytest.raises(openai.RateLimitError) as refused:
            await client.responses.create(**SHORT, input="Hello.", background=True)
        assert refused.value.response.headers["retry-after"]
    release.set()


async def test_a_background_response_that_fails_says_why(client, scripted, sdk, behind):
    scripted.says(
        response(b'{"error":{"message":"No.","type":"BadRequestError","code":400}}', status="400 Bad Request")
    )
    client = sdk(behind)
    made = await client.responses.create(**SHORT, input="Hello.", background=True)

    async def failed():
        return (await client.responses.retrieve(made.id)).status == "failed"

    await eventually(failed)
    assert (await client.responses.retrieve(made.id)).error.message == "No."


# Failures


async def test_a_stream_that_breaks_inside_a_tools_json_ends_as_failed(scripted, behind, sdk):
    call = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": '{"ci'}}
    event = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
    scripted.says(STREAM_HEAD + chunk(b"data: " + json.dumps(event).encode() + b"\n\n"), then_close=True)
    stream = await sdk(behind).responses.create(**SHORT, input="Rain?", tools=[WEATHER], stream=True)
    events = [event async for event in stream]
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.code == "server_error"
    assert [event.type for event in events if event.type.endswith(".done")] == []
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output[0].arguments == '{"ci'
    assert events[-1].response.output[0].status == "incomplete"


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"instructions": MAIL, "input": "x"}, "instructions"),
        (
            {
                "instructions": "a",
                "input": [{"role": "developer", "content": "b"}, {"role": "system", "content": MAIL}],
            },
            "input[1].content",
        ),
    ],
)
async def test_what_is_refused_in_a_prompt_has_the_place_in_the_clients_body(
    start_engine, start_gateway, fields, place
):
    gateway = await start_gateway(await start_engine(), **sections(tenant("a", personal_data="block")))
    headers = {"authorization": f"Bearer {key('a')}"}
    answer = await gateway.http.post(PATH, json={**SHORT, **fields}, headers=headers)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == place


@pytest.mark.parametrize(
    ("status", "given", "expected"),
    [
        (
            "400 Bad Request",
            {"error": {"message": "Too long.", "type": "BadRequestError", "param": None, "code": 400}},
            400,
        ),
        ("404 Not Found", {"detail": "Not Found"}, 502),
        ("429 Too Many Requests", {"error": {"message": "Busy.", "type": "x"}}, 429),
    ],
)
async def test_an_engines_refusal_has_the_apis_shape(scripted, behind, status, given, expected):
    scripted.says(response(json.dumps(given).encode(), status=status))
    answer = await behind.http.post(PATH, json={**SHORT, "input": "Hello."})
    assert answer.status_code == expected
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert ("retry-after" in answer.headers) == (expected == 429)


async def test_an_answer_that_is_no_chat_completion_is_a_failed_response(scripted, behind):
    scripted.says(response(b'{"object":"list"}'))
    answer = (await behind.http.post(PATH, json={**SHORT, "input": "Hello."})).json()
    assert answer["status"] == "failed"


async def test_what_an_engine_does_not_count_the_gateway_counts(scripted, behind, sdk):
    client = sdk(behind)
    scripted.says(STREAM_HEAD, delta(role="assistant", content=""), *[delta(content="a")] * 3, END)
    last = [event async for event in await client.responses.create(**SHORT, input="Hello.", stream=True)][-1]
    usage = last.response.usage
    assert (usage.output_tokens, usage.total_tokens) == (3, usage.input_tokens + 3)
    assert usage.input_tokens > 0
    scripted.says(response(REPLY))
    assert (await client.responses.create(**SHORT, input="Hello.")).usage is None


HOSTILE = [
    ({}, "input"),
    ({"input": 5}, "input"),
    ({"input": []}, "input"),
    ({"input": [5]}, "input[0]"),
    ({"input": [{"type": 5}]}, "input[0].type"),
    ({"input": [{"type": "mcp_call"}]}, "input[0].type"),
    ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": [5]}]}, "input[0].content[0]"),
    (
        {"input": [{"role": "user", "content": "x"}, {"type": "function_call_output", "call_id": "c"}]},
        "input[1].call_id",
    ),
    ({"input": [{"type": "function_call", "name": "f", "arguments": {}, "call_id": "c"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
    ({"input": [{"type": "custom_tool_call", "name": "f", "input": 5, "call_id": "c"}]}, "input[0].input"),
    ({"input": [{"type": "reasoning", "summary": 5}]}, "input[0].summary"),
    ({"input": "x", "tools": 5}, "tools"),
    ({"input": "x", "tools": [5]}, "tools[0]"),
    ({"input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
    ({"input": "x", "tools": [{"type": "namespace", "name": "n", "tools": 5}]}, "tools[0].tools"),
    ({"input": "x", "tool_choice": "required"}, "tool_choice"),
    ({"input": "x", "tools": [WEATHER], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
    ({"input": "x", "text": {"format": {"type": "xml"}}}, "text.format"),
    ({"input": "x", "text": 5}, "text"),
    ({"input": "x", "reasoning": "high"}, "reasoning"),
    ({"input": "x", "instructions": 5}, "instructions"),
    ({"input": "x", "metadata": 5}, "metadata"),
    ({"input": "x", "store": "no"}, "store"),
    ({"input": "x", "store": False, "background": True}, "background"),
    ({"input": "x", "stream": 1}, "stream"),
    ({"input": "x", "max_output_tokens": 2**70}, "max_output_tokens"),
    ({"input": "x", "previous_response_id": 5}, "previous_response_id"),
    ({"input": "x", "conversation": {}}, "conversation"),
    ({"input": "x", "conversation": "c", "previous_response_id": "resp_1"}, "previous_response_id"),
    ({"input": "x", "prompt": {"id": "p"}}, "prompt"),
]


async def test_bad_requests_name_the_place_in_the_clients_body(gateway):
    for fields, param in HOSTILE:
        answer = await gateway.http.post(PATH, json={"model": "demo", **fields})
        problem(answer, 400, param=param)
    problem(await gateway.http.post(PATH, json={"model": "other", "input": "x"}), 404, "model_not_found", "model")
    problem(
        await gateway.http.post(PATH, json={**SHORT, "input": "x", "previous_response_id": "a" * 9000}),
        404,
        param="previous_response_id",
    )
    made = (await gateway.http.post(PATH, json={**SHORT, "input": "x"})).json()["id"]
    for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=msg_9"):
        answer = await gateway.http.get(f"{PATH}/{made}/input_items?{query}")
        problem(answer, 400, param=query.partition("=")[0])


async def test_numbers_and_texts_that_json_alone_allows_do_no_harm(gateway):
    for extra in (
        '"metadata": {"a": 123456789012345678901234567890}',
        '"user": "\\ud83d\\ude00"',
        '"metadata": {"\\u0000": "\\u0000"}',
    ):
        body = f'{{"model": "demo", "max_output_tokens": 2, "input": "x", {extra}}}'
        for stream in ("", ', "stream": true'):
            answer = await gateway.send(f"{body[:-1]}{stream}}}".encode(), PATH)
            assert answer.status_code == 200


async def test_a_websocket_offer_is_declined_at_once(gateway):
    offer = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-key": "eA==",
        "sec-websocket-version": "13",
    }
    problem(await gateway.http.get(PATH, headers=offer), 426, "websocket_not_served")
    plain = await gateway.http.get(PATH)
    problem(plain, 405, "method_not_allowed")
    assert plain.headers["allow"] == "POST"


async def test_compaction_is_refused_with_what_to_do_instead(gateway):
    answer = await gateway.http.post(f"{PATH}/compact", json={**SHORT, "input": "x"})
    problem(answer, 404, "unknown_path")
    item = await gateway.http.post(PATH, json={**SHORT, "input": [{"type": "compaction_trigger"}]})
    problem(item, 400, "unsupported_item", "input[0].type")
    for refused in (answer, item):
        assert "another name than OpenAI" in refused.json()["error"]["message"]


async def test_logs_and_metrics_know_it_as_a_chat_request_of_the_dialect(gateway):
    await gateway.http.post(PATH, json={**SHORT, "input": "x"})
    assert (await gateway.settled(1)).value("gateway_requests_total", status="200") == 1


# Agents


def codex(items):
    """A request as Codex sends it."""
    functions = [{**WEATHER, "name": f"tool_{n}", "description": "What it does. " * 30} for n in range(7)]
    space = {"type": "namespace", "name": "mcp", "description": "Further ones", "tools": [WEATHER]}
    return {
        "model": "demo",
        "instructions": "You are a coding agent. " * 300,
        "input": items,
        "tools": [*functions, space, {"type": "web_search", "external_web_access": False}],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0198-thread",
        "text": {"verbosity": "low"},
    }


def message(role, text):
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


async def test_the_second_turn_of_an_agent_is_predicted_and_cached(client, gateway):
    items = [message("developer", "Rules of this machine. " * 20), message("user", "Fix the test.")]
    spent = []
    for _ in range(2):
        raw = await client.responses.with_raw_response.create(
            **codex(items), extra_body={"client_metadata": {"session_id": "0198"}}
        )
        predicted = int(raw.headers["x-gateway-prefix-tokens"])
        final = [event async for event in raw.parse()][-1].response
        usage = final.usage
        spent.append((predicted, usage.input_tokens_details.cached_tokens, usage.input_tokens))
        said = [each.model_dump(exclude_none=True) for each in final.output]
        call = {"type": "function_call", "name": "weather", "namespace": "mcp", "arguments": "{}", "call_id": "c1"}
        done = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "ok"}]}
        items = [*items, *said, call, done, message("user", "And again.")]
    predicted, cached = spent[1][:2]
    assert predicted == cached
    assert predicted >= 0.99 * spent[0][2]
    assert raw.headers["x-gateway-warning"] == "tool web_search left out"


# Redis


@pytest.fixture
def shared_by(redis_server):
    return {"state": redis_server.url, "spaces": {"secret": SECRET}}


async def test_a_chain_outlives_a_restart_with_redis_and_is_encrypted_there(
    sdk, engine, start_gateway, shared_by, redis_server
):
    first = await start_gateway(engine, **shared_by)
    made = await sdk(first).responses.create(**SHORT, input="Xylophone.")
    await first.stop()
    second = sdk(await start_gateway(engine, **shared_by))
    assert (await second.responses.retrieve(made.id)).output_text == made.output_text
    await second.responses.create(**SHORT, input="More.", previous_response_id=made.id)
    assert [m["content"] for m in sent_to(engine)[-1]["messages"]] == ["Xylophone.", made.output_text, "More."]
    with redis_server.client() as stored:
        keys = stored.keys("pgw:ctx:*")
        assert len(keys) == 2
        assert all(b"Xylophone" not in stored.get(name) and 0 < stored.pttl(name) <= 86_400_000 for name in keys)
        assert all(made.id.encode() not in name for name in keys)
    await second.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await second.responses.retrieve(made.id)


async def test_parallel_turns_of_a_conversation_are_all_kept(sdk, engine, start_gateway, shared_by, redis_server):
    clients = [sdk(await start_gateway(engine, **shared_by)) for _ in range(2)]
    questions = [f"Question {number}" for number in range(10)]
    made = await asyncio.gather(
        *(
            clients[number % 2].responses.create(**SHORT, input=question, conversation="c")
            for number, question in enumerate(questions)
        )
    )
    for client, question in zip(clients, ("Later", "Last"), strict=True):
        await client.responses.create(**SHORT, input=question, conversation="c")
    asked = [m["content"] for m in sent_to(engine)[-1]["messages"] if m["role"] == "user"]
    assert (sorted(asked[:-2]), asked[-2:]) == (questions, ["Later", "Last"])
    with redis_server.client() as stored:
        (name,) = stored.keys("pgw:conversations:*")
        assert 0 < stored.pttl(name) <= 86_400_000
        kept = b"".join(field + value for field, value in stored.hgetall(name).items())
        assert not any(each.id[5:].encode() in kept for each in made)


async def test_a_background_response_whose_gateway_died_has_failed(sdk, engine, serve, start_gateway, shared_by):
    held_answers(engine)
    shared_by["relay"] = {"total_timeout_seconds": 3}
    first = await serve(engine.url, **shared_by)
    made = await sdk(first).responses.create(**SHORT, input="Hello.", background=True)
    first.process.kill()
    client = sdk(await start_gateway(engine, **shared_by))

    async def failed():
        return (await client.responses.retrieve(made.id)).status == "failed"

    await eventually(failed)
    assert (await client.responses.retrieve(made.id)).error.code == "server_error"
    assert (await client.responses.cancel(made.id)).status == "failed"


async def test_without_redis_stateless_requests_go_on(sdk, engine, start_gateway, shared_by, redis_server):
    gateway = await start_gateway(engine, **shared_by)
    client = sdk(gateway)
    made = await client.responses.create(**SHORT, input="Hello.")
    redis_server.kill()
    raw = await client.responses.with_raw_response.create(**SHORT, input="Hello.")
    assert "not stored" in raw.headers["x-gateway-warning"]
    assert raw.parse().output_text
    plain = await client.responses.with_raw_response.create(**SHORT, input="Hello.", store=False)
    assert "x-gateway-warning" not in plain.headers
    for fields in ({"previous_response_id": made.id}, {"background": True}, {"conversation": "c"}):
        answer = await gateway.http.post(PATH, json={**SHORT, "input": "x", **fields})
        problem(answer, 503, "response_store_unavailable")
        assert answer.headers["retry-after"]
    problem(await gateway.http.get(f"{PATH}/{made.id}"), 503, "response_store_unavailable")
    redis_server.start()

    async def stores_again():
        raw = await client.responses.with_raw_response.create(**SHORT, input="Hello.")
        return "x-gateway-warning" not in raw.headers

    await eventually(stores_again)


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"background": True}])
async def test_a_request_is_in_no_reference_cycle(gateway, cyclic, fields):
    for _ in range(2):
        await gateway.http.post(PATH, json={**SHORT, "input": "Hello.", **fields})
    await gateway.settled(2)
    await asyncio.sleep(0)
    assert cyclic() == {}


async def test_references_count_like_the_items_that_they_stand_for(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), server={"max_body_bytes": 100_000})
    first = (
        await gateway.http.post(PATH, json={"model": "demo", "input": "x " * 20_000, "max_output_tokens": 1})
    ).json()
    reference = {"type": "item_reference", "id": f"msg_{first['id'][5:]}i0000"}
    one = await gateway.http.post(PATH, json={"model": "demo", "input": [reference], "max_output_tokens": 1})
    assert one.status_code == 200, one.text
    many = await gateway.http.post(PATH, json={"model": "demo", "input": [reference] * 3, "max_output_tokens": 1})
    assert (many.status_code, many.json()["error"]["code"]) == (400, "chain_too_long")


async def test_a_request_id_that_a_client_repeats_names_no_response(gateway):
    named = {"x-request-id": "a" * 32}
    ask = {"model": "demo", "input": "One", "max_output_tokens": 1}
    first, second = [(await gateway.http.post(PATH, json=ask, headers=named)).json()["id"] for _ in range(2)]
    assert first != second
    assert (await gateway.http.get(f"{PATH}/{first}")).status_code == 200


async def test_a_tool_choice_that_is_no_name_is_refused(gateway):
    choice = {"type": "function", "name": ["x"]}
    answer = await gateway.http.post(PATH, json={"model": "demo", "input": "hi", "tool_choice": choice})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice.name")


async def test_a_conversation_goes_on_without_a_deleted_response(gateway):
    ask = {"model": "demo", "conversation": "conv_x", "max_output_tokens": 1}
    first = (await gateway.http.post(PATH, json=ask | {"input": "One"})).json()["id"]
    assert (await gateway.http.delete(f"{PATH}/{first}")).status_code == 200
    answer = await gateway.http.post(PATH, json=ask | {"input": "Two"})
    assert answer.status_code == 200, answer.text


async def test_an_engines_refusal_names_the_clients_member(gateway):
    answer = await gateway.http.post(PATH, json={"model": "demo", "input": "hi", "max_output_tokens": 0})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_output_tokens"), answer.text


@pytest.mark.parametrize("given", ["resp_0", "x" * 200, "<b>"])
async def test_an_id_that_is_none_is_refused_in_whole_words(gateway, given):
    answer = await gateway.http.get(f"{PATH}/{given}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert answer.json()["error"]["message"].startswith("The id is not known: ")


# Limits of stored responses

SHORT_ITEM = {"role": "user", "content": "x"}


async def test_requests_about_stored_responses_count_in_their_tenants_limits(engine, start_gateway):
    rate = {"requests_per_second": 0.01}
    gateway = await start_gateway(engine, **sections(tenant("a", **rate), tenant("b", concurrent=1)))
    gateway.http.headers["authorization"] = f"Bearer {key('a')}"
    made = (await gateway.http.post(PATH, json={**SHORT, "input": "Hello."})).json()["id"]
    for method, path in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
        answer = await gateway.http.request(method, f"{PATH}/{made}{path}")
        problem(answer, 429, "rate_limit_exceeded")
        assert int(answer.headers["retry-after"]) > 1
    assert (await gateway.metrics()).value("gateway_requests_total", status="429", endpoint=PATH) == 4
    # What asks for a running response, or ends it, is not refused because it runs.
    gateway.http.headers["authorization"] = f"Bearer {key('b')}"
    held_answers(engine)
    made = (await gateway.http.post(PATH, json={**SHORT, "input": "Hello.", "background": True})).json()["id"]
    problem(await gateway.http.get(f"{PATH}/{made}/input_items"), 429, "rate_limit_exceeded")
    assert (await gateway.http.get(f"{PATH}/{made}")).json()["status"] == "in_progress"
    assert (await gateway.http.post(f"{PATH}/{made}/cancel")).json()["status"] == "cancelled"

    async def over():
        return (await gateway.http.get(f"{PATH}/{made}/input_items")).status_code == 200

    await eventually(over)


async def test_asking_for_what_another_gateway_makes_counts_in_no_limit(engine, start_gateway, shared_by):
    shared_by |= sections(tenant("a", concurrent=1))
    one, other = [await start_gateway(engine, **shared_by) for _ in range(2)]
    for gateway in (one, other):
        gateway.http.headers["authorization"] = f"Bearer {key('a')}"
    await know_each_other(one, other)
    held_answers(engine)
    made = (await one.http.post(PATH, json={**SHORT, "input": "Hello.", "background": True})).json()["id"]

    async def counted():
        return (await other.http.get(f"{PATH}/{made}/input_items")).status_code == 429

    await eventually(counted)
    problem(await other.http.get(f"{PATH}/resp_{32 * '0'}"), 429, "rate_limit_exceeded")
    assert (await other.http.get(f"{PATH}/{made}")).json()["status"] == "in_progress"
    assert (await other.http.post(f"{PATH}/{made}/cancel")).json()["status"] == "cancelled"
    problem(await other.http.get(f"{PATH}/{made}"), 429, "rate_limit_exceeded")


async def test_the_memory_of_listed_items_is_limited(scripted, start_gateway):
    gateway = await start_gateway(scripted, server={"max_body_bytes": 2 * MIB, "max_held_mib": 24})
    made = await post_items(gateway, [SHORT_ITEM] * 30_000)
    listed = f"{PATH}/{made}/input_items?limit=1"
    answers = await asyncio.gather(*(gateway.http.get(listed) for _ in range(16)))
    refused = [answer for answer in answers if answer.status_code != 200]
    assert 0 < len(refused) < 16
    for answer in refused:
        problem(answer, 503, "memory_full")
    assert (await gateway.http.get(listed)).status_code == 200


async def post_items(gateway, items):
    body = json.dumps({"model": "demo", "max_output_tokens": 1, "input": items}).encode()
    answer = await gateway.send(body, PATH)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


async def longest_step(work):
    """The CPU seconds of the longest iteration of the event loop until some work is done, and its result."""
    task, longest = asyncio.ensure_future(work), 0.0
    gc.disable()  # it would look through all that other tests have left
    try:
        while not task.done():
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)
    finally:
        gc.enable()
    return longest, await task


async def test_long_inputs_are_listed_and_referred_to_in_portions(behind):
    made = await post_items(behind, [{"role": "user", "content": f"{n:060}"} for n in range(49_000)])
    step, answer = await longest_step(behind.http.get(f"{PATH}/{made}/input_items?limit=1"))
    page = answer.json()
    assert [item["content"][0]["text"] for item in page["data"]] == [f"{48_999:060}"]
    assert (page["first_id"], page["has_more"]) == (page["data"][0]["id"], True)
    assert step < 0.08
    references = [{"type": "item_reference", "id": f"msg_{made[5:]}i{n:04x}"} for n in range(49_001)]
    body = json.dumps({**SHORT, "input": references}).encode()
    step, answer = await longest_step(behind.send(body, PATH))
    problem(answer, 404, param="input[49000].id")
    assert step < 0.08


async def test_long_inputs_that_are_listed_at_once_are_read_one_after_another(behind):
    made = await post_items(behind, [{"role": "user", "content": f"{n:060}"} for n in range(49_000)])
    clients = [socket.create_connection(("127.0.0.1", behind.port)) for _ in range(24)]
    loop, asked = asyncio.get_running_loop(), f"GET {PATH}/{made}/input_items?limit=1 HTTP/1.1\r\nhost: x\r\n\r\n"
    await behind.http.get("/healthz")  # the connections are accepted
    for client in clients:
        client.sendall(asked.encode())
        client.setblocking(False)
    step, answers = await longest_step(asyncio.gather(*(loop.sock_recv(client, 1000) for client in clients)))
    for client in clients:
        client.close()
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    assert step < 0.08


async def test_every_page_of_a_list_follows_the_one_before(behind):
    items = [{"role": "user", "content": text} for text in ("a,b", "[{", 'c"}', "é", "e" * 100_000)]
    made = await post_items(behind, items)
    for order, expected in (("asc", items), ("desc", items[::-1])):
        found, query = [], f"limit=2&order={order}"
        for has_more in (True, True, False):
            page = (await behind.http.get(f"{PATH}/{made}/input_items?{query}")).json()
            found += [item["content"][0]["text"] for item in page["data"]]
            assert page["has_more"] == has_more
            query = f"limit=2&order={order}&after={page['last_id']}"
        assert found == [item["content"] for item in expected]
        page = (await behind.http.get(f"{PATH}/{made}/input_items?{query}")).json()
        assert page == {"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None}
    for after in (f"msg_{made[5:]}i0005", f"fc_{made[5:]}i0001", f"msg_{32 * '0'}i0001", f"msg_{made[5:]}0001"):
        problem(await behind.http.get(f"{PATH}/{made}/input_items?after={after}"), 400, param="after")


async def failed_at_redis(gateway):
    async def failed():
        return (await gateway.metrics()).value("gateway_state_errors_total", backend="redis") > 0

    await eventually(failed)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_background_response_is_stored_when_redis_is_back(
    engine, start_gateway, shared_by, redis_server, sdk, stream
):
    gateway = await start_gateway(engine, **shared_by)
    client, released = sdk(gateway), held_answers(engine)
    made = await client.responses.create(**SHORT, input="Hello.", background=True, stream=stream)
    events = aiter(made) if stream else None
    id_ = (await anext(events)).response.id if stream else made.id
    redis_server.hang()
    released.set()
    await failed_at_redis(gateway)
    if stream:
        last = [event async for event in events][-1]
        assert (last.type, last.response.store) == ("response.incomplete", False)
    redis_server.wake()

    async def stored():
        try:
            return (await client.responses.retrieve(id_)).status == "incomplete"
        except openai.InternalServerError:
            return False

    await eventually(stored)
    found = await client.responses.retrieve(id_)
    assert found.output_text
    assert found.store is True


@pytest.mark.parametrize("stream", [False, True])
async def test_a_background_response_that_fails_is_stored_when_redis_is_back(
    scripted, start_gateway, shared_by, redis_server, stream
):
    async def answer(writer, received):
        redis_server.hang()
        writer.close()

    scripted.answer = answer
    gateway = await start_gateway(scripted, **shared_by)
    made = await gateway.http.post(PATH, json={**SHORT, "input": "Hello.", "background": True, "stream": stream})
    assert made.status_code == (502 if stream else 200)
    await failed_at_redis(gateway)
    redis_server.wake()

    async def failed():
        found = await gateway.http.get(f"{PATH}/resp_{made.headers['x-request-id']}")
        return found.status_code == 200 and found.json()["status"] == "failed"

    await eventually(failed)


async def test_one_whose_stream_is_over_can_be_cancelled_before_it_is_stored(
    engine, start_gateway, shared_by, redis_server, sdk, monkeypatch
):
    monkeypatch.setattr(responses_dialect, "_STORE_PAUSES", (HANG_SECONDS,))
    gateway = await start_gateway(engine, **shared_by)
    client, released = sdk(gateway), held_answers(engine)
    events = aiter(await client.responses.create(**SHORT, input="Hello.", background=True, stream=True))
    id_ = (await anext(events)).response.id
    redis_server.hang()
    released.set()
    await failed_at_redis(gateway)
    assert [event async for event in events][-1].response.store is False
    redis_server.wake()
    answers = []

    async def cancelled():
        answers.append(await gateway.http.post(f"{PATH}/{id_}/cancel"))
        return answers[-1].status_code == 200

    await eventually(cancelled)
    assert {answer.status_code for answer in answers} <= {200, 503}
    assert (await client.responses.retrieve(id_)).status == "cancelled"


async def test_a_whole_answer_says_that_it_could_not_be_stored(engine, start_gateway, shared_by, redis_server):
    gateway = await start_gateway(engine, **shared_by)
    released = held_answers(engine)
    asked = asyncio.create_task(gateway.http.post(PATH, json={**SHORT, "input": "Hello."}))
    await eventually(lambda: is_one(gateway.in_flight()))
    redis_server.hang()
    released.set()
    answer = await asked
    redis_server.wake()
    assert (answer.json()["store"], answer.headers["x-gateway-warning"]) == (False, "not stored")
    assert answer.json()["output"]


async def test_what_an_unread_stream_repeats_of_its_request_is_counted(scripted, start_gateway):
    scripted.says(STREAM_HEAD, delta(content="x"), END)
    gateway = await start_gateway(scripted, server={"max_body_bytes": 4 * MIB, "max_held_mib": 24})
    body = json.dumps({**SHORT, "input": "Hello.", "instructions": "x" * 2 * MIB, "stream": True}).encode()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", gateway.port))
    connection = Connection(*await asyncio.open_connection(sock=client, limit=4096))
    try:
        await connection.send(post(PATH, body))
        await connection.reader.readuntil(b"response.created")
        problem(await gateway.send(body, PATH), 503, "memory_full")
    finally:
        connection.abort()
