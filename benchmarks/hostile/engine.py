"""A mock engine that answers at once and counts calls: ``python -m benchmarks.hostile.engine PORT``.

It reads bodies without parsing them, so the time that a request takes is the gateway's. ``GET /calls`` returns the
number of generation requests by client, and of all other requests that have a body. Members of the body choose the
answer: with ``"x_hold":true`` a stream sends an event each second for a minute, with ``"x_flood":true`` it sends events
as fast as they are read.
"""

import asyncio
import json
import sys
from collections import Counter

import uvloop

MARK = b'"x_client":"normal"'
"""Member of the normal client's bodies."""

_EDGE = 4096
_HELD_EVENTS = 60
_FLOOD_EVENTS = 200_000
_GENERATES = (b"/v1/chat/completions", b"/v1/completions")
_CARD = b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"vllm","max_model_len":32000000}]}'
_METRICS = (
    b'vllm:cache_config_info{block_size="16",num_gpu_blocks="8193",enable_prefix_caching="True"} 1.0\n'
    b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
)
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_CHUNK = b'{"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
_DELTA = _CHUNK + b'"choices":[{"index":0,"delta":{"content":"some words of an answer"},"finish_reason":null}]}'

calls: Counter[str] = Counter()


def _whole(body: bytes, status: bytes = b"200 OK", content_type: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (status, content_type, len(body)) + body


def _event(data: bytes) -> bytes:
    event = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


def _usage(body: bytes) -> bytes:
    tokens = max(len(body) // 4, 1)
    return (
        b'"usage":{"prompt_tokens":%d,"completion_tokens":1,"total_tokens":%d,'
        b'"prompt_tokens_details":{"cached_tokens":0}}' % (tokens, tokens + 1)
    )


def _answer(body: bytes) -> bytes:
    choice = b'{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}'
    return b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[%b],%b}' % (choice, _usage(body))


async def _stream(writer: asyncio.StreamWriter, body: bytes, edges: bytes) -> None:
    events, pause = 1, 0.0
    if b'"x_hold":true' in edges:
        events, pause = _HELD_EVENTS, 1.0
    elif b'"x_flood":true' in edges:
        events = _FLOOD_EVENTS
    writer.write(_STREAM_HEAD)
    for number in range(events):
        writer.write(_event(_DELTA))
        await writer.drain()  # returns at once while the buffers have space
        if pause or number % 100 == 0:
            await asyncio.sleep(pause)
    last = _CHUNK + b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
    usage = _CHUNK + b'"choices":[],' + _usage(body) + b"}"
    writer.write(_event(last) + _event(usage) + _event(b"[DONE]") + b"0\r\n\r\n")


def _get(path: bytes) -> bytes:
    if path.startswith(b"/calls"):
        return _whole(json.dumps(calls).encode())
    if path.startswith(b"/v1/models"):
        return _whole(_CARD)
    if path.startswith(b"/metrics"):
        return _whole(_METRICS, content_type=b"text/plain")
    return _whole(b"{}")


async def _one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    method, _, path = head.partition(b" ")
    at = head.lower().find(b"content-length:")
    body = await reader.readexactly(int(head[at + 15 : head.index(b"\r\n", at)])) if at >= 0 else b""
    if method != b"POST":
        writer.write(_get(path))
        return
    edges = body[:_EDGE] + body[-_EDGE:]
    if path.partition(b" ")[0].partition(b"?")[0] not in _GENERATES:
        calls["other"] += 1
        writer.write(_whole(b'{"error":{"message":"Not Found"}}', b"404 Not Found"))
        return
    calls["normal" if MARK in edges else "attack"] += 1
    if b'"stream":true' in edges:
        await _stream(writer, body, edges)
    else:
        writer.write(_whole(_answer(body)))


async def _connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            await _one(reader, writer)
            await writer.drain()
    except (EOFError, OSError):
        pass
    finally:
        writer.close()


async def _serve(port: int) -> None:
    server = await asyncio.start_server(_connected, "127.0.0.1", port, limit=2**20)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
