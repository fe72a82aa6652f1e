"""Requests that cannot be served: the API's error shape, the right status, and nothing left behind."""

import asyncio
import json

import pytest
from api_errors import problem
from one_gateway import *  # noqa: F403
from patience import HANG_SECONDS
from raw_http import Connection, post
from running_gateway import CHAT, COMPLETIONS, RunningGateway

from gateway.core.json_portions import PORTION

pytestmark = SHARED  # noqa: F405

MESSAGES = '"messages":[{"role":"user","content":"Hi"}]'
GOOD = ('{"model":"demo",' + MESSAGES + "}").encode()


async def untouched(gateway: RunningGateway, engine) -> None:
    """The engine saw nothing, nothing is in flight, and the gateway serves on."""
    assert not engine.requests
    assert await gateway.in_flight() == 0
    assert (await gateway.send(GOOD)).status_code == 200


CHAT_MISTAKES = {
    "empty": (b"", "invalid_json", None),
    "bad json": (b'{"model":"demo",', "invalid_json", None),
    "text behind": (GOOD + b"x", "invalid_json", None),
    "single quotes": (b"{'model':'demo'}", "invalid_json", None),
    "a list": (b"[1,2]", "invalid_json", None),
    "a string": (b'"model"', "invalid_json", None),
    "null": (b"null", "invalid_json", None),
    "no utf-8": (b'{"model":"demo","messages":[{"role":"user","content":"\xff\xfe"}]}', "invalid_utf8", None),
    "utf-16": (GOOD.decode().encode("utf-16"), "invalid_utf8", None),
    "lone surrogate": (
        b'{"model":"demo","messages":[{"role":"user","content":"\\ud800 x"}]}',
        "invalid_unicode",
        None,
    ),
    "lone low surrogate": (
        b'{"model":"demo","messages":[{"role":"user","content":"\\udc00"}]}',
        "invalid_unicode",
        None,
    ),
    "no model": (f"{{{MESSAGES}}}".encode(), "missing_required_parameter", "model"),
    "model null": (b'{"model":null}', "missing_required_parameter", "model"),
    "model a number": (b'{"model":7}', "invalid_type", "model"),
    "model a list": (b'{"model":["demo"]}', "invalid_type", "model"),
    "no messages": (b'{"model":"demo"}', "missing_required_parameter", "messages"),
    "messages a string": (b'{"model":"demo","messages":"Hi"}', "invalid_type", "messages"),
    "messages an object": (b'{"model":"demo","messages":{}}', "invalid_type", "messages"),
    "messages empty": (b'{"model":"demo","messages":[]}', "invalid_value", "messages"),
    "message a string": (b'{"model":"demo","messages":["Hi"]}', "invalid_type", "messages[0]"),
    "role a number": (
        b'{"model":"demo","messages":[{"role":"user","content":"a"},{"role":1}]}',
        "invalid_type",
        "messages[1].role",
    ),
    "no role": (b'{"model":"demo","messages":[{"content":"a"}]}', "invalid_type", "messages[0].role"),
    "content a number": (
        b'{"model":"demo","messages":[{"role":"user","content":5}]}',
        "invalid_type",
        "messages[0].content",
    ),
    "stream a string": (GOOD[:-1] + b',"stream":"yes"}', "invalid_type", "stream"),
    "stream a number": (GOOD[:-1] + b',"stream":1}', "invalid_type", "stream"),
    "stream_options a list": (GOOD[:-1] + b',"stream":true,"stream_options":[]}', "invalid_type", "stream_options"),
    "tools an object": (GOOD[:-1] + b',"tools":{}}', "invalid_type", "tools"),
}


@pytest.mark.parametrize(("body", "code", "param"), CHAT_MISTAKES.values(), ids=CHAT_MISTAKES.keys())
async def test_bad_chat_request(gateway, engine, body, code, param):
    problem(await gateway.send(body), 400, code, param)
    await untouched(gateway, engine)


HAN = "漢".encode()

INVALID_BYTES = {
    "the first byte": (b"\xff" + GOOD, 0),
    "the last byte": (GOOD + HAN[:2], len(GOOD)),
    "behind a character": (GOOD[:-1] + HAN + b"\xff}", len(GOOD) + 2),
    "the first byte of the second portion": (GOOD + b" " * (PORTION - len(GOOD)) + b"\xff", PORTION),
    "in the third portion": (GOOD + b" " * (2 * PORTION + 7 - len(GOOD)) + b"\xff", 2 * PORTION + 7),
    "behind a character on a border of portions": (
        GOOD + b" " * (PORTION - 1 - len(GOOD)) + HAN + b"\xff",
        PORTION + 2,
    ),
    "a character that ends at a border": (GOOD + b" " * (PORTION - 2 - len(GOOD)) + HAN[:2], PORTION - 2),
    "a character broken off at a border": (GOOD + b" " * (PORTION - 2 - len(GOOD)) + HAN[:2] + b" ", PORTION - 2),
}


@pytest.mark.parametrize(("body", "offset"), INVALID_BYTES.values(), ids=INVALID_BYTES.keys())
async def test_byte_that_is_not_utf8_is_named_by_its_offset(gateway, engine, body, offset):
    reported = problem(await gateway.send(body), 400, "invalid_utf8")
    assert f"invalid byte at offset {offset}." in reported
    await untouched(gateway, engine)


COMPLETION_MISTAKES = {
    "no prompt": (b'{"model":"demo"}', "missing_required_parameter", "prompt"),
    "prompt null": (b'{"model":"demo","prompt":null}', "missing_required_parameter", "prompt"),
    "prompt a number": (b'{"model":"demo","prompt":5}', "invalid_type", "prompt"),
    "prompt an object": (b'{"model":"demo","prompt":{"text":"Hi"}}', "invalid_type", "prompt"),
}


@pytest.mark.parametrize(("body", "code", "param"), COMPLETION_MISTAKES.values(), ids=COMPLETION_MISTAKES.keys())
async def test_bad_completion_request(gateway, engine, body, code, param):
    problem(await gateway.send(body, COMPLETIONS), 400, code, param)
    await untouched(gateway, engine)


@pytest.mark.parametrize(
    "prompt", [[], [[]], [1, "a"], ["a", None], [-1], [2**40], [[1], "a"], [True], ""], ids=json.dumps
)
async def test_odd_prompt_is_the_engines_to_judge(gateway, engine, prompt):
    answer = await gateway.http.post(COMPLETIONS, json={"model": "demo", "prompt": prompt})
    assert len(engine.requests) >= 1
    assert "x-gateway-error" not in answer.headers
    assert answer.status_code in (200, 400)
    await gateway.settled(1)


@pytest.mark.parametrize(
    "content", [[7], ["x"], [{}], [{"type": "image_url", "image_url": {"url": "data:,"}}], [{"type": "text"}]], ids=str
)
async def test_odd_content_is_the_engines_to_judge(gateway, engine, content):
    answer = await gateway.ask(messages=[{"role": "user", "content": content}])
    assert CHAT in [request.path for request in engine.requests]
    assert "x-gateway-error" not in answer.headers
    await gateway.settled(1)


async def test_unknown_model_lists_the_known_ones(start_engine, start_gateway):
    engines = [await start_engine(), await start_engine(model="other")]
    models = [
        {"id": name, "tokenizer": "builtin:demo", "replicas": [engine.url]}
        for name, engine in zip(("demo", "other"), engines, strict=True)
    ]
    gateway = await start_gateway(models=models)
    reported = problem(await gateway.ask(model="gpt-9"), 404, "model_not_found", "model")
    assert "'gpt-9'" in reported
    assert "demo, other" in reported
    assert len(problem(await gateway.ask(model="x" * 5000), 404, "model_not_found", "model")) < 300
    assert len(problem(await gateway.http.get("/v1/models/" + "x" * 5000), 404, "model_not_found", "model")) < 300


@pytest.mark.parametrize("depth", [65, 1000, 20_000, 1_000_000])
async def test_deep_nesting(gateway, engine, depth):
    body = GOOD[:-1] + b',"x":' + b"[" * depth + b"]" * depth + b"}"
    problem(await gateway.send(body), 400, "nesting_too_deep")
    await untouched(gateway, engine)


async def test_nesting_up_to_the_limit(gateway):
    assert (await gateway.send(GOOD[:-1] + b',"x":' + b"[" * 63 + b"]" * 63 + b"}")).status_code == 200
    problem(await gateway.send(GOOD[:-1] + b',"x":' + b"[" * 64 + b"]" * 64 + b"}"), 400, "nesting_too_deep")


async def test_body_too_large(start_gateway, engine):
    gateway = await start_gateway(engine, server={"max_body_bytes": 10_000})
    free = 10_000 - len(GOOD)
    reported = problem(await gateway.send(GOOD + b" " * (free + 1)), 413, "request_too_large")
    assert "10000" in reported
    await untouched(gateway, engine)
    assert (await gateway.send(GOOD + b" " * free)).status_code == 200


async def test_body_too_large_in_chunks(start_gateway, engine):
    gateway = await start_gateway(engine, server={"max_body_bytes": 10_000})

    async def pieces():
        for _ in range(100):
            yield b" " * 1000

    answer = await gateway.http.post(CHAT, content=pieces(), headers={"content-type": "application/json"})
    problem(answer, 413, "request_too_large")
    await untouched(gateway, engine)


async def test_body_in_chunks_is_taken(gateway, engine):
    async def pieces():
        for at in range(0, len(GOOD), 7):
            yield GOOD[at : at + 7]
            await asyncio.sleep(0)

    answer = await gateway.http.post(CHAT, content=pieces(), headers={"content-type": "application/json"})
    assert answer.status_code == 200
    assert engine.requests[0].body == GOOD


@pytest.mark.parametrize(
    "media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json", ""]
)
async def test_other_content_types(gateway, engine, media):
    answer = await gateway.http.post(CHAT, content=GOOD, headers={"content-type": media})
    assert "application/json" in problem(answer, 415, "unsupported_media_type")
    await untouched(gateway, engine)


async def test_missing_content_type(gateway, engine):
    assert "missing" in problem(await gateway.http.post(CHAT, content=GOOD), 415, "unsupported_media_type")
    await untouched(gateway, engine)


@pytest.mark.parametrize("media", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.api+json"])
async def test_kinds_of_json(gateway, media):
    assert (await gateway.http.post(CHAT, content=GOOD, headers={"content-type": media})).status_code == 200


async def test_compressed_body(gateway, engine):
    problem(await gateway.send(b"\x1f\x8b", **{"content-encoding": "gzip"}), 415, "unsupported_encoding")
    await untouched(gateway, engine)


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/chat", "/v1/classify", "/v1/chat/completions/x", "/docs", "/%00"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_unknown_path(gateway, path, method):
    answer = await gateway.http.request(method, path, content=GOOD, headers={"content-type": "application/json"})
    problem(answer, 404, "unknown_path")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST"),
        ("PUT", CHAT, "POST"),
        ("DELETE", COMPLETIONS, "POST"),
        ("POST", "/v1/models", "GET"),
        ("DELETE", "/v1/models/demo", "GET"),
        ("POST", "/healthz", "GET"),
    ],
)
async def test_wrong_method(gateway, method, path, allowed):
    answer = await gateway.http.request(method, path)
    problem(answer, 405, "method_not_allowed")
    assert allowed in answer.headers["allow"]


MALFORMED = {
    "no http": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "no version": b"POST /v1/chat/completions\r\n\r\n",
    "bad header": b"POST /v1/chat/completions HTTP/1.1\r\nhost gateway\r\n\r\n",
    "bad length": b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: many\r\n\r\n",
    "negative length": b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: -5\r\n\r\n",
    "two lengths": b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 5\r\n"
    b"content-length: 6\r\n\r\nhello!",
    "length and chunks": b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 5\r\n"
    b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "bad chunk": b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n",
    "bad bytes": bytes(range(256)) * 4,
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
async def test_malformed_http_affects_no_other_client(gateway, engine, connect, data):
    client: Connection = await connect(gateway)
    await client.send(data)
    client.writer.write_eof()
    async with asyncio.timeout(HANG_SECONDS):
        answer = await client.reader.read()
    assert b"Traceback" not in answer
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 505")), answer
    await untouched(gateway, engine)


async def test_header_split_in_a_request_id_is_refused_or_replaced(gateway, connect):
    client = await connect(gateway)
    await client.send(post(CHAT, GOOD, "x-request-id: a\tb"))
    answer = await client.answer()
    assert "\t" not in (answer.header("x-request-id") or "")


@pytest.mark.parametrize("path", ["/v1/chat/completions//", "/v1/models/demo/", "/healthz/", "/"])
async def test_trailing_slash_is_another_path_and_says_so(gateway, path):
    answer = await gateway.http.post(path, json={}, headers={"x-request-id": "mine"})
    assert answer.status_code in (404, 405)
    assert answer.json()["error"]["code"] in ("unknown_path", "method_not_allowed")
    assert answer.headers["x-request-id"] == "mine"


async def test_probes_may_ask_for_the_head_alone(gateway):
    for path in ("/healthz", "/readyz"):
        answer = await gateway.http.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
