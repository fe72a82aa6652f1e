"""Bodies that are huge, compressed, or made to be expensive: served or refused, without being kept or inflated."""

import asyncio
import gzip
import tracemalloc
import zlib

import orjson
import pytest
from api_errors import problem
from one_gateway import *  # noqa: F403
from raw_http import post
from running_gateway import CHAT, COMPLETIONS
from scripted_engine import STREAM_HEAD, chunk, response

pytestmark = SHARED  # noqa: F405

MIB = 2**20
MEMBERS = b'"model":"demo","messages":[{"role":"user","content":"Hi"}]'
BODY = b"{" + MEMBERS + b"}"
STREAM = b'{"stream":true,' + MEMBERS + b"}"
BOMB = gzip.compress(b"a" * (64 * MIB))


def filled(size: int) -> bytes:
    """A request of exactly so many bytes, most of them in a member that is not read."""
    begun = b"{" + MEMBERS + b',"x_filler":"'
    return begun + b"f" * (size - len(begun) - 2) + b'"}'


class Memory:
    """What was allocated at most inside a block, by clients, gateway and engine together: they share the process."""

    def __enter__(self) -> "Memory":
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


# Size


async def test_a_body_of_16_mib_passes_and_one_byte_more_does_not(gateway, engine):
    body = filled(16 * MIB)
    assert (await gateway.send(body)).status_code == 200
    assert engine.requests[-1].body == body
    problem(await gateway.send(filled(16 * MIB + 1)), 413, "request_too_large")
    assert len(engine.requests) == 1
    assert (await gateway.ask()).status_code == 200


async def test_a_body_without_end_is_refused_at_the_limit_and_not_kept(start_gateway, engine, connect):
    gateway = await start_gateway(engine, server={"max_body_bytes": MIB})
    client = await connect(gateway)
    head = post(CHAT, b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
    piece = b"10000\r\n" + b"f" * 65536 + b"\r\n"
    with Memory() as memory:
        await client.send(head)
        for _ in range(64 * 16):
            await client.send(piece)
        answer = await client.answer()
    assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (413, "request_too_large")
    assert memory.peak < 8 * MIB
    assert not engine.requests
    await gateway.settled(0)


async def test_a_size_that_is_only_claimed_takes_no_memory(gateway, engine, connect):
    clients = [await connect(gateway) for _ in range(50)]
    with Memory() as memory:
        for client in clients:
            await client.send(post(CHAT, BODY).replace(b"content-length: 60", b"content-length: 16777216"))
        assert (await gateway.ask()).status_code == 200
    assert memory.peak < 16 * MIB
    assert len(engine.requests) == 1


# Compression


@pytest.mark.parametrize(
    "encoding", ["gzip", "GZIP", "x-gzip", "deflate", "br", "zstd", "identity, gzip", "gzip, gzip"]
)
async def test_compressed_bodies_are_refused_and_not_inflated(gateway, engine, encoding):
    bomb = zlib.compress(b"a" * (64 * MIB)) if encoding == "deflate" else BOMB
    with Memory() as memory:
        answer = await gateway.send(bomb, **{"content-encoding": encoding})
    problem(answer, 415, "unsupported_encoding")
    assert memory.peak < 8 * MIB
    assert not engine.requests


@pytest.mark.parametrize("encodings", [("gzip", "identity"), ("identity", "gzip"), ("gzip", "")])
async def test_an_encoding_is_not_hidden_by_another_header(gateway, engine, connect, encodings):
    client = await connect(gateway)
    await client.send(post(CHAT, BOMB, *(f"content-encoding: {encoding}" for encoding in encodings)))
    answer = await client.answer()
    assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (415, "unsupported_encoding")
    assert not engine.requests


async def test_what_is_compressed_without_saying_so_is_no_json(gateway, engine, connect):
    problem(await gateway.send(BOMB), 400)
    client = await connect(gateway)
    head = post(CHAT, b"").replace(b"content-length: 0", b"transfer-encoding: gzip, chunked")
    await client.send(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BOMB), BOMB))
    assert (await client.answer()).status == 501
    assert not engine.requests


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
async def test_an_encoding_that_changes_nothing_passes(gateway, encoding):
    assert (await gateway.send(BODY, **{"content-encoding": encoding})).status_code == 200


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_engines_compressed_answer_is_refused_and_not_inflated(behind, scripted, stream):
    if stream:
        head = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
        scripted.says(head, chunk(BOMB), b"0\r\n\r\n")
    else:
        scripted.says(response(BOMB, "content-encoding: gzip"))
    with Memory() as memory:
        answer = await behind.send(STREAM if stream else BODY)
    problem(answer, 502)
    assert "content-encoding" not in answer.headers
    assert memory.peak < 8 * MIB
    assert await behind.in_flight() == 0


async def test_an_engines_very_large_answer_is_passed_on(behind, scripted):
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    scripted.says(head, *[chunk(b" " * MIB)] * 70, chunk(b'{"choices":[]}'), b"0\r\n\r\n")
    answer = await behind.send(BODY)
    assert (answer.status_code, len(answer.content)) == (200, 70 * MIB + len(b'{"choices":[]}'))
    assert await behind.in_flight() == 0


# JSON that is expensive to read


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (lambda: b"[" * (16 * MIB), "nesting_too_deep"),
        (lambda: b'{"a":' * 1_000_000, "nesting_too_deep"),
        (lambda: b"{" + MEMBERS + b',"x":' + b"[" * 60_000 + b"]" * 60_000 + b"}", "nesting_too_deep"),
        (lambda: b'"' + b"a" * (16 * MIB - 2) + b'"', "invalid_json"),
        (lambda: b" " * (16 * MIB), "invalid_json"),
        (lambda: b"\0" * (16 * MIB), "invalid_json"),
        (lambda: b"{" + MEMBERS + b',"x":' + b"9" * 1_000_000 + b"x}", "invalid_json"),
        (lambda: b'{"model":"demo","messages":[' + b"{}," * 1_000_000 + b"{}]}", "too_many_values"),
        (lambda: b'{"model":"demo","messages":[' + b"0," * 2_000_000 + b"0]}", "too_many_values"),
        (lambda: b'{"model":"demo","messages":[' + b"0," * 1_000_000 + b"0]}", "invalid_type"),
    ],
    ids=["arrays", "objects", "inside", "string", "blanks", "zeros", "number", "messages", "numbers", "items"],
)
async def test_json_bombs_are_refused(gateway, engine, body, code):
    answer = await gateway.send(body())
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == code
    assert not engine.requests
    assert (await gateway.ask()).status_code == 200


@pytest.mark.parametrize(
    "more",
    [
        b'"x":0,' * 200_000,
        b'"metadata":{' + b'"x":0,' * 200_000 + b'"y":0},',
        b'"metadata":{' + b",".join(b'"%d":0' % number for number in range(200_000)) + b"},",
        b'"x":1e999999,"y":NaN,',
        b'"x":[' + b"1e308," * 200_000 + b"0],",
        b'"x":"' + b"\\u0041" * 500_000 + b'",',
    ],
    ids=["members", "inside", "names", "numbers", "doubles", "escapes"],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_expensive_but_valid_json_is_served(gateway, engine, path, more):
    members = MEMBERS if path == CHAT else b'"model":"demo","prompt":"Hi"'
    body = b"{" + more + members + b"}"
    assert (await gateway.send(body, path)).status_code in (200, 400)
    assert (await gateway.ask()).status_code == 200


async def test_many_messages_are_served_beside_others(gateway, engine):
    messages = b",".join([b'{"role":"user","content":""}'] * 20_000)
    large = asyncio.create_task(gateway.send(b'{"model":"demo","messages":[' + messages + b"]}"))
    assert (await gateway.ask()).status_code == 200
    assert (await gateway.http.get("/healthz")).status_code == 200
    assert (await large).status_code in (200, 400)
    await gateway.settled(2)


@pytest.mark.parametrize(
    ("body", "fits"),
    [
        (lambda many: b"{" + MEMBERS + b',"x":[' + b"[]," * many + b"[]]}", 99_995),
        (lambda many: b"{" + MEMBERS + b',"x":[' + b'{"{[":"\\"[{"},' * many + b"0]}", 99_996),
    ],
    ids=["lists", "objects"],
)
async def test_objects_and_lists_are_counted_exactly(gateway, engine, body, fits):
    assert (await gateway.send(body(fits))).status_code == 200
    problem(await gateway.send(body(fits + 1)), 400, "too_many_values")
    assert len(engine.requests) == 1


async def test_brackets_in_texts_do_not_count(gateway, engine):
    text = '[{"\\' * 200_000
    assert (await gateway.send(orjson.dumps({"model": "demo", "messages": [], "x": text}))).status_code == 400
    body = b"{" + MEMBERS + b',"x":' + orjson.dumps(text) + b"}"
    assert (await gateway.send(body)).status_code == 200
    assert engine.requests[-1].body == body


@pytest.mark.parametrize(
    ("prompt", "status"),
    [
        ([1] * 5000, 200),
        (["a"] * 4096, 200),
        (["a"] * 4097, 400),
        ([1] + ["a"] * 4096, 400),
        ([[1]] * 4097, 400),
        ([True] * 4097, 400),
    ],
    ids=["ids", "fit", "texts", "mixed", "lists", "booleans"],
)
async def test_prompts_are_limited_in_number(behind, scripted, prompt, status):
    answer = await behind.send(orjson.dumps({"model": "demo", "prompt": prompt}), COMPLETIONS)
    assert answer.status_code == status
    if status == 400:
        problem(answer, 400, "too_many_prompts", "prompt")
    assert len(scripted.received) == (status == 200)
