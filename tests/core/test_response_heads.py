"""The head of a response as it is written to the client: framing, and nothing that would end it early."""

from typing import Any

import pytest

from gateway.core.exchange import Exchange, InvalidResponse

COMMON = b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"


class Client:
    """A connection and its port; what is written is kept."""

    def __init__(self, *, leaving: bool = False) -> None:
        self.written = b""
        self.kept: bool | None = None
        self.transport: Any = self
        self.port: Any = self
        self.common_lines = COMMON
        self.leaving = leaving
        self.congested = False
        self.client, self.peer = None, ""

    def write(self, data):
        self.written += data

    def response_complete(self, *, keep):
        self.kept = keep


def exchange(client, method="POST", version="1.1", *, keep_alive=True):
    return Exchange(client, method, "/", b"/", b"", [], {}, version, keep_alive=keep_alive, expects_continue=False)


def answered(headers, body=b"ok", method="POST", version="1.1", *, leaving=False, keep_alive=True):
    client = Client(leaving=leaving)
    answer = exchange(client, method, version, keep_alive=keep_alive)
    answer.start(200, headers)
    answer.write(body, more=False)
    head, _, rest = client.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n" + COMMON[:-2])
    return head.split(b"\r\n")[2:], rest, client.kept


def test_a_response_of_known_length():
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"2"), (b"x-empty", b"")]
    assert answered(headers) == ([b"content-type: text/plain", b"content-length: 2", b"x-empty: "], b"ok", True)


def test_a_response_of_unknown_length():
    assert answered([(b"a", b"b")]) == ([b"a: b", b"transfer-encoding: chunked"], b"2\r\nok\r\n0\r\n\r\n", True)
    assert answered([(b"a", b"b")], version="1.0") == ([b"a: b", b"connection: close"], b"ok", False)


def test_a_response_without_any_header():
    assert answered([]) == ([b"transfer-encoding: chunked"], b"2\r\nok\r\n0\r\n\r\n", True)


def test_the_framing_of_another_connection_is_left_out():
    headers = [(b"transfer-encoding", b"gzip, chunked"), (b"connection", b"keep-alive, x"), (b"content-length", b"2")]
    assert answered(headers) == ([b"content-length: 2"], b"ok", True)


@pytest.mark.parametrize(
    "options",
    [{"leaving": True}, {"keep_alive": False}, {"headers": [(b"content-length", b"2"), (b"connection", b"x, Close")]}],
)
def test_the_last_response_of_a_connection(options):
    lines, body, kept = answered(**{"headers": [(b"content-length", b"2")]} | options)
    assert (lines, body, kept) == ([b"content-length: 2", b"connection: close"], b"ok", False)


def test_the_answer_to_head_has_the_length_and_no_body():
    assert answered([(b"content-length", b"2")], method="HEAD") == ([b"content-length: 2"], b"", True)


@pytest.mark.parametrize("evil", [b"\n", b"\r", b"\r\n", b"\n\r", b"\0", b"\r\nx: y", b"a\nb", b"\r\n\r\n<html>"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_header_cannot_end_the_head(evil, place):
    client = Client()
    answer = exchange(client)
    header = [b"name", b"value"]
    header[place] += evil
    with pytest.raises(InvalidResponse):
        answer.start(200, [(b"a", b"b"), (header[0], header[1]), (b"c", b"d")])
    assert not answer.started
    answer.respond(500, [], b"failed")
    assert client.written.startswith(b"HTTP/1.1 500 ")
    assert client.written.endswith(b"\r\n\r\nfailed")
