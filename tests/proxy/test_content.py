"""What of a stream is content, and what the event filter passes: everything that the standard of events allows."""

import asyncio

import pytest
from patience import HANG_SECONDS
from pieces import asking, opening, said
from relaying import Exchange, watched

from gateway.core.outcome import Ending
from gateway.proxy.resume.joined_stream import reopened
from gateway.proxy.resume.sent_text import adds_content
from gateway.proxy.sse import EventFilter

DONE = b"data: [DONE]\n\n"

NO_CONTENT = {
    "comment": b": ping\n\n",
    "retry": b"retry: 3000\n\n",
    "id": b"id: 7\n\n",
    "empty data": b"data:\n\n",
    "no colon": b"data\n\n",
    "an object": b"data: {}\n\n",
    "a ping": b'data: {"type":"ping"}\n\n',
    "no choices": b'data: {"choices":[]}\n\n',
    "usage so far": b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":0}}\n\n',
    "role": opening(),
    "role with nulls": b'data: {"choices":[{"index":0,"delta":{"role":"x","content":null,"tool_calls":[]}}]}\n\n',
    "no text": b'data: {"choices":[{"index":0,"text":""}]}\n\n',
    "end mark": DONE,
}
CONTENT = {
    "text": said("a"),
    "white space": said(" "),
    "completion": b'data: {"choices":[{"index":0,"text":"a"}]}\n\n',
    "reasoning": b'data: {"choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":"a"}}]}\n\n',
    "tool call": b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}\n\n',
    "second choice": b'data: {"choices":[{"index":0,"delta":{}},{"index":1,"delta":{"content":"a"}}]}\n\n',
    "end": said("", "stop"),
    "token without text": b'data: {"choices":[{"index":0,"delta":{"content":""},"token_ids":[7]}]}\n\n',
    "error": b'data: {"error":{"message":"x","code":400}}\n\n',
    "flat error": b'data: {"object":"error","message":"x"}\n\n',
}


def fed(*pieces: bytes) -> tuple[EventFilter, bytes]:
    events = EventFilter(keep_usage=True)
    return events, b"".join(map(events.feed, pieces))


@pytest.mark.parametrize("event", NO_CONTENT.values(), ids=NO_CONTENT)
def test_it_is_no_content(event):
    assert not adds_content(event)
    events, passed = fed(event)
    assert passed == event
    assert not events.content


@pytest.mark.parametrize(("before", "content"), [(b"", True), (b"\n", True), (b":", False)])
def test_an_event_too_long_to_be_read_is_content_unless_it_is_a_comment(before, content):
    events, passed = fed(before + b'data: {"choices":[{"delta":{"content":"' + b"a" * 600_000)
    assert passed
    assert events.content is content


@pytest.mark.parametrize("event", CONTENT.values(), ids=CONTENT)
def test_it_is_content(event):
    assert adds_content(event)
    assert fed(event)[0].content
    assert fed(event.replace(b"\n", b"\r\n"))[0].content


ALLOWED = {
    "unknown field": b"foo: bar\n\n",
    "capital": b"Data: x\n\n",
    "word": b"hello\n\n",
    "words": b"Bad gateway, try again\n\n",
    "field with a space": b"foo bar: <b>\n\n",
    "comment of any bytes": b": <html> \xe9\xff\x00\n\n",
    "long comment": b": " + b"x" * 2**20 + b"\n\n",
    "many comment lines": b": ping\n" * 3000 + b"\n",
    "mixed line ends": b"id: 1\n\r\nid: 2\r\n\rid: 3\r\r\n",
    "blank lines": b"\n\n\n\r\n\r\n",
}


@pytest.mark.parametrize("size", [1, 7, 10**7])
@pytest.mark.parametrize("before", ALLOWED.values(), ids=ALLOWED)
def test_it_passes_byte_for_byte(before, size):
    if size == 1 and len(before) > 2**16:
        size = 1000
    stream = before + said("a") + before + said("b", "stop") + DONE + before
    events, passed = fed(*(stream[at : at + size] for at in range(0, len(stream), size)))
    assert passed + events.finish() == stream
    assert events.content
    assert events.done
    assert not events.garbled


@pytest.mark.parametrize(
    "no_event",
    [
        b"<html>\n\n",
        b"  <!doctype html>\n<p>x</p>\n\n",
        b'{"error":\n"x"}\n\n',
        b'[\n"x"]\n\n',
        b'"x"\n\n',
        b"a\x00\n\n",
        b"\xff\n\n",
    ],
)
def test_what_is_no_stream_of_events_is_refused(no_event):
    assert fed(no_event)[0].garbled
    events, passed = fed(b"\xef\xbb\xbf" + no_event)
    assert events.garbled
    assert not passed


def test_a_byte_order_mark_hides_no_event():
    events, passed = fed(b"\xef\xbb\xbf" + said("a"))
    assert passed == b"\xef\xbb\xbf" + said("a")
    assert events.content


def test_a_line_of_comment_is_passed_on_at_once():
    events, passed = fed(b": pi", b"ng\n")
    assert passed == b": ping\n"
    assert events.feed(b": more\n: and") == b": more\n"
    assert events.feed(b" more\n" + said("a")) == b": and more\n" + said("a")


@pytest.mark.parametrize(
    ("end", "whole"),
    [
        (DONE + b": bye\n\n", True),
        (DONE + b"id: 9\n\nretry: 1\n\n" + b": x" * 1000 + b"\n\n", True),
        (b"event: done\ndata:[DONE]  \n\n", True),
        (b"data: [DONE]", True),
        (b"data: [DONE]\n", True),
        (DONE + said("more"), False),
        (DONE + said("more") + DONE, True),
        (b": data: [DONE]\n\n", False),
        (said("data: [DONE]"), False),
    ],
)
@pytest.mark.parametrize("size", [5, 10**6])
def test_a_stream_is_whole_if_the_end_mark_is_its_last_data(end, whole, size):
    stream = said("a") + end
    events, _ = fed(*(stream[at : at + size] for at in range(0, len(stream), size)))
    events.finish()
    assert events.done is whole


def roles(stream):
    return stream.count(b'"role"')


def test_a_second_stream_goes_on_in_the_first_one():
    seam = reopened(b": ping\n\n" + opening())
    other = [event.replace(b"chatcmpl-1", b"chatcmpl-2") for event in (opening(), said("a"), said("b", "stop"))]
    passed = EventFilter(keep_usage=True, seam=seam).feed(b": ping\n\n" + b"".join(other) + DONE)
    assert roles(passed) == 0
    assert passed.startswith(b": ping\n\ndata: ")
    assert passed.endswith(DONE)
    assert (passed.count(b"chatcmpl-1"), passed.count(b"chatcmpl-2")) == (2, 0)
    assert b'"content":"a"' in passed
    assert b'"content":"b"' in passed


def test_the_role_of_a_choice_that_the_client_does_not_have_is_kept():
    seam = reopened(opening())
    second = opening().replace(b'"index":0', b'"index":1')
    passed = seam.feed(opening() + second + second)
    assert roles(passed) == 1
    both = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":"x"}}]}\n\n'
    assert b'"reasoning_content":"x"' in (passed := seam.feed(both))
    assert roles(passed) == 0


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_the_role_in_an_event_that_broke_off_is_kept(end):
    assert reopened(b": ping\n\n" + opening().rstrip() + end) is None


@pytest.mark.parametrize("events", [b"", b": ping\n\nretry: 1\n\n", b"data:\n\n"])
def test_a_second_stream_needs_no_seam_behind_comments(events):
    assert reopened(events) is None


class Client:
    """A client that reads everything."""

    gone = interrupted = congested = False

    def start(self, status, headers):
        pass

    def write(self, data, *, more, chunk=None):
        pass


async def ended(relay):
    return await asyncio.wait_for(relay.ended, HANG_SECONDS)


def streaming(**seconds):
    relay = watched(Client(), asking(), **seconds)
    relay.exchange = Exchange()
    relay.response_begun(200, [(b"content-type", b"text/event-stream")])
    return relay


@pytest.mark.parametrize("first", [b": ping\n\n", opening(), b"data:\n\n"], ids=["comment", "role", "empty"])
async def test_an_engine_that_only_keeps_its_client_alive_times_out(first):
    relay = streaming(first_byte_seconds=0.05, chunk_seconds=1000.0)
    relay.body_received(first)
    assert relay.content_at is None
    assert await ended(relay) is Ending.TIMED_OUT
    relay.received(Ending.TIMED_OUT)
    assert relay.outcome().ttft_seconds is None
    assert not relay.outcome().has_content


async def test_a_keep_alive_does_not_shorten_the_wait_for_the_first_content():
    relay = streaming(first_byte_seconds=1000.0, chunk_seconds=0.01)
    relay.body_received(b": ping\n\n")
    await asyncio.sleep(0.05)
    assert not relay.ended.done()
    relay.body_received(said("a"))
    assert relay.content_at is not None
    assert await ended(relay) is Ending.TIMED_OUT


async def test_comments_do_not_hide_that_an_answer_has_stopped():
    relay = streaming(first_byte_seconds=1000.0, chunk_seconds=0.2)
    relay.body_received(said("a"))
    while not relay.ended.done():
        relay.body_received(b": ping\n\n")
        await asyncio.sleep(0.01)
    assert await ended(relay) is Ending.TIMED_OUT


async def test_neither_comments_nor_refusals_are_signs_of_work():
    relay = streaming()
    relay.body_received(said("a"))
    worked_at = relay.last_byte_at
    for comment in (b": ping\n\n", b": pi", b"ng\n", b"\n"):
        await asyncio.sleep(0.01)
        relay.body_received(comment)
    assert relay.last_byte_at == worked_at
    relay.body_received(b"event: message\n" + said("b"))
    assert relay.last_byte_at > worked_at
    refused = watched(Client(), asking())
    refused.response_begun(400, [])
    refused.body_received(b"{}")
    assert refused.content_at is None


@pytest.mark.parametrize("status", [201, 203, 204, 206])
async def test_success_of_another_kind_is_no_answer(status):
    relay = watched(Client(), asking())
    relay.response_begun(status, [])
    relay.body_received(b"{}")
    relay.received(Ending.COMPLETE)
    assert relay.ending is Ending.BROKEN
