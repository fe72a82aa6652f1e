"""How long a request may take: `x-request-timeout`, and `relay.total_timeout_seconds` for all."""

import asyncio
import json

import pytest
from api_errors import problem
from running_gateway import CHAT, eventually
from scripted_engine import STREAM_HEAD, chunk

SHORT = {"x-request-timeout": "1.0"}
LONG = {"max_tokens": 5000, "ignore_eos": True}
NO_LIMIT = {"first_byte_timeout_seconds": 60, "chunk_timeout_seconds": 60}


@pytest.mark.parametrize(
    "value", ["", "0", "0.0", "-1", "+1", "soon", "1e3", "inf", "nan", "1_0", "1,5", "5s", "1.", ".5", "9" * 10, "٣"]
)
async def test_what_is_no_time_is_refused(gateway, engine, value):
    answer = await gateway.http.post(
        CHAT,
        json={"model": "demo", "messages": [{"role": "user", "content": "Hi"}]},
        headers=[(b"x-request-timeout", value.encode())],
    )
    assert "seconds" in problem(answer, 400, "invalid_header", "x-request-timeout")
    assert not engine.requests


@pytest.mark.parametrize("value", ["1", "30", "2.5", "999999999"])
async def test_time_that_suffices_changes_nothing(behind, scripted, value):
    assert (await behind.ask(headers={"x-request-timeout": value})).status_code == 200
    assert scripted.received[0].values("x-request-timeout") == [value]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_time_over_while_the_prompt_is_computed(start_engine, start_gateway, prose, stream):
    engine = await start_engine(prefill_rate=50)
    gateway = await start_gateway(engine)
    answer = await gateway.ask(prose(1, 500), stream=stream, headers=SHORT)
    reported = problem(answer, 504, "deadline_exceeded")
    assert "x-request-timeout" in reported
    assert answer.json()["error"]["type"] == "timeout_error"
    await eventually(lambda: engine.scheduler.totals.aborted == 1)
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_requests_total", status="504") == 1


async def test_time_over_while_a_whole_answer_is_written(start_engine, start_gateway):
    engine = await start_engine(decode_ms=20)
    gateway = await start_gateway(engine)
    problem(await gateway.ask(**LONG, headers=SHORT), 504, "deadline_exceeded")
    await eventually(lambda: engine.scheduler.totals.aborted == 1)
    await gateway.settled(1)


async def test_time_over_in_the_middle_of_a_stream(start_engine, start_gateway):
    engine = await start_engine(decode_ms=20)
    gateway = await start_gateway(engine)
    answer = await gateway.ask(**LONG, stream=True, headers=SHORT)
    assert answer.status_code == 200
    *events, error, done, empty = answer.text.split("\n\n")
    assert events
    reported = json.loads(error.removeprefix("data: "))["error"]
    assert (reported["code"], reported["type"]) == ("deadline_exceeded", "timeout_error")
    assert (done, empty) == ("data: [DONE]", "")
    await eventually(lambda: engine.scheduler.totals.aborted == 1)
    await gateway.settled(1)


async def test_steady_drip_does_not_outlast_the_time(behind, scripted):
    async def drip(writer, received):
        writer.write(STREAM_HEAD)
        while not writer.is_closing():
            writer.write(chunk(b'data: {"choices":[]}\n\n'))
            await writer.drain()
            await asyncio.sleep(0.02)

    scripted.answer = drip
    answer = await behind.ask(stream=True, headers=SHORT)
    assert '"code":"deadline_exceeded"' in answer.text
    await behind.settled(1)


async def test_official_client_sees_it(sdk, start_engine, start_gateway):
    engine = await start_engine(decode_ms=20)
    client = sdk(await start_gateway(engine))
    stream = await client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Go on."}],
        stream=True,
        extra_headers=SHORT,
        extra_body=LONG,
    )
    with pytest.raises(Exception, match="incomplete") as caught:
        [chunk async for chunk in stream]
    assert caught.value.code == "deadline_exceeded"


@pytest.mark.parametrize("asked", [None, "60"])
async def test_the_configured_time_holds_for_all(start_engine, start_gateway, asked):
    engine = await start_engine(decode_ms=20)
    gateway = await start_gateway(engine, relay={"total_timeout_seconds": 0.4})
    headers = {"x-request-timeout": asked} if asked else None
    problem(await gateway.ask(**LONG, headers=headers), 504, "deadline_exceeded")
    await gateway.settled(1)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_replica_is_not_blamed_for_a_short_time(start_engine, start_gateway, stream):
    engines = [await start_engine(fault="hang") for _ in range(2)]
    gateway = await start_gateway(*engines, relay=NO_LIMIT)
    problem(await gateway.ask(stream=stream, headers=SHORT), 504, "deadline_exceeded")
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_failovers_total") == 0
    assert sum(len(engine.requests) for engine in engines) == 1
    assert {replica["state"] for replica in (await gateway.replicas()).values()} == {"ready"}


async def test_one_time_holds_for_all_attempts(start_engine, start_gateway):
    engines = [await start_engine(fault="hang") for _ in range(3)]
    gateway = await start_gateway(*engines, relay=NO_LIMIT | {"first_byte_timeout_seconds": 1.0})
    problem(await gateway.ask(headers={"x-request-timeout": "1.7"}), 504, "deadline_exceeded")
    assert sum(len(engine.requests) for engine in engines) == 2
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_failovers_total", stage="first_byte") == 1


async def test_time_over_while_tokens_are_waited_for(start_engine, start_gateway):
    engine = await start_engine(fault=f"hang:path={CHAT}/render")
    gateway = await start_gateway(engine, model={"tokenizer": "engine"}, encode={"engine_timeout_seconds": 30})
    problem(await gateway.ask(headers=SHORT), 504, "deadline_exceeded")
    assert [request.path for request in engine.requests] == [f"{CHAT}/render"]
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_requests_total", status="504") == 1
    await engine.set_fault("")
    assert (await gateway.ask(headers={"x-request-timeout": "20"})).status_code == 200


async def test_time_that_is_over_at_once_affects_no_other_request(behind):
    problem(await behind.ask(headers={"x-request-timeout": "0.000001"}), 504, "deadline_exceeded")
    assert (await behind.ask()).status_code == 200
    await behind.settled(2)
    assert (await behind.replicas())["r0"]["state"] == "ready"
