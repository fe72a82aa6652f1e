"""What clients, the gateway and other replicas notice of a replica that sends too much, or what cannot be right."""

import asyncio
import contextlib
import json
from http import HTTPStatus

import httpx
import pytest
import structlog
from api_errors import problem
from patience import HANG_SECONDS
from raw_http import post
from running_gateway import CHAT, RunningGateway, eventually, settings_for
from scripted_engine import STREAM_HEAD, ScriptedEngine, chunk, response

from gateway.candidates import CandidateFinder
from gateway.engines import samples
from gateway.http_client.connection import Connection
from gateway.proxy import response as answer_module
from gateway.proxy.sse import EventFilter
from gateway.telemetry.metrics import MetricsObserver

MIB = 2**20
BODY = b'{"model":"demo","messages":[{"role":"user","content":"Hello."}]}'
STREAM = BODY[:-1] + b',"stream":true}'
METRICS = 'vllm:num_requests_running{engine="0"} 0\nvllm:num_requests_waiting{engine="0"} 0\n'


@pytest.fixture
async def engines(closing):
    """Two scripted ones."""
    both = [ScriptedEngine(), ScriptedEngine()]
    for engine in both:
        await engine.start()
        closing.push_async_callback(engine.stop)
    return both


@pytest.fixture
def small(monkeypatch):
    """Responses above 256 KiB are large."""
    monkeypatch.setattr(answer_module, "_MAX_HELD_BYTES", 256 * 1024)


def large(size: int, **usage: object) -> bytes:
    """A response body of so many bytes. The usage stands in the middle, as vLLM has it with ``prompt_logprobs``."""
    counts = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8} | usage
    head = b'{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":'
    said = json.dumps('"usage":{"prompt_tokens":99999}').encode()
    return head + said + b'}}],"usage":' + json.dumps(counts).encode() + b',"prompt_logprobs":"' + b"x" * size + b'"}'


async def states(gateway: RunningGateway) -> set[str]:
    return {replica["state"] for replica in (await gateway.replicas()).values()}


# Very small pieces


class Turns:
    """Counts something per turn of the event loop.

    Attributes:
        most: The greatest count of one turn.
    """

    def __init__(self):
        self.most = self._count = 0
        self._loop = asyncio.get_running_loop()
        self._handle = None

    def count(self):
        self._count += 1
        self.most = max(self.most, self._count)
        if self._handle is None:
            self._handle = self._loop.call_soon(self._end)

    def _end(self):
        self._count = 0
        self._handle = None


EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def single_bytes(body):
    return b"".join(chunk(body[at : at + 1]) for at in range(len(body))) + chunk(b"")


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "JSON"])
async def test_chunks_of_one_byte_are_parsed_in_portions_and_passed_on_whole(scripted, behind, monkeypatch, streamed):
    body = EVENT % (b"x" * 1000) * 200 + DONE if streamed else large(200_000)
    head = STREAM_HEAD if streamed else STREAM_HEAD.replace(b"text/event-stream", b"application/json")
    scripted.says(head + single_bytes(body))
    turns = Turns()
    on_body = Connection.on_body
    monkeypatch.setattr(Connection, "on_body", lambda self, data: turns.count() or on_body(self, data))
    answer = await behind.send(STREAM if streamed else BODY)
    assert (answer.status_code, answer.content) == (200, body)
    assert 100 < turns.most <= 2 * 4096


async def test_events_of_one_byte_are_filtered_in_portions(scripted, behind, monkeypatch):
    body = b":\n\n" * 50_000 + EVENT % b"x" + DONE
    scripted.says(STREAM_HEAD + chunk(body) + chunk(b""))
    turns = Turns()
    read = EventFilter._read
    monkeypatch.setattr(EventFilter, "_read", lambda self, event: turns.count() or read(self, event))
    answer = await behind.send(STREAM)
    assert (answer.status_code, answer.content) == (200, body)
    assert 100 < turns.most <= 4096


async def test_an_event_of_very_many_lines_ends_the_stream(scripted, behind):
    scripted.says(STREAM_HEAD + chunk(EVENT % b"x") + chunk(b"id\n" * 5000 + b"\n" + DONE) + chunk(b""))
    answer = await behind.send(STREAM)
    assert b"replica_disconnected" in answer.content


# Large responses


@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "with a length"])
async def test_a_response_too_large_to_hold_is_computed_once_and_passed_on(engines, start_gateway, chunked):
    gateway = await start_gateway(*engines)
    whole = large(66 * MIB)
    head = response(b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
    for engine in engines:
        engine.says(*(head, chunk(whole), chunk(b"")) if chunked else (response(whole),))
    answer = await gateway.send(BODY)
    assert answer.status_code == 200
    assert answer.content == whole
    assert answer.headers["x-gateway-replica"] in ("r0", "r1")
    assert answer.headers.get("content-length") == (None if chunked else str(len(whole)))
    assert sum(len(engine.received) for engine in engines) == 1
    assert await states(gateway) == {"ready"}
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_failovers_total") == 0
    assert metrics.value("gateway_requests_total", status="200") == 1


async def test_the_usage_of_a_large_response_is_found(scripted, behind, small):
    scripted.says(response(large(MIB, prompt_tokens_details={"cached_tokens": 5})))
    assert (await behind.send(BODY)).status_code == 200
    metrics = await behind.settled(1)
    assert metrics.value("gateway_cached_tokens_total", evidence="confirmed") == 5


async def test_a_large_response_that_breaks_off_is_seen_to_be_cut(engines, start_gateway, small):
    gateway = await start_gateway(*engines)
    for engine in engines:
        engine.says(response(large(MIB))[: 3 * MIB // 4], then_close=True)
    with pytest.raises(httpx.RemoteProtocolError):
        await gateway.send(BODY)
    assert sum(len(engine.received) for engine in engines) == 1
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_failovers_total", stage="stream") == 1


@pytest.mark.parametrize("status", [400, 500])
async def test_a_large_error_is_passed_on_as_well(scripted, behind, small, status):
    said = b'{"error":"' + b"x" * MIB + b'"}'
    scripted.says(response(said, status=f"{status} Odd"))
    answer = await behind.send(BODY)
    assert (answer.status_code, answer.content) == (status, said)
    assert len(scripted.received) == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_a_large_refusal_goes_to_another_replica(engines, start_gateway, small, status):
    gateway = await start_gateway(*engines, placement={"policy": "round_robin"})
    engines[0].says(response(b"x" * MIB, status=f"{status} Odd"))
    for _ in range(2):
        assert (await gateway.send(BODY)).status_code == 200


async def test_a_client_that_does_not_read_stops_a_large_response(scripted, behind, small, connect):
    written = 0

    async def endless(writer, received):
        nonlocal written
        writer.transport.set_write_buffer_limits(high=0)
        writer.write(response(b"").replace(b"content-length: 0", b"transfer-encoding: chunked"))
        for _ in range(1024):
            writer.write(chunk(b"x" * 2**16))
            await writer.drain()
            written += 2**16

    scripted.answer = endless
    client = await connect(behind)
    await client.send(post(CHAT, BODY))

    async def stands_still() -> bool:
        before = written
        await asyncio.sleep(0.5)
        return 0 < before == written

    await eventually(stands_still)
    assert written < 32 * MIB  # what the gateway holds, and the sockets' buffers
    client.abort()


@pytest.mark.parametrize("stream", [BODY, STREAM], ids=["whole", "stream"])
async def test_what_begins_as_a_large_json_is_passed_on_to_its_client(scripted, start_gateway, small, stream):
    gateway = await start_gateway(scripted, relay={"resume": True})
    scripted.says(response(large(MIB)))
    answer = await gateway.send(stream)
    assert (answer.status_code, answer.content) == (200, large(MIB))
    assert len(scripted.received) == 1


# Statuses and numbers


@pytest.mark.parametrize("status", ["600 Odd", "999 Odd", "000 Odd", "099 Odd", "abc", "101 Switching Protocols"])
async def test_a_status_that_is_none_is_the_replica_s_failure(scripted, behind, status):
    scripted.says(response(b"{}", status=status))
    problem(await behind.send(BODY), 502, "replica_disconnected")
    metrics = await behind.settled(1)
    assert metrics.value("gateway_requests_total", status="502") == 1
    assert metrics.value("gateway_failovers_total", stage="first_byte") == 1


WRONG = [-1, 2**31 + 1, int("9" * 400), 1.5, 12.0, True, "7", [], {}, float("nan"), float("inf")]
USAGES = [
    *({"prompt_tokens": value} for value in WRONG),
    *({"completion_tokens": value} for value in WRONG),
    *({"prompt_tokens_details": {"cached_tokens": value}} for value in WRONG),
    {"prompt_tokens_details": {"cached_tokens": 8}},
]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_usage_that_cannot_be_right_counts_as_none(scripted, start_gateway, streamed):
    with structlog.testing.capture_logs() as logs:
        gateway = await start_gateway(scripted, log={"requests": True})
        for usage in USAGES:
            counts = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8} | usage
            body = {"id": "x", "choices": [{"index": 0, "delta": {"content": "a"}, "message": {"content": "a"}}]}
            if streamed:
                events = [body, {"id": "x", "choices": [], "usage": counts}]
                said = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
                scripted.says(STREAM_HEAD + chunk(said + b"data: [DONE]\n\n") + chunk(b""))
                answer = await gateway.send(STREAM)
                assert answer.content == said[: said.index(b"\n\n") + 2] + b"data: [DONE]\n\n"
            else:
                said = json.dumps(body | {"usage": counts}).encode()
                scripted.says(response(said))
                answer = await gateway.send(BODY)
                assert answer.content == said
            assert answer.status_code == 200, usage
        metrics = await gateway.settled(len(USAGES))
    # The last of the observers, and the first one.
    assert len([log for log in logs if log["event"] == "request_settled"]) == len(USAGES)
    assert metrics.value("gateway_cached_tokens_total", evidence="confirmed") == 0
    prompt = metrics.value("gateway_prompt_tokens_total") / len(USAGES)
    assert prompt == int(prompt) < 100
    assert not [log for log in logs if log["log_level"] == "error"]


async def test_an_event_that_is_nested_deeply_ends_the_stream_and_not_the_request(scripted, behind):
    deep = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    first = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    scripted.says(STREAM_HEAD + chunk(first), chunk(b"data: " + deep + b"\n\n"), chunk(b""), pause=0.2)
    answer = await behind.send(STREAM)
    assert answer.status_code == 200
    assert answer.content.startswith(first)
    assert b'"replica_disconnected"' in answer.content
    assert answer.content.endswith(b"data: [DONE]\n\n")


async def test_what_follows_an_engine_s_own_failure_is_bounded(scripted, start_gateway):
    gateway = await start_gateway(scripted, relay={"resume": True})
    written = 0

    async def endless(writer, received):
        nonlocal written
        writer.write(STREAM_HEAD + chunk(b'data: {"error":{"message":"out of memory","code":500}}\n\n'))
        with contextlib.suppress(ConnectionError):
            for _ in range(2048):
                writer.write(chunk(b'data: {"x":"' + b"x" * 2**14 + b'"}\n\n'))
                await writer.drain()
                written += 2**14

    scripted.answer = endless
    answer = await asyncio.wait_for(gateway.send(STREAM), HANG_SECONDS)
    assert b'"error"' in answer.content
    assert written < 16 * MIB


async def test_an_observer_that_fails_keeps_no_other_from_its_work(scripted, start_gateway, monkeypatch):
    def fail(*_):
        raise ValueError("counters cannot fall")

    monkeypatch.setattr(MetricsObserver, "on_settled", fail)
    monkeypatch.setattr(MetricsObserver, "on_refused", fail)
    with structlog.testing.capture_logs() as logs:
        gateway = await start_gateway(scripted, log={"requests": True})
        assert (await gateway.send(BODY)).status_code == 200
        problem(await gateway.send(b"{}"), 400, param="model")
        await eventually(lambda: len([log for log in logs if log["event"] == "observer_failed"]) == 2)
    settled = [log for log in logs if log["event"] in ("request_settled", "request_refused")]
    assert len(settled) == 2
    failed = [log for log in logs if log["event"] == "observer_failed"]
    assert [log["observer"] for log in failed] == ["MetricsObserver"] * 2
    assert [log["request_id"] for log in failed] == [log["request_id"] for log in settled]


async def test_token_ids_without_end_cost_their_replica_nothing_and_are_estimated(engines, start_gateway):
    async def answer(writer, received):
        if received.line.startswith("POST /v1/chat/completions HTTP"):
            writer.write(response(b'{"choices":[]}'))
        else:
            writer.write(response(b'{"token_ids":[' + b"1," * (6 * MIB) + b"1]}"))

    for engine in engines:
        engine.answer = answer
    gateway = await start_gateway(*engines, model={"tokenizer": "engine"}, encode={"engine_timeout_seconds": 20})
    said = await gateway.send(BODY)
    assert said.status_code == 200
    assert said.headers["x-gateway-tokens"] == "estimated"
    assert sum(len(engine.received) for engine in engines) == 2
    assert await states(gateway) == {"ready"}


# What the gateway asks for itself


class Flooding(ScriptedEngine):
    """Answers a path without end, 256 MiB at most; counts what was taken."""

    def __init__(self, path: str, piece: bytes) -> None:
        super().__init__()
        self._path, self._piece = path, piece
        self.taken = self.floods = 0

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line = head.split(b"\r\n")[0].decode()
        if line.split(" ")[1] == self._path:
            self.floods += 1
            writer.transport.set_write_buffer_limits(high=0)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
            for _ in range(256 * MIB // len(self._piece)):
                writer.write(self._piece)
                await writer.drain()
                self.taken += len(self._piece)
            writer.close()
        elif line.startswith("POST"):
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            writer.write(response(b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}'))
        elif line.startswith("GET /metrics"):
            writer.write(response(self.metrics.encode(), content_type="text/plain"))
        else:
            writer.write(response(self.models if line.startswith("GET /v1/models") else b""))


@pytest.mark.parametrize("path", ["/metrics", "/v1/models", "/version", "/health", "/kv_event_sources"])
async def test_what_is_asked_of_a_replica_is_read_up_to_a_bound(closing, start_gateway, path):
    engine = Flooding(path, b"vllm:num_requests_running 1\n" * 2048)
    engine.metrics = METRICS if path != "/metrics" else ""
    await engine.start()
    closing.push_async_callback(engine.stop)
    gateway = await start_gateway(engine, relay={"health_timeout_seconds": 30})
    await eventually(lambda: engine.floods > 0)
    answer = await gateway.send(BODY)
    assert answer.status_code == (503 if path == "/health" else 200)
    before = -1
    while engine.taken != before:
        before = engine.taken
        await asyncio.sleep(0.3)
    assert engine.taken < engine.floods * 48 * MIB  # of which the sockets' buffers hold a part


async def test_only_so_many_ranks_are_believed(start_gateway, scripted, monkeypatch):
    parsed, sized = [], []
    parse, block_size = samples._sample, CandidateFinder.block_size
    monkeypatch.setattr(samples, "_sample", lambda line: parsed.append(line) or parse(line))
    monkeypatch.setattr(
        CandidateFinder, "block_size", lambda self, replica: sized.append(replica) or block_size(self, replica)
    )
    lines = [METRICS.replace('"0"', f'"{rank}"') for rank in (*range(20_000), 10**9, "9" * 5000)]
    scripted.metrics = "".join(lines)
    gateway = await start_gateway(scripted)
    assert (await gateway.send(BODY)).status_code == 200
    (replica,) = (await gateway.replicas()).values()
    assert replica["state"] == "ready"
    assert len(gateway.gateway._fleet.replicas[0].targets) == 512
    looks = sum(line.startswith('{engine="0"}') for line in parsed) / 2  # two metrics have samples
    assert len(parsed) <= looks * 2 * 2048
    assert len(sized) < 10  # once per replica for each step of the request, not once per rank


@pytest.mark.parametrize(
    "line",
    [
        "vllm:num_requests_running -5",
        "vllm:num_requests_running 1e300",
        'vllm:cache_config_info{num_gpu_blocks="' + "9" * 5000 + '"} 1',
        'vllm:cache_config_info{block_size="' + "9" * 5000 + '",num_gpu_blocks="-4"} 1',
        'vllm:cache_config_info{block_size="99999999",num_gpu_blocks="99999999999999"} 1',
        "vllm:kv_cache_usage_perc -3",
        "vllm:kv_cache_usage_perc 1e308",
        "process_start_time_seconds 1e308",
        "process_start_time_seconds -1",
    ],
    ids=lambda line: line[:40],
)
async def test_numbers_that_cannot_be_right_are_left_out(scripted, start_gateway, line):
    scripted.metrics = METRICS.replace("} 0", "} 1") + line + "\n"
    gateway = await start_gateway(scripted)
    assert (await gateway.send(BODY)).status_code == 200
    (replica,) = gateway.gateway._fleet.replicas
    facts = replica.facts
    assert facts.running in (1, None)
    assert (facts.block_size, facts.blocks, facts.cache_use, facts.started_at) == (None, None, None, None)
    assert (await gateway.admin.get("/admin/api/replicas")).status_code == HTTPStatus.OK


@pytest.mark.parametrize(
    "models",
    [
        b'{"data":[{"id":"demo","max_model_len":' + b"9" * 400 + b"}]}",
        b'{"data":[{"id":"demo","max_model_len":-1}]}',
        b'{"data":[{"id":"demo","max_model_len":0}]}',
        b'{"data":[{"id":"demo","x":' + b"[" * 900 + b"]" * 900 + b"}]}",
        b'{"data":[{"id":"demo","x":"' + b"x" * MIB + b'"}]}',
        b'{"data":[{"id":["demo"]}]}',
        b'{"data":{"id":"demo"}}',
        b'["data"]',
        b"[" * 100_000,
    ],
    ids=lambda models: models[:40].decode(),
)
async def test_an_odd_model_list_does_not_reach_clients(scripted, start_gateway, models):
    scripted.models = models
    gateway = await start_gateway(scripted)
    listed = await gateway.http.get("/v1/models")
    assert listed.status_code == 200
    assert [model["id"] for model in listed.json()["data"]] == ["demo"]
    assert len(listed.content) < 100_000
    assert gateway.gateway._fleet.context_limit("demo") == 0
    assert (await gateway.send(BODY)).status_code == 200


async def test_events_are_not_followed_to_the_gateway_s_own_sockets(tmp_path, closing, scripted):
    """A replica names a Unix socket, here one of the test's."""
    connected = 0

    async def accept(reader, writer):
        nonlocal connected
        connected += 1
        writer.close()

    path = tmp_path / "s"
    server = await asyncio.start_unix_server(accept, str(path))
    closing.callback(server.close)
    scripted.metrics = METRICS
    source = {"publisher": "zmq", "endpoint": f"ipc://{path}", "replay_endpoint": f"ipc://{path}", "topic": ""}
    scripted.documents["/kv_event_sources"] = json.dumps({"0": source}).encode()
    with structlog.testing.capture_logs() as logs:
        running = RunningGateway(settings_for([scripted]))
        await running.start()
        closing.push_async_callback(running.stop)

        def refused():
            return [log for log in logs if log["event"] in ("kv_events_address_refused", "kv_events_found")]

        await eventually(lambda: bool(refused()))
        await asyncio.sleep(0.3)
    assert connected == 0
    (log,) = refused()
    assert (log["event"], log["replica"], log["address"]) == ("kv_events_address_refused", "r0", f"ipc://{path}")
    assert "events: tcp://" in log["problem"]
