"""The public port's reading of requests, beside h11, a strict parser: where one request ends and the next begins.

* Each request that is handled is the next one that h11 reads: the same method, target and body. Refusing more is safe;
  one with too many headers is refused, and the next one is handled.
* How the bytes arrive in pieces changes nothing.
* A connection whose bytes are refused handles nothing behind them.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from unittest import mock

import h11
from hypothesis import strategies as st

from benchmarks.fuzz.target import Target, cut
from gateway.core.exchange import Exchange
from gateway.server.client_connection import ClientConnection
from gateway.server.port import Port, PortOptions
from gateway.server.work_budget import MAX_HEADERS

Request = tuple[bytes, bytes, bytes]
"""Method, target and body."""

_LENGTHS = [
    b"0",
    b"3",
    b"5",
    b"+5",
    b"-1",
    b"5, 5",
    b"5,3",
    b"0x5",
    b" 5",
    b"5 ",
    b"05",
    b"99999999999999999999999",
    b"",
]
_CODINGS = [
    b"chunked",
    b"Chunked",
    b" chunked",
    b"chunked ",
    b"gzip, chunked",
    b"chunked, gzip",
    b"identity",
    b"x",
    b"\x0bchunked",
]
_HEADER = st.one_of(
    st.sampled_from(_LENGTHS).map(lambda value: b"Content-Length: " + value),
    st.sampled_from(_CODINGS).map(lambda value: b"Transfer-Encoding: " + value),
    st.sampled_from(
        [
            b"host: a",
            b"host: b",
            b"Host : a",
            b"x: y",
            b" folded",
            b"\tfolded",
            b"content-length : 3",
            b"transfer-encoding\t: chunked",
            b"Content_Length: 3",
            b"x:\x00",
            b"x: a\rb",
            b"no colon",
            b": empty",
            b"connection: close",
            b"connection: upgrade",
            b"upgrade: h2c",
            b"upgrade: websocket",
            b"expect: 100-continue",
            b"trailer: content-length",
            b"x\xff: y",
        ]
    ),
)
_LINE = st.sampled_from([b"POST /a HTTP/1.1", b"GET /b HTTP/1.1", b"POST /c HTTP/1.0", b"HEAD / HTTP/1.1"])
_ODD_LINE = st.sampled_from(
    [
        *(b"POST /a HTTP/1.2", b"POST /a HTTP/0.9", b"POST /a", b"PRI * HTTP/2.0"),
        *(b"POST /a b HTTP/1.1", b"POST\t/a HTTP/1.1", b"X /a HTTP/1.1"),
        *(b"CONNECT a:1 HTTP/1.1", b"OPTIONS * HTTP/1.1", b"POST http://a/b HTTP/1.1"),
    ]
)
_MANY = b"x: many"
_ODD_END = st.sampled_from([b"\n", b"\r", b"\r\r\n", b"\n\r\n", b"", b"\r\n\r\n", b"\r\n "])
_ODD_SIZE = st.sampled_from(
    [b"4", b"0", b"03", b"+3", b"0x3", b"3 ", b" 3", b"3;a=b", b'3;a="\n"', b"ffffffffffffffff3", b"", b"-3"]
)
_TRAILERS = st.sampled_from([b"", b"x: y\r\n", b"host: z\r\n", b"content-length: 3\r\n", b" folded\r\n"])


@st.composite
def _request(draw: st.DrawFn) -> bytes:
    odd = draw(st.sampled_from(["", "", "line", "header", "size", "end", "many"]))
    line = draw(_ODD_LINE if odd == "line" else _LINE)
    framed = draw(st.sampled_from([[], [b"content-length: 3"], [b"transfer-encoding: chunked"]]))
    headers = [b"host: a", *framed, *(draw(st.lists(_HEADER, min_size=1, max_size=3)) if odd == "header" else [])]
    headers += [_MANY] * (MAX_HEADERS + 1) * (odd == "many")
    draw(st.randoms(use_true_random=False)).shuffle(headers)
    head = b"\r\n".join((line, *headers, b"\r\n"))
    body = b"abc" if framed else b""
    if framed == [b"transfer-encoding: chunked"]:
        sizes = [draw(_ODD_SIZE) if odd == "size" else b"3" for _ in range(draw(st.integers(0, 3)))]
        body = b"".join(b"%b\r\nabc\r\n" % size for size in sizes) + b"0\r\n" + draw(_TRAILERS) + b"\r\n"
    if odd != "end":
        return head + body
    lines = (head + body).split(b"\r\n")
    at = draw(st.integers(1, len(lines) - 1))
    return b"\r\n".join(lines[:at]) + draw(_ODD_END) + b"\r\n".join(lines[at:])


@st.composite
def _examples(draw: st.DrawFn) -> tuple[bytes, Sequence[int]]:
    data = b"".join(draw(st.lists(_request(), min_size=1, max_size=3)))
    places = range(len(data)) if draw(st.booleans()) else draw(st.lists(st.integers(0, len(data)), max_size=8))
    return data, list(places)


def _strictly(data: bytes) -> list[Request]:
    """The requests that h11 reads, until it refuses something."""
    found = list[Request]()
    with contextlib.suppress(h11.RemoteProtocolError):
        while data:
            connection = h11.Connection(h11.SERVER)
            # Empty lines in front of a request are ignored: RFC 9112, section 2.2.
            connection.receive_data(data.lstrip(b"\r\n"))
            method, target, body = b"", b"", b""
            while not isinstance(event := connection.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Request):
                    method, target = event.method, event.target.removeprefix(b"http://a")
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                else:
                    return found
            found.append((method, target, body))
            connection.send(h11.Response(status_code=404, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            data = connection.trailing_data[0] if connection.our_state is h11.DONE else b""
    return found


class _Handled:
    """Keeps the body of a request and answers it; a ``Receiver``."""

    def __init__(self, exchange: Exchange, found: list[Request]) -> None:
        self._exchange = exchange
        self._found = found
        self._body = b""

    def body_received(self, data: bytes) -> None:
        self._body += data

    def body_complete(self) -> None:
        exchange = self._exchange
        target = exchange.raw_path + (b"?" + exchange.query if exchange.query else b"")
        self._found.append((exchange.method.encode(), target, self._body))
        exchange.respond(404, [], b"")

    def client_gone(self) -> None: ...

    def writing_paused(self) -> None: ...

    def writing_resumed(self) -> None: ...


async def _handled(parts: Sequence[bytes]) -> tuple[list[Request], bool]:
    """The requests that the port handles, and whether it still reads."""
    found: list[Request] = []
    port = Port(lambda exchange: _Handled(exchange, found), PortOptions(16_000))
    transport = mock.Mock(spec=asyncio.Transport)
    transport.is_closing.return_value = False
    transport.close.side_effect = lambda: setattr(transport.is_closing, "return_value", True)
    transport.abort.side_effect = transport.close.side_effect
    transport.get_extra_info.side_effect = lambda name: (
        ("127.0.0.1", 1) if name == "peername" else mock.Mock(fileno=lambda: 9)
    )
    connection = ClientConnection(port)
    connection.connection_made(transport)
    for part in parts:
        if transport.is_closing():
            break
        connection.data_received(part)
        await asyncio.sleep(0)
    for _ in range(20):  # portions that wait for their turn
        await asyncio.sleep(0)
    refused = transport.is_closing() or transport.write_eof.called
    connection.connection_lost(None)
    return found, not refused


def _check(example: tuple[bytes, Sequence[int]]) -> None:
    data, places = example
    whole, piecewise = (asyncio.run(_handled(parts)) for parts in ([data], cut(data, places)))
    assert whole == piecewise, (whole, piecewise)
    expected = _strictly(data)
    if _MANY in data:  # the port answers it by itself, and goes on
        left = iter(expected)
        assert all(request in left for request in whole[0]), (whole[0], expected)
    else:
        assert whole[0] == expected[: len(whole[0])], (whole[0], expected)


TARGET = Target("framing", _examples(), _check)
