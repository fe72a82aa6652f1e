"""However a stream arrives and however slowly the client reads, the client gets the same bytes."""

import asyncio
import contextlib
import itertools
from collections import deque

from hypothesis import given
from hypothesis import strategies as st
from pieces import event, opening, said, usage
from relaying import relaying

from gateway.core.outcome import Ending
from gateway.http_client import Broken
from gateway.http_client.connection import Connection

EVENTS = st.sampled_from(
    [
        opening(),
        said("a"),
        said("é €"),
        said("x" * 3000),
        b": keep-alive\n\n",
        b"event: message\r\ndata: {}\r\n\r\n",
        b"data: {}\n\n" * 700,
        event(choices=[], usage=usage(5, 2, 1)),
    ]
)


class Client:
    """A ``Sink`` that is congested after some writes, until it reads."""

    gone = interrupted = False

    def __init__(self, congested_after):
        self.congested = False
        self.got = b""
        self.chunks = 0
        self._congested_after = congested_after
        self._writes = 0
        self._callbacks = []

    def on_writable(self, callback):
        self._callbacks.append(callback)

    def start(self, status, headers):
        assert status == 200

    def write(self, data, *, more, chunk=None):
        self.got += data
        if chunk is not None:
            assert more
            assert chunk == framed(data)
            self.chunks += 1
        self._writes += 1
        self.congested = self.congested or self._writes in self._congested_after

    def read(self):
        self.congested = False
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class Transport:
    """The transport of a connection to a replica."""

    reads = True
    aborted = False

    def writelines(self, pieces):
        pass

    def get_write_buffer_size(self):
        return 0

    def pause_reading(self):
        self.reads = False

    def resume_reading(self):
        self.reads = True

    def abort(self):
        self.aborted = True


def framed(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def cut(data, places):
    edges = [0, *sorted(places), len(data)]
    return [part for start, end in itertools.pairwise(edges) if (part := data[start:end])]


async def passed_on(parts, congested_after, *, wanted):
    """What the client gets of a stream that arrives in these parts, and the outcome."""
    client = Client(congested_after)
    relay = relaying(client, stream_options={"include_usage": wanted})
    waiting = deque(parts)
    for _ in range(10_000):
        if client.congested:
            client.read()
        elif relay.exchange.paused:
            await asyncio.sleep(0)
        elif waiting:
            relay.body_received(waiting.popleft())
        else:
            break
    relay.received(Ending.COMPLETE)
    if client.congested:
        asyncio.get_running_loop().call_soon(client.read)
    outcome = await relay.finish()
    return client.got, outcome.ending, outcome.usage


async def passed_through(reads, congested_after, *, wanted):
    """The same of a stream that comes by chunks, in these reads of its connection; and the client."""
    client = Client(congested_after)
    relay = relaying(client, stream_options={"include_usage": wanted})
    connection = Connection(asyncio.get_running_loop(), "replica", lambda _: None)
    connection._transport = transport = Transport()
    relay.exchange = connection
    connection.send(b"", b"", relay)
    waiting = deque(
        [b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n", *reads]
    )
    for _ in range(10_000):
        if client.congested:
            client.read()
        if waiting and transport.reads:
            connection.data_received(waiting.popleft())
        elif relay.ended.done():
            break
        else:
            await asyncio.sleep(0)
    relay.received(await relay.ended)
    if client.congested:
        asyncio.get_running_loop().call_soon(client.read)
    outcome = await relay.finish()
    assert not transport.aborted
    return (client.got, outcome.ending, outcome.usage), client


@given(
    events=st.lists(EVENTS, max_size=6),
    data=st.data(),
    congested_after=st.sets(st.integers(1, 12)),
    wanted=st.booleans(),
)
def test_the_client_gets_the_same_bytes_however_they_arrive(events, data, congested_after, wanted):
    stream = b"".join(events) + b"data: [DONE]\n\n"
    places = sorted(data.draw(st.lists(st.integers(1, len(stream) - 1), max_size=8)))
    parts = [part for a, b in zip([0, *places], [*places, len(stream)], strict=True) if (part := stream[a:b])]
    whole = asyncio.run(passed_on([stream], (), wanted=wanted))
    assert asyncio.run(passed_on(parts, congested_after, wanted=wanted)) == whole
    assert whole[1] is Ending.COMPLETE
    expected = stream if wanted else stream.replace(event(choices=[], usage=usage(5, 2, 1)), b"")
    assert whole[0] == expected


@given(
    events=st.lists(EVENTS, max_size=6),
    data=st.data(),
    congested_after=st.sets(st.integers(1, 12)),
    wanted=st.booleans(),
)
def test_the_client_gets_the_same_bytes_however_chunks_are_read(events, data, congested_after, wanted):
    events = [*events, b"data: [DONE]\n\n"]
    whole = asyncio.run(passed_on([b"".join(events)], (), wanted=wanted))
    chunks = events
    if data.draw(st.booleans(), "chunks end anywhere"):
        stream = b"".join(events)
        chunks = cut(stream, data.draw(st.lists(st.integers(1, len(stream) - 1), max_size=8)))
    sent = [framed(each) for each in chunks]
    ends = list(itertools.accumulate(map(len, sent)))
    wire = b"".join(sent) + b"0\r\n\r\n"
    places = [end for end in ends if data.draw(st.integers(0, 3), "a read ends here, unless 0")]
    places += data.draw(st.lists(st.integers(1, len(wire) - 1), max_size=3))
    passed, _ = asyncio.run(passed_through(cut(wire, places), congested_after, wanted=wanted))
    assert passed == whole


def test_whole_events_keep_their_chunks_and_what_is_changed_gets_new_ones():
    counted = event(choices=[], usage=usage(5, 2, 1))
    without = event(choices=[{"index": 0, "delta": {"content": 'the "usage"'}}], usage=None)
    events = [opening(), said("a"), without, counted, said("c"), said("d") + said("e"), b"data: [DONE]\n\n"]
    reads = [*map(framed, events), b"0\r\n\r\n"]
    for wanted in (False, True):
        passed, client = asyncio.run(passed_through(reads, (), wanted=wanted))
        assert passed == asyncio.run(passed_on([b"".join(events)], (), wanted=wanted))
        assert client.chunks == len([said("a"), without, said("c")])


def test_an_event_that_is_split_over_chunks_is_passed_on_once():
    text = said("a")
    reads = [*map(framed, (opening(), text[:20], text[20:], said("b"), b"data: [DONE]\n\n")), b"0\r\n\r\n"]
    (got, ending, _), client = asyncio.run(passed_through(reads, (), wanted=True))
    assert got == opening() + text + said("b") + b"data: [DONE]\n\n"
    assert ending is Ending.COMPLETE
    assert client.chunks == 1


async def test_nothing_is_passed_on_behind_an_invalid_event():
    client = Client(())
    relay = relaying(client)
    relay.body_received(b"data: {}\n\n" * 600 + b"<nonsense>\n\n")
    assert await relay.ended is Ending.BROKEN
    passed = client.got
    with contextlib.suppress(Broken):
        relay.body_received(said("x"), framed(said("x")))
    assert client.got == passed == b"data: {}\n\n" * 600


def test_a_whole_event_within_another_one_keeps_its_place():
    parts = [opening(), b"event: message\n", said("a"), said("b"), b"data: [DONE]\n\n"]
    passed, _ = asyncio.run(passed_through([*map(framed, parts), b"0\r\n\r\n"], (), wanted=True))
    assert passed[:2] == (b"".join(parts), Ending.COMPLETE)
