"""A client that stops reading: its request is over, and its replica free, after `relay.chunk_timeout_seconds`."""

import json
import socket

import pytest
from raw_http import post
from running_gateway import CHAT, eventually
from scripted_engine import STREAM_HEAD, chunk, response

DONE = b"data: [DONE]\n\n"
MUCH = 12_000_000
"""More characters than the kernel's buffers take."""


def event(characters):
    """A whole event. One of 4 MiB would be passed on in pieces."""
    delta = {"id": "x", "choices": [{"index": 0, "delta": {"content": "x" * characters}}]}
    return b"data: %b\n\n" % json.dumps(delta).encode()


@pytest.fixture
def stalled(closing):
    """Asks, and never reads the answer."""

    def ask(gateway, **fields):
        sock = closing.enter_context(socket.socket())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", gateway.port))
        body = {"model": "demo", "messages": [{"role": "user", "content": "Hello."}]} | fields
        sock.sendall(post(CHAT, json.dumps(body).encode()))
        return sock

    return ask


@pytest.mark.parametrize(
    "pieces",
    [
        [STREAM_HEAD + chunk(event(MUCH // 40) * 40), chunk(DONE) + b"0\r\n\r\n"],
        # The last piece fills the buffers: the replica is done, and only the end is still to be written.
        [STREAM_HEAD + chunk(event(4_000_000) + DONE) + b"0\r\n\r\n"],
        [STREAM_HEAD + chunk(event(4_000_000) + DONE)],
    ],
    ids=["in the middle", "at the end", "before the connection breaks"],
)
async def test_in_a_stream(scripted, start_gateway, stalled, pieces):
    scripted.says(*pieces, then_close=True)
    gateway = await start_gateway(scripted, relay={"chunk_timeout_seconds": 0.3})
    stalled(gateway, stream=True)
    await eventually(lambda: bool(scripted.received))
    metrics = await gateway.settled(1)
    assert metrics.value("gateway_failovers_total") == 0
    assert (await gateway.replicas())["r0"]["state"] == "ready"


async def test_a_whole_answer(scripted, start_gateway, stalled):
    reply = {"object": "chat.completion", "choices": [{"index": 0, "message": {"content": "x" * MUCH}}]}
    scripted.says(response(json.dumps(reply).encode()))
    gateway = await start_gateway(scripted, relay={"chunk_timeout_seconds": 0.3})
    stalled(gateway)
    await eventually(lambda: bool(scripted.received))
    await gateway.settled(1)
