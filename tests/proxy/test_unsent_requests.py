"""A request that is over before its body is made is not sent."""

import asyncio

import pytest
from pieces import asking
from relaying import QuietAttempt

from gateway.core.ids import ModelId, ReplicaId
from gateway.core.outcome import Ending
from gateway.core.replica_state import Rates
from gateway.fleet.replica import Replica
from gateway.http_client import HttpClient
from gateway.proxy import AnswerLimits, Forwarder
from gateway.routing import LearnedRates

LONG = 1000.0
RATES = Rates(base_seconds=0.01, prefill_seconds_per_token=0.001, decode_seconds_per_token=0.01, request_seconds=10.0)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class Engine(asyncio.Protocol):
    """A mock engine; ``received`` is what all its connections have sent."""

    received = bytearray()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received += data
        self.transport.write(ANSWER)


class Client:
    """A client that reads everything."""

    gone = interrupted = congested = False


class LateBody:
    """A body that is made when ``ready`` is set."""

    def __init__(self):
        self.begun, self.ready = asyncio.Event(), asyncio.Event()

    async def of(self, request, salt):
        self.begun.set()
        await self.ready.wait()
        return request.body


@pytest.fixture
async def replica():
    Engine.received = bytearray()
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield Replica(ReplicaId("r"), f"http://127.0.0.1:{port}", ModelId("demo"), LearnedRates(RATES))
    server.close()


@pytest.fixture
async def client():
    client = HttpClient(30.0)
    yield client
    client.close()


def forwarding(client, replica, *, seconds=LONG):
    """A request under way, and the body that it waits for."""
    limits = AnswerLimits(LONG, LONG, max_answer_bytes=10**6)
    attempt = QuietAttempt(asyncio.get_running_loop().time() + seconds)
    attempt.salt, attempt.body = "salt", LateBody()  # with a salt the body is made
    forwarder = Forwarder(client, forward_authorization=False, limits=limits)
    work = forwarder.forward(asking(stream=False), Client(), attempt, replica, 0)
    return asyncio.get_running_loop().create_task(work), attempt.body


async def connections_are_used(client, replica):
    """Send a request, so that the next one would go out at once; forget what was received."""
    forwarded, body = forwarding(client, replica)
    body.ready.set()
    assert (await forwarded).ending is Ending.COMPLETE
    assert Engine.received.startswith(b"POST /v1/chat/completions")
    Engine.received.clear()


async def test_one_whose_time_is_over_by_then(client, replica):
    await connections_are_used(client, replica)
    forwarded, body = forwarding(client, replica, seconds=0.5)
    await body.begun.wait()
    (relay,) = replica.flights
    await relay.ended
    body.ready.set()
    assert (await forwarded).ending is Ending.EXPIRED
    await asyncio.sleep(0.02)
    assert not Engine.received
    await connections_are_used(client, replica)


async def test_one_whose_replica_is_gone_by_then(client, replica):
    await connections_are_used(client, replica)
    forwarded, body = forwarding(client, replica)
    await body.begun.wait()
    (relay,) = replica.flights
    relay.call_back("its health checks fail")
    body.ready.set()
    assert (await forwarded).ending is Ending.BROKEN
    await asyncio.sleep(0.02)
    assert not Engine.received
