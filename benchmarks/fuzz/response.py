"""The HTTP client's parser of responses: heads, chunks, statuses, what follows a response, cut at any byte.

* Nothing is raised but ``Broken``.
* How the response arrives in pieces changes neither what is read nor whether the connection is used again.
* A response that was written correctly is read as it was written; one that is followed by anything is not followed by
  another request.
* What is held, and what is taken that is no body, is bounded; the parser calls back at most once for each byte.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from unittest import mock

from hypothesis import strategies as st

from benchmarks.fuzz.target import Target, cut
from gateway.http_client import connection
from gateway.http_client.connection import _MAX_OVERHEAD, Broken, Connection

_TOKEN = st.text("abcxyzXYZ-0189", min_size=1, max_size=12).map(str.encode)
_VALUE = st.one_of(
    st.text("abc XYZ,;=/\"'0123456789", max_size=20).map(lambda text: text.strip().encode()),
    st.sampled_from(
        [b"close", b"keep-alive", b"chunked", b"gzip, chunked", b"0", b"5", b"99999999999999999999", b"\xff"]
    ),
)
_NAME = st.one_of(
    _TOKEN,
    st.sampled_from([b"connection", b"content-length", b"transfer-encoding", b"upgrade", b"Content-Type", b"trailer"]),
)
_STATUS = st.one_of(
    st.integers(100, 599).map(lambda status: b"%03d" % status),
    st.sampled_from([b"000", b"099", b"101", b"600", b"999", b"20", b"2000", b"abc", b"-12", b""]),
)
_BODY = st.binary(max_size=200)
_NOISE = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(
        [b"\r\n", b"\r", b"\n", b"\r\n\r\n", b"0\r\n\r\n", b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\n", b"\x00", b":"]
    ),
)


@dataclass(frozen=True)
class Example:
    """Bytes from a replica.

    Attributes:
        data: All of them.
        places: Where they are cut.
        expected: Status and body if it is a correct response and nothing else.
        closes: Whether the replica closes the connection behind them.
        written: Whether the request was written when they came.
    """

    data: bytes
    places: Sequence[int]
    expected: tuple[int, bytes] | None
    closes: bool
    written: bool


@st.composite
def _chunked(draw: st.DrawFn, body: bytes) -> bytes:
    out = []
    for piece in cut(body, draw(st.lists(st.integers(0, len(body)), max_size=4))):
        extension = draw(st.sampled_from([b"", b";a=b", b';a="b"']))
        out.append(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece))
    trailer = draw(st.sampled_from([b"", b"x-trailer: 1\r\n"]))
    return b"".join(out) + b"0\r\n" + trailer + b"\r\n"


@st.composite
def _correct(draw: st.DrawFn) -> tuple[bytes, tuple[int, bytes]]:
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nlink: a\r\n\r\n"]))
    status = draw(st.integers(200, 599).filter(lambda number: number not in (204, 304)))
    body = draw(_BODY)
    lines = [b"x-%b: %b" % (name, b"v") for name in draw(st.lists(_TOKEN, max_size=3))]
    if draw(st.booleans()):
        lines.append(b"Transfer-Encoding: chunked")
        framed = draw(_chunked(body))
    else:
        lines.append(b"Content-Length: %d" % len(body))
        framed = body
    head = b"HTTP/1.1 %d Reason\r\n%b\r\n\r\n" % (status, b"\r\n".join(lines))
    return interim + head + framed, (status, body)


@st.composite
def _odd(draw: st.DrawFn) -> bytes:
    headers = b"".join(b"%b: %b\r\n" % pair for pair in draw(st.lists(st.tuples(_NAME, _VALUE), max_size=4)))
    head = b"HTTP/1.%d %b %b\r\n%b\r\n" % (draw(st.integers(0, 2)), draw(_STATUS), draw(_TOKEN), headers)
    return head + draw(st.one_of(_BODY, _BODY.flatmap(_chunked), _NOISE))


@st.composite
def _mutated(draw: st.DrawFn, text: bytes) -> bytes:
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        upto = draw(st.integers(at, min(len(text), at + 5)))
        text = text[:at] + draw(_NOISE) + text[upto:]
    return text


@st.composite
def _repeated(draw: st.DrawFn) -> bytes:
    """One fragment again and again."""
    beginning = draw(st.sampled_from([b"", b"HTTP/1.1 200 O", b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 200 OK\r\n"]))
    if draw(st.booleans()):
        beginning = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + draw(
            st.sampled_from([b"", b"1;", b"1\r\nx\r\n0\r\n", b"0000"])
        )
    fragment = draw(
        st.one_of(
            st.sampled_from([b"a", b"0", b"x: y\r\n", b"1\r\nx\r\n", b"\r\n", b"HTTP/1.1 100 C\r\n\r\n", b";"]),
            st.binary(min_size=1, max_size=8),
        )
    )
    return beginning + fragment * draw(st.integers(1, 300_000 // len(fragment)))


@st.composite
def _examples(draw: st.DrawFn) -> Example:
    kind = draw(st.sampled_from(["correct", "correct", "followed", "odd", "mutated", "mutated", "repeated"]))
    expected = None
    if kind == "correct":
        data, expected = draw(_correct())
    elif kind == "followed":
        data = draw(_correct())[0] + draw(st.one_of(_odd(), _NOISE, _correct().map(lambda pair: pair[0])))
    elif kind == "odd":
        data = draw(_odd())
    elif kind == "mutated":
        data = draw(st.one_of(_odd(), _correct().map(lambda pair: pair[0])).flatmap(_mutated))
    else:
        data = draw(_repeated())
    places = draw(st.lists(st.integers(0, len(data)), max_size=12))
    if len(data) < 400 and draw(st.booleans()):
        places = list(range(len(data)))
    elif draw(st.booleans()):  # whole chunks, if the first line that ends there is no size
        places = [line_end.end() for line_end in re.finditer(rb"\r\n", data)][draw(st.integers(0, 1)) :: 2]
    return Example(data, places, expected, draw(st.booleans()), draw(st.integers(0, 5)) > 0)


class _Transport:
    """Stands for the socket."""

    def __init__(self) -> None:
        self.paused = self.aborted = False
        self.unwritten = 0

    def writelines(self, pieces: Sequence[bytes]) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unwritten

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def abort(self) -> None:
        self.aborted = True


class _Counting(Connection):
    """Counts what the parser says."""

    calls = 0

    def on_message_begin(self) -> None:
        self.calls += 1
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.calls += 1
        super().on_header(name, value)

    def on_body(self, data: bytes) -> None:
        self.calls += 1
        super().on_body(data)


@dataclass
class _Seen:
    """What a receiver gets; a ``ResponseReceiver``."""

    status: int = 0
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes = b""
    whole: bool = False
    broken: bool = False
    reusable: bool = False
    no_body: int = 0

    def response_begun(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        assert not any((self.status, self.whole, self.broken))
        self.status, self.headers = status, headers

    def body_received(self, data: bytes, chunk: bytes | None = None) -> None:
        assert data
        assert self.status
        assert not any((self.whole, self.broken))
        self.body += data

    def response_complete(self) -> None:
        assert not any((self.whole, self.broken))
        self.whole = True

    def failed(self, error: Exception) -> None:
        assert not any((self.whole, self.broken))
        assert isinstance(error, Broken)
        self.broken = True


def _received(example: Example, places: Sequence[int], loop: asyncio.AbstractEventLoop) -> _Seen:
    transport, received, seen = _Transport(), _Counting(loop, "replica", lambda _: None), _Seen()
    received._transport = transport  # type: ignore[assignment]
    received.send(b"", b"", seen)
    transport.unwritten = not example.written
    largest = fed = 0
    for piece in cut(example.data, places):
        if transport.aborted:
            break
        largest = max(largest, len(piece))
        fed += len(piece)
        received.data_received(piece)
        assert not received._pieces
        for _ in range(len(piece) + 2):  # parsing goes on in the next iterations of the loop
            if not transport.paused or transport.aborted:
                break
            assert len(received._unparsed) < largest
            loop.run_until_complete(asyncio.sleep(0))
        assert not transport.paused or transport.aborted
    transport.unwritten = 0
    if not transport.aborted and example.closes:
        received.connection_lost(None)
    seen.reusable = received.reusable
    seen.no_body = fed - len(seen.body)
    assert received.calls <= fed
    if not seen.body:
        assert fed <= _MAX_OVERHEAD + largest or seen.whole or transport.aborted
    assert sum(len(name) + len(value) for name, value in seen.headers) <= _MAX_OVERHEAD
    return seen


def _check(example: Example) -> None:
    loop = asyncio.new_event_loop()
    try:
        with mock.patch.object(connection, "_log"):
            at_once = _received(example, (), loop)
            in_pieces = _received(example, example.places, loop)
    finally:
        loop.close()
    for seen in (at_once, in_pieces):
        assert not seen.status or 200 <= seen.status <= 599
        assert not (seen.reusable and not example.written)
        if example.expected is not None:
            assert (seen.status, seen.body) == example.expected
            assert seen.whole
    if len(example.data) <= _MAX_OVERHEAD:
        same = ["status", "headers", "body", "whole", "broken"]
        # Line breaks behind a response are noticed only if they come later. They cannot become a part of another one.
        if not example.data.endswith((b"\r", b"\n")):
            same.append("reusable")
        assert [getattr(at_once, name) for name in same] == [getattr(in_pieces, name) for name in same]


TARGET = Target("response", _examples(), _check)
