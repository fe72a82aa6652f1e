"""The official OpenAI client, pointed at the gateway."""

import asyncio
import json

import openai
import pytest
from running_gateway import eventually

USER = [{"role": "user", "content": "Where is my order?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}


@pytest.fixture
def client(sdk, gateway):
    return sdk(gateway)


async def test_chat(client):
    answer = await client.chat.completions.create(model="demo", messages=USER, max_tokens=12)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12


async def test_stream_says_what_the_whole_answer_says(client):
    whole = await client.chat.completions.create(model="demo", messages=USER, max_tokens=40)
    stream = await client.chat.completions.create(model="demo", messages=USER, max_tokens=40, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert all(chunk.usage is None for chunk in chunks)


async def test_usage_of_a_stream_comes_for_who_asks(client):
    stream = await client.chat.completions.create(
        model="demo", messages=USER, max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


async def test_required_tool_is_called(client):
    answer = await client.chat.completions.create(model="demo", messages=USER, tools=[WEATHER], tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    assert isinstance(arguments["city"], str)
    assert isinstance(arguments["days"], int)


async def test_tool_call_streams_and_its_result_goes_back(client):
    stream = await client.chat.completions.create(
        model="demo", messages=USER, tools=[WEATHER], tool_choice="required", stream=True
    )
    calls = [call async for chunk in stream for call in chunk.choices[0].delta.tool_calls or []]
    arguments = "".join(call.function.arguments or "" for call in calls)
    assert json.loads(arguments).keys() == {"city", "days"}
    asked = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": calls[0].id, "type": "function", "function": {"name": "weather", "arguments": arguments}}
        ],
    }
    result = {"role": "tool", "tool_call_id": calls[0].id, "content": '{"sky": "clear"}'}
    answer = await client.chat.completions.create(model="demo", messages=[*USER, asked, result], tools=[WEATHER])
    assert answer.choices[0].message.content


async def test_logprobs(client):
    answer = await client.chat.completions.create(
        model="demo", messages=USER, max_tokens=4, logprobs=True, top_logprobs=3
    )
    tokens = answer.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == answer.choices[0].message.content
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in tokens)


async def test_two_choices(client):
    answer = await client.chat.completions.create(model="demo", messages=USER, n=2, max_tokens=30)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.content != answer.choices[1].message.content
    stream = await client.chat.completions.create(model="demo", messages=USER, n=2, max_tokens=30, stream=True)
    texts = ["", ""]
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in answer.choices]


async def test_stop_and_seed(client):
    free = await client.chat.completions.create(model="demo", messages=USER, max_tokens=40, seed=7)
    again = await client.chat.completions.create(model="demo", messages=USER, max_tokens=40, seed=7)
    other = await client.chat.completions.create(model="demo", messages=USER, max_tokens=40, seed=8)
    text = free.choices[0].message.content
    assert again.choices[0].message.content == text
    assert other.choices[0].message.content != text
    word = text.split()[3]
    cut = await client.chat.completions.create(model="demo", messages=USER, max_tokens=40, seed=7, stop=[f" {word}"])
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].message.content == text[: text.index(f" {word}")]


async def test_completions(client):
    answer = await client.completions.create(model="demo", prompt=["Once upon", "Never again"], max_tokens=8)
    assert [choice.index for choice in answer.choices] == [0, 1]
    stream = await client.completions.create(model="demo", prompt="Once upon", max_tokens=8, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == answer.choices[0].text


async def test_raw_response_shows_the_headers(client):
    raw = await client.chat.completions.with_raw_response.create(model="demo", messages=USER)
    assert raw.headers["x-gateway-replica"] == "r0"
    assert raw.parse().choices[0].message.content


async def test_models(client):
    listed = await client.models.list()
    assert [model.id for model in listed.data] == ["demo"]
    shown = await client.models.retrieve("demo")
    assert shown.id == "demo"
    assert shown.owned_by == "vllm"
    with pytest.raises(openai.NotFoundError, match="demo"):
        await client.models.retrieve("demo2")


async def test_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="gpt-9", messages=USER)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert "demo" in caught.value.message


async def test_mistakes_found_here_and_by_the_engine_are_bad_requests(client):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="demo", messages=[])
    assert caught.value.param == "messages"
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        await client.chat.completions.create(model="demo", messages=USER, max_tokens=-1)


@pytest.mark.parametrize(
    ("fault", "error", "status"),
    [
        ("429", openai.RateLimitError, 429),
        ("500", openai.InternalServerError, 500),
        ("die_before_first_byte", openai.InternalServerError, 502),
        ("garbage", openai.InternalServerError, 502),
    ],
)
async def test_engine_failures_raise_the_fitting_error(client, engine, fault, error, status):
    await engine.set_fault(fault)
    with pytest.raises(error) as caught:
        await client.chat.completions.create(model="demo", messages=USER)
    assert caught.value.status_code == status


async def test_the_clients_own_retries_get_through(sdk, gateway, engine):
    await engine.set_fault("die_before_first_byte:times=1")
    answer = await sdk(gateway, max_retries=2).chat.completions.create(model="demo", messages=USER)
    assert answer.choices[0].message.content


async def test_stream_that_breaks_raises(client, engine):
    await engine.set_fault("die_mid_stream=4")
    stream = await client.chat.completions.create(model="demo", messages=USER, max_tokens=40, stream=True)
    texts: list[str] = []

    async def read() -> None:
        async for chunk in stream:
            texts.append(chunk.choices[0].delta.content or "")

    with pytest.raises(openai.APIError, match="incomplete") as caught:
        await read()
    assert caught.value.code == "replica_disconnected"
    assert "".join(texts)


async def test_client_timeout_aborts_at_the_engine(sdk, start_engine, start_gateway):
    engine = await start_engine(decode_ms=100)
    gateway = await start_gateway(engine)
    client = sdk(gateway, timeout=1.5)
    with pytest.raises(openai.APITimeoutError):
        await client.chat.completions.create(
            model="demo", messages=USER, max_tokens=100, extra_body={"ignore_eos": True}
        )
    await eventually(lambda: engine.scheduler.totals.aborted == 1 and not engine.scheduler.running)
    await gateway.settled(1)


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelled_call_aborts_at_the_engine(sdk, start_engine, start_gateway, stream):
    engine = await start_engine(decode_ms=50)
    gateway = await start_gateway(engine)
    client = sdk(gateway)

    async def call() -> None:
        answer = await client.chat.completions.create(
            model="demo", messages=USER, max_tokens=200, stream=stream, extra_body={"ignore_eos": True}
        )
        async for _ in answer:
            pass

    task = asyncio.create_task(call())
    await eventually(lambda: engine.scheduler.running == 1)
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: engine.scheduler.totals.aborted == 1 and not engine.scheduler.running)
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_requests_total") == 1


async def test_synchronous_client(gateway):
    def ask() -> str:
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="sk-test") as client:
            stream = client.chat.completions.create(model="demo", messages=USER, max_tokens=9, stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await asyncio.to_thread(ask)
