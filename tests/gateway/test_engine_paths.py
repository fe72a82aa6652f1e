"""Endpoints without a prefix: embeddings, rerank, score, audio, tokenize, and further paths that are allowed."""

import asyncio
import json

import httpx
import orjson
import pytest
import structlog
import yaml
from api_errors import problem
from raw_http import Connection, post
from running_gateway import CHAT, each_answers, eventually
from scripted_engine import response
from tenancy import SECRET, error, key, sections, tenant

from gateway.config.settings import Settings

EMBED = "/v1/embeddings"
RERANK = {"model": "demo", "query": "Where?", "documents": ["Here.", "There.", "Nowhere."]}
SCORE = {"model": "demo", "text_1": "Where?", "text_2": ["Here.", "There."]}
POSTED = {
    EMBED: {"model": "demo", "input": "Where is my order?"},
    "/v1/rerank": RERANK,
    "/v2/rerank": RERANK,
    "/rerank": RERANK,
    "/v1/score": SCORE,
    "/score": SCORE,
    "/tokenize": {"model": "demo", "prompt": "Where is my order?"},
    "/detokenize": {"model": "demo", "tokens": [70, 71, 72]},
}
AUDIO = ("/v1/audio/transcriptions", "/v1/audio/translations")
BOUNDARY = "b0undary"
FORM = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
GONE = b'{"detail":"Not Found"}'


def form(*parts, end=True):
    """The body of a form; each part is its disposition's parameters and its content."""
    lines = b"".join(
        b"--%b\r\ncontent-disposition: form-data; %b\r\n\r\n%b\r\n" % (BOUNDARY.encode(), head, content)
        for head, content in parts
    )
    return lines + (b"--%b--\r\n" % BOUNDARY.encode() if end else b"")


MODEL, FILE = (b'name="model"', b"demo"), (b'name="file"; filename="a.wav"', b"RIFF\r\n--\r\n\x00\xff" * 40)
WHOLE = form(FILE, MODEL)


FORM_SENT = post(AUDIO[0], WHOLE).replace(b"application/json", FORM["content-type"].encode())


def embedding(text="Hi", **more):
    return orjson.dumps({"model": "demo", "input": text} | more)


@pytest.fixture
async def two(start_engine, start_gateway):
    """A gateway in front of two engines."""
    engines = [await start_engine(), await start_engine()]
    return await start_gateway(*engines), engines


async def forms(gateway, body, path=AUDIO[0], headers=FORM):
    return await gateway.http.post(path, content=body, headers=headers)


# The good case


async def test_embeddings_with_the_official_client(sdk, gateway):
    client = sdk(gateway)
    one = await client.embeddings.create(model="demo", input="Where is my order?")
    several = await client.embeddings.create(model="demo", input=["Where is my order?", "Elsewhere."])
    assert [each.index for each in several.data] == [0, 1]
    assert several.data[0].embedding == one.data[0].embedding != several.data[1].embedding
    assert several.usage.prompt_tokens > one.usage.prompt_tokens > 0


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", ["transcriptions", "translations"])
async def test_audio_with_the_official_client(sdk, gateway, engine, kind):
    create = getattr(sdk(gateway).audio, kind).create
    answer = await create(model="demo", file=("a.wav", b"RIFF" * 1000))
    assert answer.text == f"A form of {len(engine.requests[-1].body)} bytes."


async def test_rerank_score_and_tokens(gateway):
    answers = {path: (await gateway.http.post(path, json=body)) for path, body in POSTED.items()}
    assert {answer.status_code for answer in answers.values()} == {200}
    ranked = answers["/v1/rerank"].json()["results"]
    assert sorted(each["index"] for each in ranked) == [0, 1, 2]
    assert ranked == sorted(ranked, key=lambda each: -each["relevance_score"]) == answers["/rerank"].json()["results"]
    assert [each["index"] for each in answers["/score"].json()["data"]] == [0, 1]
    tokens = answers["/tokenize"].json()["tokens"]
    again = await gateway.http.post("/detokenize", json={"tokens": tokens})
    assert again.json() == {"prompt": "Where is my order?"}


@pytest.mark.parametrize("path", [*POSTED, *AUDIO])
async def test_bytes_and_headers_pass(behind, scripted, path):
    body = WHOLE if path in AUDIO else b' {"model" : "demo", "x": 1.0e0, "input":"\\u0048", "x":1E0 }'
    sent = FORM if path in AUDIO else {"content-type": "application/json; charset=utf-8"}
    said = b'{ "text":"caf\\u00e9","score":1.0e-0 }'
    scripted.says(response(said, "x-engine: own"))
    headers = sent | {"x-request-id": "mine-1"}
    answer = await behind.http.post(f"{path}/?a=1&b=%20", content=body, headers=headers)
    assert (answer.status_code, answer.content) == (200, said)
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["x-gateway-replica"] == "r0"
    assert answer.headers["x-engine"] == "own"
    assert "x-gateway-prompt-tokens" not in answer.headers
    (received,) = scripted.received
    assert received.line == f"POST {path}?a=1&b=%20 HTTP/1.1"
    assert received.body == body
    assert received.values("content-type") == [sent["content-type"]]
    assert received.values("x-request-id") == ["mine-1"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("text/plain", b"1\n00:00 --> 00:01\nHello.\n"),
        ("application/json", b"[[0.1,0.2]]"),
        ("application/json", b'"only text"'),
        ("application/octet-stream", bytes(range(256))),
        ("application/json", b'{"data":"' + b"x" * (17 * 2**20) + b'"}'),
        ("application/json", b""),
    ],
)
async def test_answers_of_any_kind_pass(behind, scripted, kind, said):
    scripted.says(response(said, content_type=kind))
    answer = await behind.send(embedding(), EMBED)
    assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
    assert answer.content == said


async def test_a_transcripts_events_come_one_by_one_and_unchanged(behind, scripted, connect):
    released = asyncio.Event()
    events = [
        b'data: {"type":"transcript.text.delta"}\n\n',
        b'event: x\r\ndata: {"type":"transcript.text.done"}\r\n\r\n',
    ]

    async def answer(writer, received):
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        writer.write(head + events[0])
        await released.wait()
        writer.write(events[1])
        writer.close()

    scripted.answer = answer
    async with behind.http.stream("POST", AUDIO[0], content=WHOLE, headers=FORM) as streamed:
        pieces = streamed.aiter_raw()
        assert await anext(pieces) == events[0]
        released.set()
        assert b"".join([piece async for piece in pieces]) == events[1]
    assert streamed.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize(
    "parts",
    [
        [MODEL, FILE],
        [FILE, MODEL],
        [FILE, (b"name=model", b"demo")],
        [(b'name="prompt"', b""), FILE, (b'filename="; name=x"; name="model"', b"demo"), (b'name="language"', b"en")],
        [(b'name="note"', b'name="model"\r\n\r\nother'), MODEL],
    ],
)
async def test_the_model_of_a_form_is_found_anywhere(gateway, parts):
    assert (await forms(gateway, form(*parts))).status_code == 200
    assert (await forms(gateway, b"preamble\r\n" + form(*parts) + b"epilogue")).status_code == 200


async def test_a_model_behind_a_long_file_is_found(gateway, engine):
    body = form((FILE[0], b"\r\n--b0undar" * 100_000), MODEL)
    assert (await forms(gateway, body)).status_code == 200
    assert engine.requests[-1].body == body


# What is refused


@pytest.mark.parametrize("path", [*POSTED, *AUDIO])
async def test_what_is_no_request(behind, scripted, path):
    audio, media = path in AUDIO, FORM if path in AUDIO else {"content-type": "application/json"}

    async def sent(body, headers=media):
        return await behind.http.post(path, content=body, headers=headers)

    wrong = {"content-type": "application/json"} if audio else FORM
    problem(await sent(b"{}", wrong), 415, "unsupported_media_type")
    problem(await sent(WHOLE, media | {"content-encoding": "gzip"}), 415, "unsupported_encoding")
    other = form(FILE, (b'name="model"', b"gpt-9")) if audio else b'{"model":"gpt-9","input":"x"}'
    assert "demo" in problem(await sent(other), 404, "model_not_found", "model")
    nothing = form(FILE) if audio else b'{"input":"x"}'
    if "tokenize" not in path:
        problem(await sent(nothing), 400, "missing_required_parameter", "model")
    if not audio:
        problem(await sent(b"{no"), 400, "invalid_json")
        problem(await sent(b"[]"), 400, "invalid_json")
        problem(await sent(b'{"model":7}'), 400, "invalid_type", "model")
    allowed = await behind.http.get(path)
    problem(allowed, 405, "method_not_allowed")
    assert allowed.headers["allow"] == "POST"
    assert not scripted.received


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"content-type": "multipart/form-data"}, WHOLE),
        ({"content-type": "multipart/form-data; boundary="}, WHOLE),
        (FORM, form(MODEL, MODEL)),
        (FORM, form((b'name="model"', b"demo" * 2000))),
        (FORM, form(*[FILE] * 300, MODEL)),
        (FORM, form((b'name="file"; filename="%b"' % (b"a" * 5000), b""), MODEL)),
        (FORM, form((b'name="file"' + b';a="' * 900, b""), MODEL)),  # a parser of headers would take seconds for many
        (FORM, form((b"name*=x; name*1=y", b"z"), MODEL)),
        ({"content-type": "multipart/form-data; boundary*=x; boundary*1=y"}, WHOLE),
    ],
)
async def test_what_is_no_form(behind, scripted, headers, body):
    problem(await forms(behind, body, headers=headers), 400, "invalid_form")
    assert not scripted.received


@pytest.mark.parametrize(
    "body", [b"", b"nothing of it", form(end=True), b"--b0undary", b"--b0undary--", form(FILE)[:100]]
)
async def test_a_form_without_a_model(behind, scripted, body):
    answer = await forms(behind, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] in ("missing_required_parameter", "invalid_form")
    assert not scripted.received


async def test_no_model_where_there_is_one_and_where_there_are_several(start_engine, start_gateway):
    engines = [await start_engine(), await start_engine(model="other")]
    one = await start_gateway(engines[0])
    assert (await one.http.post("/tokenize", json={"prompt": "x"})).status_code == 200
    models = [
        {"id": "demo", "tokenizer": "builtin:demo", "replicas": [engines[0].url]},
        {"id": "other", "tokenizer": "builtin:demo", "replicas": [engines[1].url]},
    ]
    both = await start_gateway(models=models, **sections(tenant("a"), tenant("b", models=("other",)), isolation="none"))
    as_a, as_b = ({"authorization": f"Bearer {key(name)}"} for name in "ab")
    several = await both.http.post("/tokenize", json={"prompt": "x"}, headers=as_a)
    assert "demo, other" in problem(several, 400, "missing_required_parameter", "model")
    assert (await both.http.post("/tokenize", json={"prompt": "x"}, headers=as_b)).status_code == 200
    assert len(engines[1].requests) == 1
    refused = [
        await both.http.post(EMBED, json={"model": model, "input": "x"}, headers=as_b) for model in ("demo", "gpt-9")
    ]
    messages = {problem(answer, 404, "model_not_found", "model").replace("demo", "gpt-9") for answer in refused}
    assert len(messages) == 1


@pytest.mark.parametrize("path", [*POSTED, *AUDIO, "/v1/classify"])
async def test_a_key_is_needed(scripted, start_gateway, path):
    gateway = await start_gateway(
        scripted, server={"passthrough_paths": ["/v1/classify"]}, **sections(tenant("a"), isolation="none")
    )
    media = FORM if path in AUDIO else {"content-type": "application/json"}
    body = WHOLE if path in AUDIO else embedding()
    problem(await gateway.http.post(path, content=body, headers=media), 401)
    assert not scripted.received
    asked = media | {"authorization": f"Bearer {key('a')}"}
    assert (await gateway.http.post(path, content=body, headers=asked)).status_code == 200
    (received,) = scripted.received
    assert key("a") not in str(received.headers)


async def test_requests_and_tokens_are_limited(engine, start_gateway):
    limited = tenant("a", requests_per_second=0.01), tenant("b", prompt_tokens_per_minute=100)
    gateway = await start_gateway(engine, **sections(*limited))

    async def embed(name, text):
        headers = {"authorization": f"Bearer {key(name)}"}
        return await gateway.http.post(EMBED, json={"model": "demo", "input": text}, headers=headers)

    assert [(await embed("a", "x")).status_code for _ in range(3)] == [200, 429, 429]
    assert error(await embed("b", "word " * 500))[0] == 429
    answer = await embed("b", "one two three four five six")
    left = 100 - answer.json()["usage"]["prompt_tokens"]
    headers = {"authorization": f"Bearer {key('b')}"}
    after = await gateway.http.post("/tokenize", json={"prompt": "word " * 500}, headers=headers)
    assert after.status_code == 200  # computes nothing
    assert abs(int(after.headers["x-ratelimit-remaining-tokens"]) - left) <= 5


async def test_a_batch_is_limited(start_gateway, engine):
    gateway = await start_gateway(engine, server={"max_sequences": 3})
    assert (await gateway.send(embedding(["a", "b", "c"]), EMBED)).status_code == 200
    problem(await gateway.send(embedding(["a", "b", "c", "d"]), EMBED), 400, "too_many_prompts")
    assert (await gateway.send(embedding([70, 71, 72, 73]), EMBED)).status_code == 200


async def test_huge_and_slow_bodies(scripted, start_gateway, connect):
    gateway = await start_gateway(scripted, server={"max_body_bytes": 100_000, "receive_seconds": 2})
    problem(await forms(gateway, form((FILE[0], b"x" * 100_000), MODEL)), 413, "request_too_large")
    connection = await connect(gateway)
    chunks = b"POST /v1/audio/translations HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-type: "
    await connection.send(chunks + FORM["content-type"].encode() + b"\r\n\r\n" + b"10000\r\n" + b"x" * 65536 + b"\r\n")
    await connection.send(b"10000\r\n" + b"x" * 65536)
    assert (await connection.answer()).status == 413
    slow = await connect(gateway)
    await slow.send(FORM_SENT[: -len(WHOLE) // 2])
    assert (await slow.answer()).status == 408
    assert not scripted.received


async def test_clients_that_leave(start_engine, scripted, start_gateway, connect):
    gateway = await start_gateway(scripted)
    early = await connect(gateway)
    await early.send(FORM_SENT[:-10])
    early.abort()
    closed = asyncio.Event()

    async def answer(writer, received):
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 10000000\r\n\r\n"
        writer.write(head)
        while not writer.is_closing():  # writing shows that the other side is gone
            writer.write(b" ")
            await asyncio.sleep(0.01)
        closed.set()

    scripted.answer = answer
    late = await connect(gateway)
    await late.send(FORM_SENT)
    await eventually(lambda: len(scripted.received) == 1)
    late.abort()
    await eventually(closed.is_set)
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_requests_total", endpoint=AUDIO[0], status="499") == 1


# Failures of replicas

REFUSED_OR_DEAD = {
    "connect": "refuse",
    "dies": "die_before_first_byte",
    "resets": "reset",
    "hangs": "hang",
    "no HTTP": "garbage",
    "502": "502",
    "503": "503",
    "504": "504",
    "429": "429",
    "dies behind the head": "die_after_head",
    "dies in the middle": "die_mid_stream=0",
    "hangs in the middle": "hang_mid_stream=0",
    "half a chunk": "half_chunk=0",
    "too short": "length_too_large",
    "half of its JSON": "invalid_json",
}


@pytest.mark.parametrize("fault", REFUSED_OR_DEAD.values(), ids=REFUSED_OR_DEAD)
@pytest.mark.parametrize("path", [EMBED, AUDIO[1]])
async def test_another_replica_answers(start_engine, start_gateway, fault, path):
    engines = [await start_engine(), await start_engine()]
    seconds = 3 if "hang" in fault else 60
    limits = {"first_byte_timeout_seconds": seconds, "chunk_timeout_seconds": seconds}
    gateway = await start_gateway(*engines, relay=limits)
    await engines[0].set_fault(fault if fault == "refuse" else f"{fault}:path={path}")
    for _ in range(2):
        body, media = (WHOLE, FORM) if path in AUDIO else (embedding(), {"content-type": "application/json"})
        answer = await gateway.http.post(path, content=body, headers=media)
        assert (answer.status_code, answer.headers["x-gateway-replica"]) == (200, "r1")
    assert {request.body for request in engines[1].requests} == {body}
    await gateway.settled(1)


async def test_all_replicas_fail(two):
    gateway, engines = two
    for engine in engines:
        await engine.set_fault(f"503:path={EMBED}")
    answer = await gateway.send(embedding(), EMBED)
    assert answer.status_code == 503
    for engine in engines:
        await engine.set_fault(f"die_before_first_byte:path={EMBED}")
    problem(await gateway.send(embedding(), EMBED), 502, "replica_disconnected")
    for engine in engines:
        await engine.set_fault(f"hang:path={EMBED}")
    answer = await gateway.send(embedding(), EMBED, **{"x-request-timeout": "0.2"})
    problem(answer, 504, "deadline_exceeded")


async def test_events_that_break_off_end_the_connection(behind, scripted):
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    scripted.says(head + b"9\r\ndata: x\n\n\r\n", then_close=True)
    with pytest.raises(httpx.RemoteProtocolError):
        await forms(behind, WHOLE)
    assert len(scripted.received) == 1  # the client has the beginning: not repeated


async def test_replicas_without_the_path_are_passed_over_and_stay(start_engine, scripted, start_gateway):
    engine = await start_engine()
    gateway = await start_gateway(scripted, engine)

    async def answer(writer, received):
        writer.write(response(GONE, status="404 Not Found") if EMBED in received.line else response(b'{"choices":[]}'))

    scripted.answer = answer
    answers = [await gateway.send(embedding(), EMBED) for _ in range(12)]
    assert {(each.status_code, each.headers["x-gateway-replica"]) for each in answers} == {(200, "r1")}
    assert (await gateway.replicas())["r0"]["state"] == "ready"


@pytest.mark.parametrize(("said", "status"), [(404, 404), (405, 404), (500, 500), (302, 502)])
async def test_a_path_that_no_replica_serves_harms_no_replica(behind, scripted, said, status):
    scripted.says(response(GONE, status=f"{said} X"))
    with structlog.testing.capture_logs() as logs:
        answers = [await behind.send(embedding(), EMBED) for _ in range(6)]
    if status == 404:
        assert EMBED in problem(answers[0], 404, "endpoint_not_served")
    assert {answer.status_code for answer in answers} == {status}
    assert (await behind.replicas())["r0"]["state"] == "ready"
    assert not [log for log in logs if log["event"] in ("replica_suspect", "replica_ejected")]
    scripted.answer = scripted.reply
    assert (await behind.ask()).status_code == 200


async def test_tokens_of_text_do_not_show_that_an_engine_computes(scripted, start_gateway):
    gateway = await start_gateway(scripted, relay={"suspect_seconds": 0.01, "eject_max_seconds": 0.01})
    failing = response(b"{}", status="503 Service Unavailable")

    async def answer(writer, received):
        writer.write(response(b"{}") if "tokenize" in received.line else failing)

    scripted.answer = answer
    with structlog.testing.capture_logs() as logs:
        while not any(log["event"] == "replica_ejected" for log in logs):  # several failures without an answer between
            await gateway.ask()
            assert (await gateway.http.post("/tokenize", json={"prompt": "x"})).status_code == 200
    assert not any(log["event"] == "replica_recovered" for log in logs)


async def test_requests_go_to_the_replica_with_the_least(start_engine, scripted, start_gateway):
    engine = await start_engine()
    gateway = await start_gateway(scripted, engine)
    released = asyncio.Event()

    async def answer(writer, received):
        await released.wait()
        writer.write(response(b'{"data":[]}'))

    scripted.answer = answer
    tasks = [asyncio.create_task(gateway.send(embedding(["a"] * 20), EMBED)) for _ in range(2)]
    await eventually(lambda: len(scripted.received) == 1)
    answers = [await gateway.send(embedding(), EMBED) for _ in range(8)]
    assert {each.headers["x-gateway-replica"] for each in answers} == {"r1"}
    released.set()
    assert {task.status_code for task in await asyncio.gather(*tasks)} == {200}

    async def used() -> str:
        return (await gateway.send(embedding(), EMBED)).headers["x-gateway-replica"]

    await each_answers(used, {"r0", "r1"})


# Replicas of their own


async def test_replicas_that_serve_some_endpoints_only(start_engine, start_gateway):
    engines = [await start_engine() for _ in range(3)]
    replicas = [
        {"url": engines[0].url, "id": "chats", "endpoints": [CHAT]},
        {"url": engines[1].url, "id": "vectors", "endpoints": [EMBED, "/tokenize"]},
        {"url": engines[2].url, "id": "ranks", "endpoints": ["/v1/rerank"]},
    ]
    gateway = await start_gateway(model={"replicas": replicas})
    for path, replica in ((EMBED, "vectors"), ("/tokenize", "vectors"), ("/v1/rerank", "ranks")):
        for _ in range(3):
            answer = await gateway.http.post(path, json=POSTED[path])
            assert (answer.status_code, answer.headers["x-gateway-replica"]) == (200, replica)
    assert {(await gateway.ask(str(n))).headers["x-gateway-replica"] for n in range(4)} == {"chats"}
    completion = await gateway.http.post("/v1/completions", json={"model": "demo", "prompt": "x", "max_tokens": 1})
    assert completion.headers["x-gateway-replica"] == "chats"
    problem(await gateway.http.post("/v1/score", json=SCORE), 404, "endpoint_not_served")
    await engines[1].set_fault(f"503:path={EMBED}")
    assert (await gateway.send(embedding(), EMBED)).status_code == 503
    assert {request.path for request in engines[0].requests} == {CHAT, "/v1/completions"}


async def test_a_model_that_only_embeds(start_engine, start_gateway):
    engine = await start_engine()
    gateway = await start_gateway(model={"replicas": [{"url": engine.url, "endpoints": [EMBED]}]})
    assert (await gateway.send(embedding(), EMBED)).status_code == 200
    assert CHAT in problem(await gateway.ask(), 404, "endpoint_not_served")


@pytest.mark.parametrize("endpoints", [[], ["/v1/embedding"], ["embeddings"], ["/v1/responses"]])
def test_endpoints_that_do_not_exist(endpoints):
    replicas = [{"url": "http://vllm-0:8000", "endpoints": endpoints}]
    with pytest.raises(ValueError, match="endpoints"):
        Settings.model_validate({"models": [{"id": "demo", "replicas": replicas}]})


# What is counted and kept apart


async def test_figures_about_prefixes_stay_those_of_prompts(engine, start_gateway):
    gateway = await start_gateway(engine)
    with structlog.testing.capture_logs() as logs:
        await gateway.ask()
        before = await gateway.settled(1)
        await gateway.send(embedding("word " * 500), EMBED)
        await forms(gateway, WHOLE)
        after = await gateway.settled(3)
    for name in ("gateway_prompt_tokens_total", "gateway_encodings_total", "gateway_cached_tokens_total"):
        assert after.value(name) == before.value(name)
    assert after.value("gateway_requests_total", endpoint=EMBED, status="200", model="demo") == 1
    assert after.value("gateway_requests_total", endpoint=AUDIO[0], status="200", model="demo") == 1
    assert after.value("gateway_request_seconds_count", endpoint=EMBED) == 1
    settled = {log["endpoint"]: log for log in logs if log["event"] == "request_settled"}
    assert settled[EMBED]["prompt_tokens"] >= 500
    assert settled[EMBED]["replica"] == settled[AUDIO[0]]["replica"] == "r0"


async def test_prompts_are_kept_apart_by_a_salt_and_nothing_else_is(engine, start_gateway):
    gateway = await start_gateway(
        engine, server={"passthrough_paths": ["/pooling"]}, **sections(tenant("a"), tenant("b"))
    )
    salts = {}
    for name in "ab":
        headers = {"authorization": f"Bearer {key(name)}"}
        for path in [*POSTED, "/pooling"]:
            body = POSTED.get(path, POSTED[EMBED]) | {"cache_salt": "of-the-client"}
            if "tokenize" in path:
                del body["cache_salt"]
            await gateway.http.post(path, json=body, headers=headers)
            salts[name, path] = json.loads(engine.requests[-1].body).get("cache_salt")
        await gateway.http.post(AUDIO[0], content=WHOLE, headers=FORM | headers)
        assert engine.requests[-1].body == WHOLE
    assert salts["a", "/tokenize"] is salts["b", "/detokenize"] is None
    salted = {name: {salts[name, path] for path in [*POSTED, "/pooling"] if "tokenize" not in path} for name in "ab"}
    assert len(salted["a"]) == len(salted["b"]) == 1
    assert salted["a"].isdisjoint(salted["b"] | {"of-the-client"})


async def test_a_field_that_acts_on_others_is_refused_where_tenants_are_apart(engine, start_gateway):
    gateway = await start_gateway(engine, **sections(tenant("a")))
    headers = {"authorization": f"Bearer {key('a')}"}
    answer = await gateway.http.post(EMBED, json=POSTED[EMBED] | {"priority": -5}, headers=headers)
    assert answer.status_code == 400
    assert not engine.requests


# The allow-list


async def test_allowed_paths_pass_and_no_others(scripted, start_gateway):
    scripted.documents["/v1/spec?model=demo"] = b'{"is":"here"}'
    gateway = await start_gateway(scripted, server={"passthrough_paths": ["/v1/classify", "/v1/spec"]})
    scripted.says(response(b'[{"label":"x"}]'))
    answer = await gateway.send(b'{"input":"x"}', "/v1/classify")
    assert (answer.status_code, answer.content) == (200, b'[{"label":"x"}]')
    assert (await forms(gateway, WHOLE, "/v1/classify")).status_code == 200
    got = await gateway.http.get("/v1/spec?model=demo")
    assert (got.status_code, got.json()) == (200, {"is": "here"})
    assert got.headers["x-gateway-replica"] == "r0"
    problem(await gateway.http.get("/v1/spec?model=gpt-9"), 404, "model_not_found", "model")
    sent = len(scripted.received)
    for method in ("PUT", "DELETE", "PATCH"):
        assert (await gateway.http.request(method, "/v1/classify", content=b"{}")).status_code == 404
    metrics = await gateway.metrics()
    assert metrics.value("gateway_requests_total", endpoint="/v1/classify", status="200") == 2
    assert len(scripted.received) == sent


@pytest.mark.parametrize(
    "path",
    [
        "/v1/classify/x",
        "/v1//classify",
        "//v1/classify",
        "/v1/Classify",
        "/v1/classify/../../sleep",
        "/v1/classify/%2e%2e/sleep",
        "/v1/classify%2f..%2f..%2fsleep",
        "/v1/classify;x=1",
        "/v1/classify%00",
        "/v1/classify%3f",
        "/sleep",
        "/reset_prefix_cache",
        "/v1/load_lora_adapter",
        "/metrics",
    ],
)
async def test_what_only_looks_like_an_allowed_path(scripted, start_gateway, connect, path):
    gateway = await start_gateway(scripted, server={"passthrough_paths": ["/v1/classify"]})
    connection: Connection = await connect(gateway)
    for method in (b"POST", b"GET"):
        whole = post(path, b'{"model":"demo"}').replace(b"POST", method, 1)
        await connection.send(whole)
        assert (await connection.answer()).status in (400, 404)
    assert not scripted.received


async def test_a_percent_in_front_of_an_allowed_path_reaches_the_path_itself(scripted, start_gateway, connect):
    gateway = await start_gateway(scripted, server={"passthrough_paths": ["/v1/classify"]})
    connection = await connect(gateway)
    await connection.send(post("/v1/%63lassify", b'{"model":"demo"}'))
    assert (await connection.answer()).status == 200
    assert scripted.received[0].line == "POST /v1/classify HTTP/1.1"


NEVER = (
    "/sleep /wake_up /is_sleeping /reset_prefix_cache /reset_mm_cache /v1/load_lora_adapter /v1/unload_lora_adapter"
    " /load_lora_adapter /update_weights /update_weights_from_disk /update_weights_from_tensor /flush_cache /shutdown"
    " /start_profile /stop_profile /metrics /server_info /get_server_info /collective_rpc /abort_request"
    " /abort_requests /pause /resume /pause_generation /continue_generation /scale_elastic_ep /is_scaling_elastic_ep"
    " /init_weights_update_group /get_weights_by_name /release_memory_occupation /resume_memory_occupation"
    " /set_internal_state /open_session /close_session /configure_logging /freeze_gc /clear_hicache_storage_backend"
    " /start_expert_distribution_record /dump_expert_distribution_record /slow_down /load /v1/loads /get_load"
    " /kv_event_sources /debug /docs /openapi.json /redoc /health /ping /version /generate /v1/responses /v1/messages"
    " /v1/chat/completions /v1/chat/completions/render /v1/completions /v1/models /inference/v1/generate /invocations"
    " /admin/api/replicas /engine/shutdown"
).split()
TRICKS = (
    *"/SLEEP /Reset_Prefix_Cache /reset-prefix-cache //sleep /v1//classify /v1/../sleep /v1/./classify".split(),
    *"/v1/%73leep /v1/%2e%2e/sleep /v1/classify/ /v1/classify?x=1 /v1/classify#x v1/classify".split(),
    *("", "/", "/v1/classify;sleep", "http://x/v1", "/v1\\x", "/v1/class ify", "/v1/é", "/" + "x" * 300, "/v1/x\n"),
)


@pytest.mark.parametrize("path", [*NEVER, *TRICKS])
def test_paths_that_are_never_allowed(path):
    with pytest.raises(ValueError, match="passthrough_paths"):
        Settings.model_validate(
            {"models": [{"id": "demo", "replicas": ["http://x:1"]}], "server": {"passthrough_paths": [path]}}
        )


@pytest.mark.parametrize(
    "path", ["/v1/classify", "/pooling", "/v2/embed", "/v1/tokenize", "/v1/audio/speech", "/encode"]
)
def test_paths_that_may_be_allowed(path):
    server = {"passthrough_paths": [path]}
    found = Settings.model_validate({"models": [{"id": "demo", "replicas": ["http://x:1"]}], "server": server})
    assert found.server.passthrough_paths == (path,)


async def test_a_reload_changes_the_allowed_paths_and_what_replicas_serve(serve, start_engine, tmp_path):
    engine = await start_engine()
    serving = await serve(engine.url)
    file = tmp_path / "gateway.yaml"

    async def change(**sections):
        before = len(serving.events("reloaded"))
        settings = yaml.safe_load(file.read_text())
        settings["server"] |= sections.pop("server", {})
        file.write_text(yaml.safe_dump(settings | sections))
        await eventually(lambda: len(serving.events("reloaded")) > before)

    async with httpx.AsyncClient(base_url=serving.url, timeout=60) as client:

        async def ask(path="/pooling"):
            return (await client.post(path, json={"model": "demo", "input": "x"})).status_code

        assert await ask() == 404
        assert not engine.requests
        await change(server={"passthrough_paths": ["/pooling"]})
        assert await ask() == 404
        assert engine.requests[-1].path == "/pooling"  # it is the engine that has no such path
        sent = len(engine.requests)
        await change(server={"passthrough_paths": []})
        assert await ask() == 404
        assert len(engine.requests) == sent
        assert await ask(EMBED) == 200
        replica = {"url": engine.url, "endpoints": [CHAT]}
        await change(models=[{"id": "demo", "tokenizer": "builtin:demo", "replicas": [replica]}])
        assert await ask(EMBED) == 404
    assert not serving.events("restart_needed")


async def test_a_salt_is_not_needed_for_the_secret(engine, start_gateway):
    """Where nothing is isolated, no body is changed."""
    gateway = await start_gateway(engine, spaces={"secret": SECRET, "isolation": "none"})
    await gateway.send(embedding(), EMBED)
    assert engine.requests[-1].body == embedding()
