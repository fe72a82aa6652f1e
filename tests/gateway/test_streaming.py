"""Streams: piece by piece, unchanged but for the usage chunk that was not asked for."""

import asyncio
import itertools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import HANG_SECONDS
from raw_http import post
from running_gateway import CHAT, COMPLETIONS
from scripted_engine import STREAM_HEAD, chunk

from gateway.proxy.sse import EventFilter

BODY = b'{"model":"demo","stream":true,"messages":[{"role":"user","content":"Hi"}]}'
WITH_USAGE = BODY.replace(b'"stream":true', b'"stream":true,"stream_options":{"include_usage":true}')
END = b"0\r\n\r\n"


def event(payload: str) -> bytes:
    return f"data: {payload}\n\n".encode()


def word(text: str) -> bytes:
    return event(json.dumps({"id": "x", "choices": [{"index": 0, "delta": {"content": text}}]}, ensure_ascii=False))


USAGE_EVENT = event('{"id":"x","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}')
DONE = event("[DONE]")


async def test_each_event_arrives_before_the_next_one_is_sent(behind, scripted, connect):
    arrived = asyncio.Semaphore(0)

    async def answer(writer, received):
        writer.write(STREAM_HEAD)
        for number in range(5):
            writer.write(chunk(word(str(number))))
            await writer.drain()
            await arrived.acquire()
        writer.write(chunk(DONE) + END)

    scripted.answer = answer
    client = await connect(behind)
    await client.send(post(CHAT, BODY))
    async with asyncio.timeout(HANG_SECONDS):
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head
        for number in range(5):
            found = await client.reader.readuntil(word(str(number)))
            assert found.endswith(word(str(number)))
            arrived.release()
        await client.reader.readuntil(DONE)


async def test_a_client_of_http_1_0_gets_a_stream_without_chunks(behind, scripted, connect):
    events = [word(str(number)) for number in range(5)] + [DONE]
    scripted.says(STREAM_HEAD, *map(chunk, events), END, pause=0.01)
    client = await connect(behind)
    await client.send(post(CHAT, BODY).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    async with asyncio.timeout(HANG_SECONDS):
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert await client.reader.read() == b"".join(events)


async def test_tokens_arrive_as_they_are_generated(start_engine, start_gateway, connect):
    engine = await start_engine(decode_ms=50)
    gateway = await start_gateway(engine)
    client = await connect(gateway)
    await client.send(post(CHAT, BODY.replace(b"{", b'{"max_tokens":12,"ignore_eos":true,', 1)))
    answer = await client.answer()
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(answer.pieces)]
    assert sum(gap > 0.02 for gap in gaps) >= 8


async def test_usage_chunk_is_taken_out_unless_asked_for(behind, scripted):
    scripted.says(STREAM_HEAD, *(chunk(part) for part in (word("a"), word("b"), USAGE_EVENT, DONE)), END)
    assert (await behind.send(BODY)).content == word("a") + word("b") + DONE
    assert (await behind.send(WITH_USAGE)).content == word("a") + word("b") + USAGE_EVENT + DONE
    metrics = await behind.settled(2)
    assert metrics.value("gateway_prompt_tokens_total") == 18


async def test_usage_beside_choices_stays(behind, scripted):
    with_choices = event('{"choices":[{"index":0,"delta":{}}],"usage":{"prompt_tokens":9,"completion_tokens":1}}')
    content_event = word('my "usage" is {"usage": 1}')
    scripted.says(STREAM_HEAD, chunk(with_choices + content_event + USAGE_EVENT + DONE), END)
    assert (await behind.send(BODY)).content == with_choices + content_event + DONE


async def test_comments_names_and_line_ends_stay(behind, scripted):
    stream = b": ping\r\n\r\nevent: x\r\nid: 1\r\ndata: {}\r\n\r\n" + word("é😀") + b"retry: 5\n\n" + DONE
    scripted.says(STREAM_HEAD, *(chunk(bytes([byte])) for byte in stream), END)
    assert (await behind.send(BODY)).content == stream


@pytest.mark.parametrize("ping", [b"event: ping\ndata: still here\n\n", b"event:keepalive\r\ndata:\tnow\r\n\r\n"])
async def test_events_of_other_kinds_may_have_any_text(behind, scripted, ping):
    stream = ping + word("a") + ping + DONE
    scripted.says(STREAM_HEAD, *(chunk(part) for part in (ping, word("a"), ping, DONE)), END)
    assert (await behind.send(BODY)).content == stream


@pytest.mark.parametrize("odd", [b"data: still here\n\n", b"event: message\ndata: {\n\n", b"event: error\ndata: x\n\n"])
async def test_events_of_the_usual_kind_have_json(behind, scripted, odd):
    scripted.says(STREAM_HEAD, chunk(word("a")), chunk(odd), END)
    stream = (await behind.send(BODY)).content
    assert stream.startswith(word("a") + b'data: {"error":')


async def test_large_events_arrive_whole(behind, scripted):
    stream = word("x" * 300_000) + word("y" * 70_000) + USAGE_EVENT + DONE
    scripted.says(STREAM_HEAD, chunk(stream[:100_000]), chunk(stream[100_000:]), END)
    assert (await behind.send(BODY)).content == stream.replace(USAGE_EVENT, b"")


@pytest.mark.parametrize("tail", [b"", b"data: {tail", b"data: [DONE", b": [DONE]"])
async def test_stream_without_an_end_mark_is_not_whole(behind, scripted, tail):
    scripted.says(STREAM_HEAD, chunk(word("a") + tail), END)
    stream = (await behind.send(BODY)).content
    assert stream.startswith(word("a") + b'data: {"error":')
    assert stream.endswith(DONE)


@pytest.mark.parametrize("end", [b"data: [DONE]", b"data: [DONE]\n", b"data:[DONE]\r\n\r\n", DONE + b": bye\n\n"])
async def test_end_mark_ends_the_stream_as_it_is(behind, scripted, end):
    scripted.says(STREAM_HEAD, chunk(word("a") + end), END)
    assert (await behind.send(BODY)).content == word("a") + end


async def test_stream_of_nothing_but_its_end_is_whole(behind, scripted):
    scripted.says(STREAM_HEAD, chunk(b"data: [DONE]"), END)
    answer = await behind.send(BODY)
    assert (answer.status_code, answer.content) == (200, b"data: [DONE]")


async def test_stream_whose_connection_breaks_behind_its_end_mark_is_whole(behind, scripted):
    scripted.says(STREAM_HEAD, chunk(word("a") + DONE), then_close=True)
    assert (await behind.send(BODY)).content == word("a") + DONE
    metrics = await behind.settled(1)
    assert metrics.value("gateway_failovers_total") == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {},
        {"n": 2, "logprobs": True},
    ],
    ids=["usage", "continuous", "plain", "two choices"],
)
async def test_stream_equals_the_engines_own(gateway, engine, fields):
    body = {"model": "demo", "messages": [{"role": "user", "content": "Tell me."}], "stream": True, "max_tokens": 30}
    headers = {"x-request-id": "same"}
    through = (await gateway.http.post(CHAT, json=body | fields, headers=headers)).content
    direct = (await gateway.http.post(engine.url + CHAT, json=body | fields, headers=headers)).content

    def timeless(stream: bytes) -> list[bytes]:
        # The second request finds the first one's blocks. Two choices are computed side by side: which of them is a
        # step ahead is chance, so their events are compared in the order of each.
        events = re.sub(rb'"(created|cached_tokens)":\d+', rb'"\1":0', stream).split(b"\n\n")
        return sorted(events, key=lambda event: b'"index":1' in event)

    assert timeless(through) == timeless(direct)
    assert through.endswith(DONE)


async def test_completions_stream_equals_the_engines_own(gateway, engine):
    body = {"model": "demo", "prompt": "Once", "stream": True, "max_tokens": 9}
    headers = {"x-request-id": "same"}
    through = (await gateway.http.post(COMPLETIONS, json=body, headers=headers)).content
    direct = (await gateway.http.post(engine.url + COMPLETIONS, json=body, headers=headers)).content
    assert re.sub(rb'"created":\d+', b"", through) == re.sub(rb'"created":\d+', b"", direct)


async def test_slow_reader_gets_everything(behind, scripted, connect):
    events = [word("z" * 20_000 + str(number)) for number in range(100)]
    scripted.says(STREAM_HEAD, *(chunk(part) for part in events), chunk(DONE), END)
    client = await connect(behind)
    await client.send(post(CHAT, BODY))
    await asyncio.sleep(0.3)
    assert (await client.answer()).body == b"".join(events) + DONE


def filtered(pieces: list[bytes], *, keep_usage: bool) -> tuple[bytes, object]:
    events = EventFilter(keep_usage=keep_usage)
    out = b"".join(events.feed(piece) for piece in pieces)
    return out + events.finish(), events.usage


endings = st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"])
kinds = st.sampled_from(
    [
        word("hé"),
        word('"usage"'),
        USAGE_EVENT,
        event('{"choices":[{"index":0}],"usage":{"prompt_tokens":3,"completion_tokens":1}}'),
        event('{"choices":[{"index":0}],"usage":null}'),
        event('{"choices":[],"usage":null}'),
        b": ping\n\n",
        DONE,
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(kinds, endings), max_size=6),
    st.sampled_from([b"", b"data: {", b'data: {"usage"']),
    st.lists(st.integers(0, 700), max_size=12),
    st.booleans(),
)
def test_any_way_to_cut_a_stream_gives_the_same(events, tail, cuts, keep_usage):
    stream = b"".join(body[:-2] + ending for body, ending in events) + tail
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    pieces = [stream[start:end] for start, end in itertools.pairwise(edges)]
    expected = b"".join(body[:-2] + ending for body, ending in events if keep_usage or body != USAGE_EVENT) + tail
    in_one = filtered([stream], keep_usage=keep_usage)
    assert filtered(pieces, keep_usage=keep_usage) == in_one
    assert in_one[0] == expected


@given(st.lists(st.integers(0, 300), max_size=8))
def test_whole_events_are_not_held_back(cuts):
    stream = word("a") + USAGE_EVENT + word("b")
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    events = EventFilter(keep_usage=True)
    out = b""
    for start, end in itertools.pairwise(edges):
        out += events.feed(stream[start:end])
        complete = stream[:end].rfind(b"\n\n") + 2 if b"\n\n" in stream[:end] else 0
        assert len(out) >= complete
    assert out == stream


def test_events_longer_than_any_limit_pass_in_one_piece_or_many():
    long = word("x" * 5 * 2**20)
    stream = word("a") + long + word("b") + DONE
    for size in (len(stream), 2**16):
        events = EventFilter(keep_usage=False)
        out = b"".join(events.feed(stream[start : start + size]) for start in range(0, len(stream), size))
        assert out == stream
        assert not events.garbled


@given(st.lists(kinds, max_size=3), st.lists(st.integers(0, 300), max_size=6), st.lists(kinds, max_size=2))
def test_nothing_passes_from_what_is_no_event_on(before, cuts, after):
    stream = b"".join(before) + b"data: {garbled\n\n" + b"".join(after)
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    events = EventFilter(keep_usage=True)
    out = b"".join(events.feed(stream[start:end]) for start, end in itertools.pairwise(edges))
    # The blank line behind a comment may have come with what is no event.
    assert out.rstrip(b"\n") == b"".join(before).rstrip(b"\n")
    assert events.garbled
    assert events.finish() == b""
