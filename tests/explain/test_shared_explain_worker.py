"""One process that explains for several gateways."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import tempfile
import time
from pathlib import Path

import pytest
from explain_harness import QUICK, Counts, eventually, runs
from explained_requests import request
from patience import HANG_SECONDS

from gateway.config.telemetry_settings import ExplainSettings
from gateway.core.errors import GatewayError
from gateway.explain.worker.explain_client import COMMAND, ExplainClient

SETTINGS = ExplainSettings()


@pytest.fixture
def listen_fd():
    """Where gateways connect, and its address."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as sock:
        path = Path(folder) / "listen_fd"
        sock.bind(str(path))
        sock.listen()
        yield sock, path


class Clients:
    """The one that keeps the process, and two gateways'."""

    def __init__(self, listen_fd: tuple[socket.socket, Path]) -> None:
        sock, path = listen_fd
        self.counts = [Counts() for _ in range(3)]
        self.host = self._client(0, command=COMMAND, listen_fd=sock.fileno())
        self.gateways = [self._client(number, socket_path=path) for number in (1, 2)]

    def _client(self, number, **how) -> ExplainClient:
        return ExplainClient(SETTINGS, self.counts[number], {}, timeouts=QUICK, **how)

    async def __aenter__(self) -> "Clients":
        for client in (self.host, *self.gateways):
            client.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in (*self.gateways, self.host):
            await client.stop()


def answered(text: str, **fields):
    return request(text, at=time.time(), **fields)


async def asked(client: ExplainClient, question: str = "summary", **arguments: str):
    return json.loads(await client.ask(question, arguments))


async def requests_known(client: ExplainClient) -> int:
    with contextlib.suppress(GatewayError):
        return int((await asked(client))["requests"])
    return -1


async def eventually_known(client: ExplainClient, requests: int) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while await requests_known(client) != requests:
            await asyncio.sleep(0.05)


async def test_all_gateways_see_all_requests_and_count_their_own(listen_fd):
    async with Clients(listen_fd) as clients:
        one, other = clients.gateways
        for number in range(5):
            one.record_request(answered("one", request_id=f"one-{number}"))
        for number in range(3):
            other.record_request(answered("other", request_id=f"other-{number}", prompt_tokens=200))
        for client in (one, other, clients.host):
            await eventually_known(client, 8)
        await eventually(lambda: clients.counts[1].missed.total() == 5 * 68)
        await eventually(lambda: clients.counts[2].missed.total() == 3 * 168)
        assert not clients.counts[0].missed
        shown = await asked(other, "request", id="one-3")
        assert shown["id"] == "one-3"


async def test_a_gateway_that_leaves_does_not_affect_the_others(listen_fd):
    async with Clients(listen_fd) as clients:
        one, other = clients.gateways
        one.record_request(answered("one"))
        await eventually_known(other, 1)
        await one.stop()
        other.record_request(answered("other"))
        await eventually_known(clients.host, 2)
        assert clients.counts[2].missed.total() == 68


async def test_all_gateways_reconnect_to_a_restarted_worker(listen_fd):
    async with Clients(listen_fd) as clients:
        one, other = clients.gateways
        one.record_request(answered("one"))
        await eventually_known(other, 1)
        pid = clients.host._supervisor.child._process.pid
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: not runs(pid))
        await eventually_known(other, 0)
        one.record_request(answered("two"))
        other.record_request(answered("three"))
        await eventually_known(one, 2)
        # Every missed token is counted, once.
        await eventually(lambda: sum(counts.missed.total() for counts in clients.counts) == 3 * 68)


async def test_a_shared_worker_ends_with_its_parent(listen_fd):
    async with Clients(listen_fd) as clients:
        await eventually_known(clients.gateways[0], 0)
        pid = clients.host._supervisor.child._process.pid
        await clients.host.stop()
        assert not runs(pid)
