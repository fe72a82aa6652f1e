"""A response by chunks is the same however it is cut into reads: whole chunks pass without the parser."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http_client import Broken
from gateway.http_client.connection import Connection

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


class Transport:
    """The transport to the replica, which sends only what is read."""

    paused = aborted = False

    def writelines(self, pieces):
        pass

    def get_write_buffer_size(self):
        return 0

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        self.paused = False

    def abort(self):
        self.aborted = True


class Receiver:
    """A ``ResponseReceiver``; pauses the connection with every part whose number is in ``pauses``."""

    def __init__(self, connection, pauses=()):
        self.connection = connection
        self.pauses = pauses
        self.parts = []
        self.chunks = []
        self.complete = False
        self.error = None

    def response_begun(self, status, headers):
        assert status == 200

    def body_received(self, data, chunk=None):
        self.parts.append(data)
        self.chunks.append(chunk)
        if len(self.parts) in self.pauses:
            self.connection.pause()

    def response_complete(self):
        self.complete = True

    def failed(self, error):
        self.error = error


async def received(reads, pauses=()):
    """What is received of these reads."""
    transport = Transport()
    connection = Connection(asyncio.get_running_loop(), "replica", lambda _: None)
    connection._transport = transport
    receiver = Receiver(connection, pauses)
    connection.send(b"", b"", receiver)
    for read in reads:
        connection.data_received(read)
        while transport.paused and not transport.aborted:
            connection.resume()
            await asyncio.sleep(0)
    return receiver, connection.reusable


def cut(data, places):
    edges = [0, *sorted(place for place in set(places) if 0 < place < len(data)), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


BODIES = st.one_of(
    st.binary(min_size=1, max_size=20),
    st.sampled_from([b"\r\n", b"\r\n\r\n", b"5\r\nabcde\r\n", b"0\r\n\r\n", b"1", b"a\r\n", b"x" * 300]),
)
SIZES = st.sampled_from(["%x", "%x", "%x", "%X", "0%x", "%x;a=b"])


@given(
    bodies=st.lists(BODIES, min_size=1, max_size=6),
    data=st.data(),
    end=st.sampled_from([END, b"0\r\nx-trailer: 1\r\n\r\n", b"000\r\n\r\n"]),
    pauses=st.sets(st.integers(1, 6), max_size=3),
)
def test_a_body_is_the_same_however_it_is_read(bodies, data, end, pauses):
    framed = [(data.draw(SIZES) % len(body)).encode() + b"\r\n" + body + b"\r\n" for body in bodies]
    wire = HEAD + b"".join(framed) + end
    chunk_ends = list(itertools.accumulate(map(len, [HEAD, *framed])))
    places = [place for place in chunk_ends if data.draw(st.booleans())]
    places += data.draw(st.lists(st.integers(1, len(wire) - 1), max_size=4))
    receiver, reusable = asyncio.run(received(cut(wire, places), pauses))
    assert b"".join(receiver.parts) == b"".join(bodies)
    assert (receiver.complete, reusable, receiver.error) == (True, True, None)
    for part, as_chunk in zip(receiver.parts, receiver.chunks, strict=True):
        assert as_chunk in (None, chunk(part))


def test_whole_chunks_are_handed_on_with_their_framing():
    wanted = [chunk(b"one"), chunk(b"two"), chunk(b"three")]
    receiver, _ = asyncio.run(received([HEAD, *wanted, END]))
    assert receiver.chunks[1:] == wanted[1:]
    assert receiver.parts == [b"one", b"two", b"three"]


@pytest.mark.parametrize("size", [1, 15, 16, 255, 256, 4095, 4096, 65535, 65536])
def test_a_chunk_of_any_size_is_handed_on_with_its_framing(size):
    whole = chunk(b"x" * size)
    receiver, _ = asyncio.run(received([HEAD, chunk(b"a"), whole, END]))
    assert receiver.chunks == [None, whole]
    assert receiver.parts == [b"a", b"x" * size]


def test_a_read_that_is_too_short_or_too_long_for_every_whole_chunk_is_parsed():
    begun = b"10\r\n" + b"x" * 13 + b"\r\n"
    receiver, reusable = asyncio.run(received([HEAD, chunk(b"a"), begun, b"x\r\n", END[:1], END[1:]]))
    assert b"".join(receiver.parts) == b"a" + b"x" * 13 + b"\r\nx"
    assert receiver.chunks == [None] * len(receiver.chunks)
    assert (receiver.complete, reusable, receiver.error) == (True, True, None)


def test_whole_chunks_are_recognized_again_behind_one_that_was_split():
    split = chunk(b"split")
    receiver, _ = asyncio.run(received([HEAD, chunk(b"a"), split[:4], split[4:], chunk(b"b"), END]))
    assert receiver.parts == [b"a", b"s", b"plit", b"b"]
    assert receiver.chunks == [None, None, None, chunk(b"b")]


@pytest.mark.parametrize(
    "reads",
    [
        [HEAD + chunk(b"a") + b"a\r\n", b"5\r\nabcde\r\n", b"\r\n"],
        [HEAD + chunk(b"a") + b"a", b"\r\n", b"5\r\nabcde\r\n", b"\r\n"],
        [HEAD, chunk(b"a"), b"a\r\n5\r\n", b"2\r\nab\r\n", b"\r\n"],
        [HEAD + chunk(b"a") + b"1", b"3\r\nabc\r\n", b"x" * 14 + b"\r\n"],
        [HEAD, chunk(b"a"), chunk(b"b") + b"1", b"0\r\n", b"3\r\nabc\r\n", b"x" * 8 + b"\r\n"],
    ],
)
def test_a_read_that_looks_like_a_chunk_within_another_one_is_none(reads):
    in_one, _ = asyncio.run(received([b"".join(reads) + END]))
    assert in_one.complete
    receiver, reusable = asyncio.run(received([*reads, END]))
    assert b"".join(receiver.parts) == b"".join(in_one.parts)
    assert (receiver.complete, reusable, receiver.error) == (True, True, None)


def test_what_follows_the_end_is_no_chunk():
    receiver, reusable = asyncio.run(received([HEAD, chunk(b"a"), chunk(b"b"), END, chunk(b"c")]))
    assert receiver.parts == [b"a", b"b"]
    assert receiver.complete
    assert not reusable


@pytest.mark.parametrize(
    "read",
    [b"5\r\nabcd\r\n", b"3\r\nabcd\r\n", b"0x4\r\nabcd\r\n", b"+4\r\nabcd\r\n", b"4\nabcd\r\n", b"4\r\nabcd\n\n"],
    ids=["too long", "too short", "0x", "plus", "line feed", "no line break"],
)
def test_what_is_no_whole_chunk_is_not_taken_for_one(read):
    receiver, reusable = asyncio.run(received([HEAD, chunk(b"a"), read, chunk(b"b"), END]))
    assert receiver.chunks.count(None) == len(receiver.chunks)
    assert isinstance(receiver.error, Broken)
    assert not reusable


def test_a_body_that_only_looks_like_chunks_is_passed_on_as_it_is():
    body = chunk(b"one") + chunk(b"two")
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
    receiver, reusable = asyncio.run(received([head, chunk(b"one"), chunk(b"two")]))
    assert b"".join(receiver.parts) == body
    assert receiver.chunks == [None, None]
    assert receiver.complete
    assert reusable


def test_whole_chunks_count_for_the_framing_that_a_response_may_have():
    extended = b"1;" + b"x" * 20_000 + b"\r\nX\r\n"
    few, _ = asyncio.run(received([HEAD, chunk(b"a"), *[extended] * 10, END]))
    assert isinstance(few.error, Broken)
    many, reusable = asyncio.run(received([HEAD, *[chunk(b"a" * 1000)] * 200, *[extended] * 10, END]))
    assert (many.complete, reusable, many.error) == (True, True, None)


@pytest.mark.parametrize("at", [1, 2], ids=["parsed", "whole chunk"])
def test_a_chunk_that_comes_while_the_receiver_pauses_waits(at):
    async def run():
        connection = Connection(asyncio.get_running_loop(), "replica", lambda _: None)
        connection._transport = Transport()
        receiver = Receiver(connection, pauses={at})
        connection.send(b"", b"", receiver)
        for read in (HEAD, chunk(b"a"), chunk(b"b"), chunk(b"c")):
            connection.data_received(read)
        assert receiver.parts == [b"a", b"b"][:at]
        connection.resume()
        await asyncio.sleep(0)
        connection.data_received(chunk(b"d"))
        assert b"".join(receiver.parts) == b"abcd"
        assert receiver.chunks[-1] == chunk(b"d")

    asyncio.run(run())


def test_a_chunk_that_comes_before_the_last_read_was_passed_on_waits():
    async def run():
        connection = Connection(asyncio.get_running_loop(), "replica", lambda _: None)
        connection._transport = transport = Transport()
        receiver = Receiver(connection)
        connection.send(b"", b"", receiver)
        for read in (HEAD, chunk(b"a"), chunk(b"bbb") * 5000, chunk(b"c")):
            connection.data_received(read)
        assert transport.paused
        while transport.paused:
            await asyncio.sleep(0)
        assert b"".join(receiver.parts) == b"a" + b"bbb" * 5000 + b"c"

    asyncio.run(run())


def test_what_stands_in_the_place_of_the_next_head_is_no_chunk():
    async def run():
        connection = Connection(asyncio.get_running_loop(), "replica", lambda _: None)
        connection._transport = Transport()
        for reads in ((HEAD, chunk(b"a"), END), (b"HTTP/1.1 200 OK\r\n", chunk(b"b"))):
            receiver = Receiver(connection)
            connection.send(b"", b"", receiver)
            for read in reads:
                connection.data_received(read)
        assert receiver.parts == []
        assert isinstance(receiver.error, Broken)

    asyncio.run(run())


def test_an_error_of_the_receiver_ends_the_exchange():
    class Refuses(Receiver):
        def body_received(self, data, chunk=None):
            super().body_received(data, chunk)
            if chunk is not None:
                raise ValueError("refused")

    async def run():
        connection = Connection(asyncio.get_running_loop(), "replica", lambda _: None)
        connection._transport = transport = Transport()
        receiver = Refuses(connection)
        connection.send(b"", b"", receiver)
        for read in (HEAD, chunk(b"a"), chunk(b"b"), chunk(b"c")):
            connection.data_received(read)
        assert str(receiver.error) == "refused"
        assert receiver.parts == [b"a", b"b"]
        assert transport.aborted
        assert connection.closed

    asyncio.run(run())
