"""Connections are kept and used again, on both sides."""

import asyncio
import http.server
import socket
import threading

import pytest
from raw_http import post
from running_gateway import CHAT, COMPLETIONS
from scripted_engine import STREAM_HEAD, chunk

from gateway.http_client import HttpClient, Origin

BODY = b'{"model":"demo","messages":[{"role":"user","content":"Hi"}]}'
STREAM = b'{"model":"demo","stream":true,"messages":[{"role":"user","content":"Hi"}]}'


async def test_one_connection_to_the_engine_serves_many_requests(behind, scripted):
    for _ in range(25):
        assert (await behind.send(BODY)).status_code == 200
    assert len(scripted.received) == 25
    assert scripted.connections <= 2  # a health check begins on a new one now and then


async def test_connection_is_used_again_after_a_stream(behind, scripted):
    scripted.says(STREAM_HEAD, chunk(b"data: {}\n\n"), chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n")
    for _ in range(10):
        assert (await behind.send(STREAM)).content.endswith(b"[DONE]\n\n")
    assert scripted.connections <= 2


async def test_as_many_connections_as_requests_at_a_time(behind, scripted):
    async def slowly(writer, received):
        await asyncio.sleep(0.05)
        await scripted.reply(writer, received)

    scripted.answer = slowly
    for _ in range(3):
        answers = await asyncio.gather(*(behind.send(BODY) for _ in range(8)))
        assert {answer.status_code for answer in answers} == {200}
    assert scripted.connections <= 9


async def test_client_connection_serves_many_requests(gateway, connect):
    client = await connect(gateway)
    for body, path, status in [
        (BODY, CHAT, 200),
        (STREAM, CHAT, 200),
        (b"{broken", CHAT, 400),
        (BODY, "/v1/nowhere", 404),
        (b'{"model":"demo","prompt":"Hi"}', COMPLETIONS, 200),
        (STREAM, CHAT, 200),
        (BODY.replace(b"demo", b"other"), CHAT, 404),
        (BODY, CHAT, 200),
    ]:
        await client.send(post(path, body))
        assert (await client.answer()).status == status


async def test_pipelined_requests_are_answered_in_order(gateway, connect):
    client = await connect(gateway)
    await client.send(post(CHAT, BODY, "x-request-id: one") + post(CHAT, STREAM, "x-request-id: two"))
    assert (await client.answer()).header("x-request-id") == "one"
    assert (await client.answer()).header("x-request-id") == "two"


async def test_engine_that_closed_an_idle_connection_is_reached_again(behind, scripted):
    await behind.send(BODY)
    scripted.drop_connections()
    await asyncio.sleep(0.05)
    assert (await behind.send(BODY)).status_code == 200


async def test_connection_whose_end_is_not_yet_noticed_is_not_used():
    opened: list[socket.socket] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            opened.append(self.request)

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    client = HttpClient(5)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            origin = Origin.parse(f"http://127.0.0.1:{server.server_port}")
            for number in range(1, 4):
                for _ in range(2):
                    assert await client.fetch("GET", origin, "/", [], timeout_seconds=5) == (200, b"")
                assert len(opened) == number
                opened[-1].shutdown(socket.SHUT_RDWR)  # the event loop gets no turn before the next request
        finally:
            client.close()
            server.shutdown()
            thread.join()


async def test_engine_that_closes_after_each_answer_is_reached_again(behind, scripted):
    async def closing(writer, received):
        await scripted.reply(writer, received)
        writer.close()

    scripted.answer = closing
    statuses = [(await behind.send(BODY)).status_code for _ in range(10)]
    assert statuses == [200] * 10


@pytest.mark.parametrize("first", [b"{", BODY], ids=["refused at once", "answered later"])
async def test_what_follows_a_request_that_ends_the_connection_is_not_worked_on(behind, scripted, connect, first):
    client = await connect(behind)
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n" % CHAT.encode()
    before = len(scripted.received)
    await client.send(head + b"content-length: %d\r\n\r\n" % len(first) + first + post(CHAT, BODY))
    assert (await client.answer()).status == (400 if first == b"{" else 200)
    assert await client.reader.read() == b""
    assert (await behind.ask()).status_code == 200
    assert len(scripted.received) - before == (1 if first == b"{" else 2)
    assert (await behind.settled(2)).value("gateway_requests_total") == 2
