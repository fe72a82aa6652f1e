import asyncio
import json

import httpx
import pytest
from patience import HANG_SECONDS

from gateway.simulator.config import EngineConfig
from gateway.simulator.faults import WITH_VALUE, Fault, FaultSpec

CHAT = "/v1/chat/completions"
BODY = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 6}


async def set_fault(client: httpx.AsyncClient, spec: str) -> None:
    response = await client.post("/simulator/fault", json={"spec": spec})
    assert response.status_code == 200, response.text


async def lines(client: httpx.AsyncClient) -> list[str]:
    """What arrives of a stream, and the name of the error that ends it."""
    got: list[str] = []
    try:
        async with client.stream("POST", CHAT, json=BODY | {"stream": True}) as response:
            async for line in response.aiter_lines():
                if line:
                    got.append(line)
    except httpx.HTTPError as error:
        got.append(type(error).__name__)
    return got


async def test_refuse_closes_the_socket_and_idle_connections_until_it_ends(start, connect):
    engine = await start()
    used = connect(engine)
    assert (await used.get("/health")).status_code == 200
    await engine.set_fault("refuse")
    await asyncio.sleep(0.02)
    for client in (used, connect(engine)):
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")
    await engine.set_fault("")
    assert (await used.post(CHAT, json=BODY)).status_code == 200


async def test_refuse_can_be_ended_over_the_connection_that_set_it(start, connect):
    engine = await start()
    client = connect(engine)
    await set_fault(client, "refuse")
    with pytest.raises(httpx.ConnectError):
        await connect(engine).get("/health")
    await set_fault(client, "")
    assert (await connect(engine).get("/health")).status_code == 200


async def test_refuse_lets_a_running_answer_end(start, connect):
    engine = await start(decode_ms=30)
    client = connect(engine)
    running = asyncio.create_task(client.post(CHAT, json=BODY))
    while not engine.scheduler.running:
        await asyncio.sleep(0.001)
    await engine.set_fault("refuse")
    assert (await running).status_code == 200
    with pytest.raises(httpx.TransportError):
        await client.get("/health")


async def test_an_engine_can_start_refusing(start, connect):
    engine = await start(fault="refuse")
    with pytest.raises(httpx.ConnectError):
        await connect(engine).get("/health")
    await engine.set_fault("")
    assert (await connect(engine).get("/health")).status_code == 200


async def test_hang_never_answers_and_ends_with_the_client(start, connect):
    engine = await start()
    client = connect(engine)
    await set_fault(client, "hang")
    with pytest.raises(httpx.ReadTimeout):
        await client.post(CHAT, json=BODY, timeout=httpx.Timeout(60, read=0.2))
    assert (await client.get("/health")).status_code == 200


async def test_slow_adds_its_seconds(start, connect):
    client = connect(await start())
    await set_fault(client, "slow=0.3")
    with pytest.raises(httpx.ReadTimeout):
        await client.post(CHAT, json=BODY, timeout=httpx.Timeout(60, read=0.15))
    assert (await client.post(CHAT, json=BODY)).status_code == 200


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_an_error_status_has_the_engines_shape(start, connect, status):
    client = connect(await start())
    await set_fault(client, str(status))
    response = await client.post(CHAT, json=BODY | {"stream": True})
    assert response.status_code == status
    assert response.json()["error"]["code"] == status


@pytest.mark.parametrize("stream", [False, True])
async def test_die_before_first_byte_closes_the_connection_after_the_request(start, connect, stream):
    engine = await start(record_requests=5)
    client = connect(engine)
    await set_fault(client, "die_before_first_byte")
    with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
        await client.post(CHAT, json=BODY | {"stream": stream})
    assert len(engine.requests) == 1


@pytest.mark.parametrize("events", [0, 1, 3])
async def test_die_mid_stream_sends_so_many_events_and_frees_the_rest(start, connect, events):
    engine = await start(decode_ms=5)
    client = connect(engine)
    await set_fault(client, f"die_mid_stream={events}")
    got = await lines(client)
    assert len(got) == events + 1
    assert all(line.startswith("data: {") for line in got[:-1])
    assert got[-1] == "RemoteProtocolError"
    async with asyncio.timeout(HANG_SECONDS):
        while engine.cache.free_blocks != engine.cache.usable_blocks:
            await asyncio.sleep(0.001)


async def test_die_mid_stream_cuts_a_whole_body_too(start, connect):
    client = connect(await start())
    await set_fault(client, "die_mid_stream=3")
    with pytest.raises(httpx.RemoteProtocolError, match="body"):
        await client.post(CHAT, json=BODY)


async def test_garbage_is_no_http(start, connect):
    client = connect(await start())
    await set_fault(client, "garbage")
    with pytest.raises(httpx.RemoteProtocolError):
        await client.post(CHAT, json=BODY)


async def test_invalid_json_comes_with_status_200(start, connect):
    client = connect(await start())
    await set_fault(client, "invalid_json")
    response = await client.post(CHAT, json=BODY)
    assert response.status_code == 200
    with pytest.raises(json.JSONDecodeError):
        response.json()
    first = (await lines(client))[0]
    with pytest.raises(json.JSONDecodeError):
        json.loads(first.removeprefix("data: "))


async def test_usage_can_be_missing(start, connect):
    client = connect(await start())
    await set_fault(client, "usage_missing")
    assert "usage" not in (await client.post(CHAT, json=BODY)).json()
    options = {"include_usage": True, "continuous_usage_stats": True}
    response = await client.post(CHAT, json=BODY | {"stream": True, "stream_options": options})
    assert "usage" not in response.text
    assert response.text.endswith("data: [DONE]\n\n")


async def test_a_fault_can_be_limited_in_times_rhythm_and_path(start, connect):
    client = connect(await start())

    async def statuses(count: int) -> list[int]:
        return [(await client.post(CHAT, json=BODY)).status_code for _ in range(count)]

    await set_fault(client, "500:times=2")
    assert await statuses(4) == [500, 500, 200, 200]
    await set_fault(client, "429:every=3")
    assert await statuses(6) == [200, 200, 429, 200, 200, 429]
    await set_fault(client, "500:every=2,times=1")
    assert await statuses(4) == [200, 500, 200, 200]
    await set_fault(client, "500:path=/metrics")
    assert await statuses(1) == [200]
    assert (await client.get("/metrics")).status_code == 500
    await set_fault(client, "500:path=*")
    assert (await client.get("/health")).status_code == 500
    await set_fault(client, "")
    assert await statuses(1) == [200]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("explode", "unknown fault 'explode'"),
        ("slow", "needs a value"),
        ("slow=x", "number"),
        ("slow=nan", "number"),
        ("hang=3", "takes no value"),
        ("die_mid_stream=1.5", "whole number"),
        ("500:times=0", "times"),
        ("500:every=x", "every"),
        ("500:often=3", "unknown option 'often'"),
        ("refuse:times=3", "refuse"),
        ("connect_hang:every=2", "connect_hang"),
        ("half_chunk=0.5", "whole number"),
        ("drip", "needs a value"),
    ],
)
async def test_a_bad_spec_is_refused_and_changes_nothing(start, connect, spec, said):
    client = connect(await start())
    await set_fault(client, "500")
    response = await client.post("/simulator/fault", json={"spec": spec})
    assert response.status_code == 400
    assert said in response.json()["error"]["message"]
    assert (await client.post(CHAT, json=BODY)).status_code == 500
    with pytest.raises(ValueError, match=r"fault|option"):
        EngineConfig(fault=spec)


def test_every_fault_has_a_spec():
    for fault in Fault:
        value = "=1" if fault in WITH_VALUE else ""
        assert FaultSpec.parse(fault + value).fault is fault


async def test_kill_resets_connections_and_start_brings_the_engine_back_warm(start, connect):
    engine = await start(decode_ms=20)
    port = engine.port
    client = connect(engine)
    await client.post(CHAT, json=BODY)
    running = asyncio.create_task(client.post(CHAT, json=BODY))
    while not engine.scheduler.running:
        await asyncio.sleep(0.001)
    await engine.kill()
    with pytest.raises(httpx.ReadError):
        await running
    with pytest.raises(httpx.ConnectError):
        await client.get("/health")
    assert engine.cache.free_blocks == engine.cache.usable_blocks
    await engine.start()
    assert engine.port == port
    assert (await client.get("/health")).status_code == 200


async def test_stop_lets_a_short_answer_end_and_cuts_a_long_one(start, connect):
    engine = await start(decode_ms=20)
    short = asyncio.create_task(connect(engine).post(CHAT, json=BODY))
    long = asyncio.create_task(connect(engine).post(CHAT, json=BODY | {"max_tokens": 900, "ignore_eos": True}))
    while engine.scheduler.running < 2:
        await asyncio.sleep(0.001)
    await engine.stop()
    assert (await short).status_code == 200
    with pytest.raises(httpx.TransportError):
        await long
    assert engine.cache.free_blocks == engine.cache.usable_blocks


async def raw(engine, *, stream: bool) -> tuple[bytes, str]:
    """What comes over a connection of its own within a moment, and how that ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
    body = json.dumps(BODY | {"stream": stream}).encode()
    got = b""
    try:
        writer.write(b"POST %b HTTP/1.1\r\nhost: e\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
        async with asyncio.timeout(3):
            while data := await reader.read(65536):
                got += data
    except ConnectionResetError:
        return got, "reset"
    except TimeoutError:
        return got, "open"
    else:
        return got, "closed"
    finally:
        writer.transport.abort()


END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("spec", "events", "ending"),
    [
        ("", 8, "open"),
        ("connect_hang", 0, "open"),
        ("connect_reset", 0, "reset"),
        ("hang", 0, "open"),
        ("reset", 0, "reset"),
        ("die_after_head", 0, "closed"),
        ("die_mid_stream=3", 3, "closed"),
        ("reset_mid_stream=3", 3, "reset"),
        ("hang_mid_stream=3", 3, "open"),
        ("half_chunk=3", 3, "closed"),
        ("garbage_mid_stream=3", 8, "open"),
        ("length_too_large", 8, "closed"),
        ("length_too_small", 8, "closed"),
        ("no_done", 7, "open"),
        ("die_at_end", 8, "closed"),
        ("hang_at_end", 8, "open"),
    ],
)
async def test_what_comes_of_a_stream(start, spec, events, ending):
    engine = await start(fault=spec)
    got, ended = await raw(engine, stream=True)
    assert ended == ending
    whole = [event for event in got.split(b"\n\n")[:-1] if b"data: " in event and b"garbage" not in event]
    # A reset may overtake what was sent before it.
    assert len(whole) == events or (ended == "reset" and len(whole) < events)
    assert (DONE in got) == (events == 8)
    assert got.endswith(END) == (spec in ("", "garbage_mid_stream=3", "no_done"))
    assert (b"this is no event" in got) == (spec == "garbage_mid_stream=3")
    assert (b"HTTP/1.1 200" in got) == (spec not in ("connect_hang", "connect_reset", "hang", "reset"))
    if spec == "half_chunk=3":
        size, _, part = got.rpartition(b"\r\n")
        assert 0 < len(part) < int(size.rpartition(b"\r\n")[2], 16)


@pytest.mark.parametrize(
    ("spec", "share", "ending"),
    [
        ("", 1.0, "open"),
        ("die_after_head", 0.0, "closed"),
        ("die_mid_stream=3", 0.5, "closed"),
        ("reset_mid_stream=3", 0.5, "reset"),
        ("hang_mid_stream=3", 0.5, "open"),
        ("half_chunk=3", 0.5, "closed"),
        ("length_too_large", 1.0, "closed"),
        ("length_too_small", 1.0, "closed"),
        ("die_at_end", 0.99, "closed"),
        ("hang_at_end", 0.99, "open"),
    ],
)
async def test_what_comes_of_a_whole_answer(start, spec, share, ending):
    engine = await start(fault=spec)
    got, ended = await raw(engine, stream=False)
    assert ended == ending
    head, _, body = got.partition(b"\r\n\r\n")
    assert is_json(body) == (share == 1)
    lengths = [int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length: ")]
    if spec in ("length_too_large", "length_too_small"):
        assert (len(body) < lengths[0]) == (spec == "length_too_large")
        assert len(body) != lengths[0]
    elif ended != "reset" and lengths:
        assert len(body) / lengths[0] == pytest.approx(share, abs=0.01)


def is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


async def test_answer_that_drips_is_the_same(start, connect):
    client = connect(await start())
    direct = (await client.post(CHAT, json=BODY)).json()["choices"]
    streamed = [line for line in await lines(client) if line.startswith("data: {")]
    await set_fault(client, "drip=0.001")
    assert (await client.post(CHAT, json=BODY)).json()["choices"] == direct
    dripped = [line for line in await lines(client) if line.startswith("data: {")]
    assert [json.loads(line[6:])["choices"] for line in dripped] == [
        json.loads(line[6:])["choices"] for line in streamed
    ]


async def test_stopped_process_goes_on_where_it_stopped(start, connect):
    engine = await start()
    idle = connect(engine)
    assert (await idle.get("/health")).status_code == 200
    await engine.set_fault("connect_hang")
    await asyncio.sleep(0.02)
    with pytest.raises(httpx.ReadTimeout):
        await idle.get("/health", timeout=httpx.Timeout(60, read=0.2))
    waiting = asyncio.create_task(connect(engine).post(CHAT, json=BODY))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await engine.set_fault("")
    assert (await waiting).status_code == 200
    await engine.set_fault("refuse")
    await engine.set_fault("connect_reset")
    with pytest.raises(httpx.TransportError):
        await connect(engine).get("/health")
    await engine.set_fault("")
    assert (await connect(engine).get("/health")).status_code == 200
