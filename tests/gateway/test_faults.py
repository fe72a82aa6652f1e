"""Replicas that fail: what the client gets, which ones serve in their place, what is counted."""

import asyncio
import json

import pytest
from api_errors import problem
from levels import slow_except
from raw_http import post
from running_gateway import CHAT, eventually
from scripted_engine import STREAM_HEAD, chunk, response

BODY = b'{"model":"demo","messages":[{"role":"user","content":"Hi"}]}'
STREAM = b'{"model":"demo","stream":true,"messages":[{"role":"user","content":"Hi"}]}'
FAST = {"first_byte_timeout_seconds": 0.3, "chunk_timeout_seconds": 0.3}


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def body(request):
    return STREAM if request.param else BODY


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"max_tokens": -1}, 400), ({"max_tokens": 10**9}, 400), ({"n": 0}, 400), ({"logprobs": "yes"}, 400)],
    ids=str,
)
async def test_engine_refusal_passes_through_unchanged(gateway, engine, fields, status):
    through = await gateway.ask(**fields)
    sent = engine.requests[-1].body
    direct = await gateway.http.post(engine.url + CHAT, content=sent, headers={"content-type": "application/json"})
    assert through.status_code == direct.status_code == status
    assert through.content == direct.content
    assert through.headers["content-type"] == direct.headers["content-type"]
    assert through.headers["x-gateway-replica"] == "r0"
    assert "x-gateway-error" not in through.headers
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_requests_total", status=str(status)) == 1


@pytest.mark.parametrize("status", slow_except([400, 422, 429, 500, 503], (400, 429, 503)))
async def test_error_bodies_of_any_kind_pass_through(behind, scripted, body, status):
    for said, kind in [
        (b'{ "error" : "Unauthorized" }', "application/json"),
        (b"<h1>No</h1>", "text/html"),
        (b"", "x/y"),
    ]:
        scripted.says(response(said, "retry-after: 7", status=f"{status} Odd", content_type=kind))
        answer = await behind.send(body)
        assert (answer.status_code, answer.content) == (status, said)
        assert answer.headers["content-type"] == kind
        assert answer.headers["retry-after"] == "7"
    await behind.settled(3)


@pytest.mark.parametrize("status", [429, 529])
async def test_an_engines_overload_says_when_to_come_again(behind, scripted, body, status):
    scripted.says(response(b'{"error": {"message": "Busy."}}', status=f"{status} Busy"))
    answer = await behind.send(body)
    assert answer.status_code == status
    assert int(answer.headers["retry-after"]) >= 1


async def test_replica_dies_before_its_answer(gateway, engine, body):
    await engine.set_fault("die_before_first_byte")
    problem(await gateway.send(body), 502, "replica_disconnected")
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_requests_total", status="502") == 1
    assert metrics.value("gateway_failovers_total", stage="first_byte") == 1
    await engine.set_fault("")
    assert (await gateway.send(body)).status_code == 200


async def test_replica_dies_in_the_middle_of_a_whole_answer(gateway, engine):
    await engine.set_fault("die_mid_stream=1")
    problem(await gateway.send(BODY), 502, "replica_disconnected")
    await gateway.settled(1)


@pytest.mark.parametrize("fault", ["hang", "slow=5"])
async def test_replica_stays_silent(start_gateway, engine, fault, body):
    gateway = await start_gateway(engine, relay=FAST)
    await engine.set_fault(fault)
    problem(await gateway.send(body), 504, "replica_timeout")
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_requests_total", status="504") == 1


async def test_silence_ends_the_work_at_the_engine(start_gateway, start_engine, prose):
    engine = await start_engine(prefill_rate=50)
    gateway = await start_gateway(engine, relay=FAST)
    problem(await gateway.ask(prose(1, 500)), 504, "replica_timeout")
    await eventually(lambda: engine.scheduler.totals.aborted == 1)


async def test_replica_falls_silent_in_the_middle_of_a_stream(start_gateway, scripted):
    gateway = await start_gateway(scripted, relay={"chunk_timeout_seconds": 0.3})
    first = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    scripted.says(STREAM_HEAD + chunk(first + b'data: {"choi'), b"x", pause=3)
    answer = await gateway.send(STREAM)
    assert answer.status_code == 200
    reported, done = broken_off(answer.content, first)
    assert reported["code"] == "replica_timeout"
    assert done
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_failovers_total", stage="stream") == 1


async def test_stream_that_dies_before_its_first_event_never_began(gateway, engine):
    await engine.set_fault("die_mid_stream=0")
    problem(await gateway.send(STREAM), 502, "replica_disconnected")
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_failovers_total", stage="first_byte") == 1


@pytest.mark.parametrize("events", [1, 5])
async def test_replica_dies_in_the_middle_of_a_stream(gateway, engine, events):
    await engine.set_fault(f"die_mid_stream={events}")
    answer = await gateway.send(STREAM)
    assert answer.status_code == 200
    reported, done = broken_off(answer.content)
    assert reported.keys() == {"message", "type", "param", "code"}
    assert reported["code"] == "replica_disconnected"
    assert done
    assert answer.content.count(b"data: ") == events + 2
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_failovers_total") == 1


def broken_off(stream: bytes, beginning: bytes = b"") -> tuple[dict, bool]:
    """The error at a stream's end, and whether the end mark follows."""
    assert stream.startswith(beginning)
    *_, error, done, empty = stream.split(b"\n\n")
    assert empty == b""
    return json.loads(error.removeprefix(b"data: "))["error"], done == b"data: [DONE]"


async def test_stream_that_ends_within_a_chunk_is_broken(behind, scripted):
    scripted.says(STREAM_HEAD + b"ff\r\ndata: {}\n\ndata: {", then_close=True)
    reported, done = broken_off((await behind.send(STREAM)).content)
    assert reported["code"] == "replica_disconnected"
    assert done


async def test_answer_shorter_than_it_said_is_broken(behind, scripted):
    scripted.says(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{}", then_close=True)
    problem(await behind.send(BODY), 502, "replica_disconnected")


async def test_answer_that_ends_with_its_connection_is_whole(behind, scripted):
    scripted.says(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n", b"{}", then_close=True)
    answer = await behind.send(BODY)
    assert (answer.status_code, answer.content) == (200, b"{}")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00 this is no HTTP\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"\r\n" * 50,
        b"220 mail.example ESMTP\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 400_000,
    ],
    ids=["tls", "status", "empty lines", "smtp", "length", "endless head"],
)
async def test_replica_that_does_not_speak_http(start_gateway, scripted, garbage, body):
    gateway = await start_gateway(scripted, relay={"chunk_timeout_seconds": 0.3})
    scripted.says(garbage, then_close=True)
    problem(await gateway.send(body), 502)
    await gateway.settled(1)
    scripted.answer = scripted.reply
    assert (await gateway.send(BODY)).status_code == 200


async def test_interim_answers_are_passed_over(behind, scripted):
    scripted.says(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + response(b"{}"))
    answer = await behind.send(BODY)
    assert (answer.status_code, answer.content) == (200, b"{}")
    assert "link" not in answer.headers


@pytest.mark.parametrize(
    "said", [b"{}", b'{"usage":"none"}', b'{"usage":{"prompt_tokens":"x"}}', b'{"logprob":-Infinity}']
)
async def test_odd_objects_pass_through(behind, scripted, said):
    scripted.says(response(said))
    answer = await behind.send(BODY)
    assert (answer.status_code, answer.content) == (200, said)
    await behind.settled(1)


@pytest.mark.parametrize("said", [b'{"choices":[{"ind', b"", b"[]", b"7", b"<html>", b'{"a":"\xff"}'])
async def test_what_is_no_object_is_no_answer(behind, scripted, said):
    scripted.says(response(said))
    problem(await behind.send(BODY), 502, "replica_disconnected")
    metrics = await behind.settled(1)
    assert metrics.value("gateway_failovers_total", stage="first_byte") == 1


async def test_odd_events_pass_through(behind, scripted):
    stream = (
        b'data: [1]\n\ndata: {"usage":7,"choices":[]}\n\ndata: "usage"\n\ndata: {"x":NaN}\n\ndata: {"a":\ndata: 1}\n\n'
        b": ping\n\nevent: odd\r\ndata: {}\r\n\r\ndata:[DONE]\n\n"
    )
    scripted.says(STREAM_HEAD, chunk(stream), b"0\r\n\r\n")
    assert (await behind.send(STREAM)).content == stream
    await behind.settled(1)


@pytest.mark.parametrize(
    "garbled",
    [
        b'data: {"usage"\n\n',
        b"data: {}}\n\n",
        b"\x00\xff\n\n",
        b"<html>\n\n",
        b'data: {"a":"\xff"}\n\n',
        b"data: " + b"[" * 9999 + b"\n\n",
    ],
    ids=["cut", "brackets", "bytes", "html", "no-utf-8", "deep"],
)
async def test_what_is_no_event_breaks_the_stream_off(behind, scripted, garbled):
    first = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    scripted.says(STREAM_HEAD, chunk(first + garbled), chunk(b"data: {}\n\ndata: [DONE]\n\n"), b"0\r\n\r\n")
    reported, done = broken_off((await behind.send(STREAM)).content, first)
    assert reported["code"] == "replica_disconnected"
    assert done
    metrics = await behind.settled(1)
    assert metrics.value("gateway_failovers_total", stage="stream") == 1


async def test_end_mark_inside_of_a_text_ends_nothing(behind, scripted):
    text = b'data: {"choices":[{"index":0,"delta":{"content":"data: [DONE]"}}]}\n\n'
    scripted.says(STREAM_HEAD, chunk(text), b"0\r\n\r\n")
    reported, _ = broken_off((await behind.send(STREAM)).content, text)
    assert reported["code"] == "replica_disconnected"


async def test_usage_missing_harms_nothing(gateway, engine, body):
    await engine.set_fault("usage_missing")
    assert (await gateway.send(body)).status_code == 200
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_cached_tokens_total", evidence="confirmed") == 0


async def test_refusing_replica_is_replaced(start_engine, start_gateway, prose, body):
    engines = [await start_engine(), await start_engine()]
    gateway = await start_gateway(*engines)
    text = prose(5, 100)
    first = await gateway.ask(text)
    gone = first.headers["x-gateway-replica"]
    await engines[int(gone[1:])].set_fault("refuse")
    again = await gateway.ask(text, stream=b"stream" in body)
    assert again.status_code == 200
    assert again.headers["x-gateway-decision"] == "failover"
    assert again.headers["x-gateway-replica"] != gone
    metrics = await gateway.settled(2)
    assert metrics.value("gateway_failovers_total", stage="connect") == 1
    # It is left out for a while, so no other request waits for it.
    third = await gateway.ask(text)
    assert third.headers["x-gateway-decision"] == "warm"
    assert third.headers["x-gateway-replica"] != gone


async def test_each_replica_is_tried_once(start_engine, start_gateway, body):
    engines = [await start_engine(fault="die_after_head") for _ in range(3)]
    gateway = await start_gateway(*engines, relay={"retries": 5})
    problem(await gateway.send(body), 502, "replica_disconnected")
    assert [len(engine.requests) for engine in engines] == [1, 1, 1]
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_failovers_total", stage="first_byte") == 3


@pytest.mark.parametrize("retries", [0, 1])
async def test_no_more_replicas_are_tried_than_allowed(start_engine, start_gateway, retries):
    engines = [await start_engine(fault="die_after_head") for _ in range(3)]
    gateway = await start_gateway(*engines, relay={"retries": retries})
    problem(await gateway.ask(), 502, "replica_disconnected")
    assert sum(len(engine.requests) for engine in engines) == 1 + retries


async def test_failing_replica_is_left_out_for_a_while(start_engine, start_gateway, prose):
    engines = [await start_engine(), await start_engine()]
    gateway = await start_gateway(*engines)
    gone = (await gateway.ask(prose(5, 100))).headers["x-gateway-replica"]
    failing = engines[int(gone[1:])]
    await failing.set_fault("die_after_head")
    answers = [await gateway.ask(prose(5, 100)) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200] * 5
    assert len(failing.requests) == 2
    assert (await gateway.replicas())[gone]["state"] == "suspect"


async def test_replicas_that_are_all_busy_are_not_all_asked(start_engine, start_gateway, body):
    engines = [await start_engine(fault="429") for _ in range(4)]
    gateway = await start_gateway(*engines, relay={"retries": 3})
    answer = await gateway.send(body)
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == 429  # the engine's own words
    assert int(answer.headers["retry-after"]) >= 1
    assert sum(len(engine.requests) for engine in engines) == 2
    assert {replica["state"] for replica in (await gateway.replicas()).values()} <= {"ready", "suspect"}
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_failovers_total", stage="busy") == 2


async def test_fleet_that_fails_does_not_get_twice_the_load(start_engine, start_gateway):
    engines = [await start_engine(fault="503") for _ in range(3)]
    gateway = await start_gateway(*engines, relay={"retry_share": 0.2, "retry_floor": 10, "suspect_seconds": 0})
    answers = [await gateway.ask(f"Question {number}") for number in range(100)]
    assert {answer.status_code for answer in answers} == {503}
    sent = sum(len(engine.requests) for engine in engines)
    assert 110 <= sent <= 141
    metrics = await gateway.settled(100)
    assert metrics.value("gateway_failovers_total", stage="status") == sent


async def test_no_replica_is_up(start_engine, start_gateway, body):
    engine = await start_engine(fault="refuse")
    gateway = await start_gateway(engine)
    answer = await gateway.send(body)
    problem(answer, 503, "no_replica")
    assert int(answer.headers["retry-after"]) >= 1
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_requests_total", status="503") == 1


async def test_all_replicas_were_killed(start_engine, start_gateway, body):
    engines = [await start_engine() for _ in range(3)]
    gateway = await start_gateway(*engines)
    assert (await gateway.send(body)).status_code == 200
    for engine in engines:
        await engine.kill()
    answer = await gateway.send(body)
    assert answer.status_code == 503, answer.text
    assert int(answer.headers["retry-after"]) >= 1
    problem(answer, 503)
    await gateway.settled(2)


async def test_killed_replica_is_noticed_and_comes_back(start_engine, start_gateway):
    engine = await start_engine()
    gateway = await start_gateway(engine, relay={"health_interval_seconds": 0.05, "unhealthy_after": 2})
    assert (await gateway.http.get("/readyz")).status_code == 200
    await engine.kill()

    async def ready() -> bool:
        return (await gateway.http.get("/readyz")).status_code == 200

    async def gone() -> bool:
        return not await ready()

    await eventually(gone)
    problem(await gateway.send(BODY), 503, "no_replica")
    assert (await gateway.replicas())["r0"]["state"] == "ejected"
    await engine.start()
    await eventually(ready)
    assert (await gateway.send(BODY)).status_code == 200


async def test_engine_killed_with_streams_open(start_engine, start_gateway, connect):
    engine = await start_engine(decode_ms=30)
    gateway = await start_gateway(engine)
    clients = [await connect(gateway) for _ in range(6)]
    for client in clients:
        await client.send(post(CHAT, STREAM.replace(b"{", b'{"max_tokens":400,"ignore_eos":true,', 1)))
        await client.reader.readuntil(b"data: ")
    await engine.kill()
    for client in clients:
        await client.reader.readuntil(b"data: [DONE]\n\n")
    metrics = await gateway.settled(6)
    assert metrics.value("gateway_failovers_total", stage="stream") == 6


async def test_bursts_of_failures_leave_nothing_in_flight(start_engine, start_gateway):
    engines = [
        await start_engine(fault=fault) for fault in ("500:every=2", "die_before_first_byte:every=3", "429:every=2")
    ]
    gateway = await start_gateway(*engines, relay={"suspect_seconds": 0})
    answers = await asyncio.gather(*(gateway.ask(f"Question {number}", stream=number % 2 == 0) for number in range(60)))
    assert {answer.status_code for answer in answers} <= {200, 429, 500, 502}
    metrics = await gateway.settled(60)
    assert metrics.value("gateway_requests_total") == 60


async def test_burst_fails_no_request_as_long_as_one_replica_is_healthy(start_engine, start_gateway):
    engines = [await start_engine(fault=fault) for fault in ("503:every=2", "die_after_head:every=3", "reset:every=2")]
    gateway = await start_gateway(*engines, await start_engine(), relay={"suspect_seconds": 0, "retries": 3})
    answers = await asyncio.gather(*(gateway.ask(f"Question {number}", stream=number % 2 == 0) for number in range(60)))
    assert {answer.status_code for answer in answers} == {200}
    metrics = await gateway.settled(60)
    assert metrics.value("gateway_requests_total", status="200") == 60
    assert metrics.value("gateway_failovers_total") > 0


@pytest.mark.parametrize(("fault", "seen"), [("429", 0), ("503", 0), ("garbage", 0), ("500", 3)])
async def test_replica_that_fails_at_once_does_not_draw_requests(start_engine, start_gateway, fault, seen):
    failing, well = await start_engine(fault=fault), await start_engine()
    gateway = await start_gateway(failing, well)
    answers = [await gateway.ask(f"Question {number}") for number in range(30)]
    assert sum(answer.status_code != 200 for answer in answers) <= seen
    assert len(failing.requests) <= max(seen, 2)


async def test_replica_is_not_blamed_for_a_client_that_does_not_read(start_gateway, scripted, connect):
    gateway = await start_gateway(scripted, relay={"chunk_timeout_seconds": 0.3})
    event = b'data: {"x":"' + b"y" * 200_000 + b'"}\n\n'
    scripted.says(STREAM_HEAD, *([chunk(event)] * 100), chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n")
    client = await connect(gateway)
    await client.send(post(CHAT, STREAM))
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_failovers_total") == 0
    assert (await gateway.replicas())["r0"]["state"] == "ready"
