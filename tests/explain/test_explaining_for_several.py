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
from explain_world import QUICK, Counts, eventually, runs
from explained_requests import request

from gateway.config.telemetry_settings import ExplainSettings
from gateway.core.errors import GatewayError
from gateway.explain.worker.front import SHARED_COMMAND, ExplainClient

SETTINGS = ExplainSettings()


@pytest.fixture
def door():
    """Where gateways connect, and its address."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as sock:
        path = Path(folder) / "door"
        sock.bind(str(path))
        sock.listen()
        yield sock, path


class Fronts:
    """The one that keeps the process, and two gateways'."""

    def __init__(self, door: tuple[socket.socket, Path]) -> None:
        sock, path = door
        self.counts = [Counts() for _ in range(3)]
        self.host = self._front(0, command=SHARED_COMMAND, door=sock.fileno())
        self.gateways = [self._front(number, at=path) for number in (1, 2)]

    def _front(self, number, **how) -> ExplainClient:
        return ExplainClient(SETTINGS, self.counts[number], {}, patience=QUICK, **how)

    async def __aenter__(self) -> "Fronts":
        for front in (self.host, *self.gateways):
            front.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for front in (*self.gateways, self.host):
            await front.stop()


def answered(text: str, **fields):
    return request(text, at=time.time(), **fields)


async def asked(front: ExplainClient, question: str = "summary", **arguments: str):
    return json.loads(await front.ask(question, arguments))


async def requests_known(front: ExplainClient) -> int:
    with contextlib.suppress(GatewayError):
        return int((await asked(front))["requests"])
    return -1


async def eventually_known(front: ExplainClient, requests: int) -> None:
    async with asyncio.timeout(30):
        while await requests_known(front) != requests:
            await asyncio.sleep(0.05)


async def test_everybody_learns_of_all_and_counts_its_own(door):
    async with Fronts(door) as fronts:
        one, other = fronts.gateways
        for number in range(5):
            one.finished(answered("one", request_id=f"one-{number}"))
        for number in range(3):
            other.finished(answered("other", request_id=f"other-{number}", prompt_tokens=200))
        for front in (one, other, fronts.host):
            await eventually_known(front, 8)
        await eventually(lambda: fronts.counts[1].missed.total() == 5 * 68)
        await eventually(lambda: fronts.counts[2].missed.total() == 3 * 168)
        assert not fronts.counts[0].missed
        shown = await asked(other, "request", id="one-3")
        assert shown["id"] == "one-3"


async def test_one_that_leaves_disturbs_nobody(door):
    async with Fronts(door) as fronts:
        one, other = fronts.gateways
        one.finished(answered("one"))
        await eventually_known(other, 1)
        await one.stop()
        other.finished(answered("other"))
        await eventually_known(fronts.host, 2)
        assert fronts.counts[2].missed.total() == 68


async def test_all_come_back_to_the_process_that_replaces_one_that_was_lost(door):
    async with Fronts(door) as fronts:
        one, other = fronts.gateways
        one.finished(answered("one"))
        await eventually_known(other, 1)
        pid = fronts.host._keeper.child._process.pid
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: not runs(pid))
        await eventually_known(other, 0)
        one.finished(answered("two"))
        other.finished(answered("three"))
        await eventually_known(one, 2)
        # Every missed token is counted, once.
        await eventually(lambda: sum(counts.missed.total() for counts in fronts.counts) == 3 * 68)


async def test_it_ends_with_the_one_that_started_it(door):
    async with Fronts(door) as fronts:
        await eventually_known(fronts.gateways[0], 0)
        pid = fronts.host._keeper.child._process.pid
        await fronts.host.stop()
        assert not runs(pid)
