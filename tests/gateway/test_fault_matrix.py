"""Every fault at every moment: what a client gets, with another replica beside the failing one and without, and that
nothing stays behind."""

import asyncio
import contextlib
import itertools
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from levels import slow_except
from patience import HANG_SECONDS
from raw_http import post
from running_gateway import CHAT, RunningGateway, eventually

from gateway.core.outcome import FailureStage
from gateway.simulator.faults import Fault, FaultSpec

HERE = "answer of the failing replica"
ELSEWHERE = "answer of the other replica"

# How a request ends that no other replica can take.
NO_REPLICA = "503 no_replica"
BROKEN = "502 replica_disconnected"
SILENT = "504 replica_timeout"
BROKEN_OFF = "event replica_disconnected"
SILENT_SINCE = "event replica_timeout"


@dataclass(frozen=True)
class Cell:
    """A fault at a moment.

    Attributes:
        moment: When it shows.
        fault: The simulated engine's name for it.
        stage: What it counts as before the client has got anything; empty for nothing.
        whole: What the client gets without a stream, if there is another replica, and if there is none.
        stream: The same with a stream.
        quiet: Whether only a time limit shows it.
    """

    moment: str
    fault: str
    stage: str
    whole: tuple[str, str]
    stream: tuple[str, str]
    quiet: bool = False


def both(moment: str, fault: str, stage: str, alone: str, *, quiet: bool = False) -> Cell:
    """A fault by which a client with a stream and one without get the same: another replica's answer, or an error."""
    return Cell(moment, fault, stage, (ELSEWHERE, alone), (ELSEWHERE, alone), quiet)


def harmless(moment: str, fault: str) -> Cell:
    return Cell(moment, fault, "", (HERE, HERE), (HERE, HERE))


MATRIX = [
    both("before connect", "refuse", "connect", NO_REPLICA),
    both("after connect", "connect_hang", "first_byte", SILENT, quiet=True),
    both("after connect", "connect_reset", "first_byte", BROKEN),
    both("before first byte", "hang", "first_byte", SILENT, quiet=True),
    both("before first byte", "slow=30", "first_byte", SILENT, quiet=True),
    harmless("before first byte", "slow=0.05"),
    both("before first byte", "reset", "first_byte", BROKEN),
    both("before first byte", "die_before_first_byte", "first_byte", BROKEN),
    both("before first byte", "garbage", "first_byte", BROKEN),
    Cell("before first byte", "500", "", ("500 500", "500 500"), ("500 500", "500 500")),
    both("before first byte", "502", "status", "502 502"),
    both("before first byte", "503", "status", "503 503"),
    both("before first byte", "504", "status", "504 504"),
    both("before first byte", "429", "busy", "429 429"),
    both("before first byte", "die_after_head", "first_byte", BROKEN),
    both("before first event", "die_mid_stream=0", "first_byte", BROKEN),
    both("before first event", "reset_mid_stream=0", "first_byte", BROKEN),
    both("before first event", "hang_mid_stream=0", "first_byte", SILENT, quiet=True),
    both("before first event", "half_chunk=0", "first_byte", BROKEN),
    both("before first event", "garbage_mid_stream=0", "first_byte", BROKEN),
    both("before first event", "invalid_json", "first_byte", BROKEN),
    both("before first event", "length_too_small", "first_byte", BROKEN),
    Cell("mid-stream", "die_mid_stream=3", "first_byte", (ELSEWHERE, BROKEN), (BROKEN_OFF, BROKEN_OFF)),
    Cell("mid-stream", "reset_mid_stream=3", "first_byte", (ELSEWHERE, BROKEN), (BROKEN_OFF, BROKEN_OFF)),
    Cell(
        "mid-stream", "hang_mid_stream=3", "first_byte", (ELSEWHERE, SILENT), (SILENT_SINCE, SILENT_SINCE), quiet=True
    ),
    Cell("mid-stream", "half_chunk=3", "first_byte", (ELSEWHERE, BROKEN), (BROKEN_OFF, BROKEN_OFF)),
    Cell("mid-stream", "garbage_mid_stream=3", "first_byte", (ELSEWHERE, BROKEN), (BROKEN_OFF, BROKEN_OFF)),
    harmless("mid-stream", "drip=0.001"),
    Cell("at the end", "length_too_large", "first_byte", (ELSEWHERE, BROKEN), (HERE, HERE)),
    Cell("at the end", "no_done", "", (HERE, HERE), (BROKEN_OFF, BROKEN_OFF)),
    Cell("at the end", "die_at_end", "first_byte", (ELSEWHERE, BROKEN), (HERE, HERE)),
    Cell("at the end", "hang_at_end", "first_byte", (ELSEWHERE, SILENT), (HERE, HERE), quiet=True),
    harmless("at the end", "usage_missing"),
]


REPRESENTATIVES = (
    *("refuse", "connect_reset", "hang", "slow=0.05", "500", "503", "429", "garbage", "die_mid_stream=0"),
    *("die_mid_stream=3", "hang_mid_stream=3", "no_done", "length_too_large"),
)
"""Faults of the matrix that ``make test`` shows: one of each kind of outcome."""

QUIET_SECONDS = 3.0
"""Time limit where only a time limit shows the fault. Answers of the other replica have to come within it, too."""


def test_every_fault_has_its_cell():
    shown = {FaultSpec.parse(cell.fault).fault for cell in MATRIX}
    assert shown == {fault for fault in Fault if not fault.of_events}


class Books:
    """What requests expect of the replicas' caches, and is not settled."""

    def __init__(self, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch) -> None:
        self._gateway = gateway
        self.open: set[int] = set()
        index = gateway.gateway._index
        begin = index.begin

        def noted(*args: Any) -> Any:
            lease = begin(*args)
            self.open.add(id(lease))
            return lease

        def over(name: str) -> None:
            end = getattr(index, name)

            def ended(lease: Any, *args: Any) -> Any:
                self.open.remove(id(lease))
                return end(lease, *args)

            monkeypatch.setattr(index, name, ended)

        monkeypatch.setattr(index, "begin", noted)
        over("complete")
        over("abandon")

    async def check(self, requests: int) -> Any:
        """After so many requests nothing is in flight, expected or open; returns the metrics."""
        metrics = await self._gateway.settled(requests)
        assert not self.open
        assert not any(replica.flights for replica in self._gateway.gateway._fleet.replicas)
        return metrics


def text_of(seed: int) -> list[Any]:
    words = itertools.islice(itertools.cycle(["order", "parcel", "invoice", f"number {seed}"]), 90)
    return [{"role": "user", "content": " ".join(words)}]


class Asked:
    """One request of the official client, and what came of it.

    Attributes:
        text: What came of the answer.
        replica: Who answered.
        ending: ``answer``, or what went wrong.
    """

    def __init__(self) -> None:
        self.text = ""
        self.replica: str | None = None
        self.ending = ""

    @classmethod
    async def by(cls, client: openai.AsyncOpenAI, *, stream: bool, **fields: Any) -> "Asked":
        asked = cls()
        try:
            await (asked._stream if stream else asked._whole)(client, fields)
        except openai.APIStatusError as error:
            asked.ending = f"{error.status_code} {error.code}"
        except openai.APIError as error:
            asked.ending = f"event {error.code}"
        else:
            asked.ending = "answer"
        return asked

    async def _whole(self, client: openai.AsyncOpenAI, fields: dict[str, Any]) -> None:
        raw = await client.chat.completions.with_raw_response.create(model="demo", **fields)
        self.replica = raw.headers["x-gateway-replica"]
        (choice,) = raw.parse().choices
        assert choice.finish_reason
        self.text = choice.message.content or ""

    async def _stream(self, client: openai.AsyncOpenAI, fields: dict[str, Any]) -> None:
        raw = await client.chat.completions.with_raw_response.create(model="demo", stream=True, **fields)
        self.replica = raw.headers["x-gateway-replica"]
        ids, reasons = set(), []
        async for chunk in raw.parse():
            ids.add(chunk.id)
            (choice,) = chunk.choices
            self.text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
        assert len(ids) == len(reasons) == 1


@pytest.mark.parametrize("replicas", [2, 1], ids=["another", "alone"])
@pytest.mark.parametrize(
    "cell",
    slow_except(MATRIX, REPRESENTATIVES, lambda cell: cell.fault),
    ids=lambda cell: f"{cell.moment}: {cell.fault}".replace(" ", "-"),
)
async def test_fault(start_engine, start_gateway, sdk, monkeypatch, cell, replicas):
    engines = [await start_engine() for _ in range(replicas)]
    limits = dict.fromkeys(("first_byte_timeout_seconds", "chunk_timeout_seconds"), QUIET_SECONDS) if cell.quiet else {}
    gateway = await start_gateway(*engines, relay=limits | {"suspect_seconds": 0})
    books = Books(gateway, monkeypatch)
    client = sdk(gateway)
    failures: list[str] = []
    for stream, outcomes in ((False, cell.whole), (True, cell.stream)):
        expected = outcomes[0 if replicas == 2 else 1]
        fields = {"messages": text_of(stream), "max_tokens": 12}
        right = await Asked.by(client, stream=False, **fields)
        failing = engines[int(right.replica[1:])]

        await failing.set_fault(cell.fault)
        asked = await Asked.by(client, stream=stream, **fields)
        if expected in (HERE, ELSEWHERE):
            assert (asked.ending, asked.text) == ("answer", right.text)
            assert (asked.replica == right.replica) == (expected == HERE)
        else:
            assert asked.ending == expected
            assert right.text.startswith(asked.text)
            assert asked.text != right.text or cell.fault == "no_done"
            assert bool(asked.text) == expected.startswith("event")

        metrics = await books.check(2 + 3 * stream)
        if expected != HERE:
            failures.append("stream" if expected.startswith("event") else cell.stage)
        for stage in FailureStage:
            assert metrics.value("gateway_failovers_total", stage=stage) == failures.count(stage)
        await eventually(lambda: all(each.scheduler.running + each.scheduler.waiting == 0 for each in engines))

        await failing.set_fault("")
        assert (await Asked.by(client, stream=stream, **fields)).text == right.text
    await books.check(6)


async def test_connection_that_is_never_made(start_engine, start_gateway, scripted, sdk, monkeypatch):
    """A machine that is gone, or a process whose queue of connections is full: no answer to the first packet."""
    other = await start_engine()
    gateway = await start_gateway(
        scripted, other, relay={"connect_timeout_seconds": 1}, placement={"policy": "round_robin"}
    )
    books = Books(gateway, monkeypatch)
    port = int(scripted.url.rpartition(":")[2])
    await scripted.stop()
    with full_port(port):
        answers = [await Asked.by(sdk(gateway), stream=number % 2 == 0, messages=text_of(1)) for number in range(4)]
    assert [(answer.ending, answer.replica) for answer in answers] == [("answer", "r1")] * 4
    metrics = await books.check(4)
    assert metrics.value("gateway_failovers_total", stage="connect") == 1


@contextlib.contextmanager
def full_port(port: int) -> Iterator[None]:
    """A port on which no connection can be made, though something listens there."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(0)
        for _ in range(4):
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        yield


@pytest.fixture
async def process() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A simulated engine in a process of its own, and its URL."""
    command = [sys.executable, "-m", "gateway", "engine", "--port", "0", "--prefill-rate", "1e6", "--decode-ms", "20"]
    started = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert started.stdout is not None
    line = (await started.stdout.readline()).decode()
    yield started, line.split()[-1]
    if started.returncode is None:
        started.kill()
    await started.wait()


class At:
    """An engine somewhere else."""

    def __init__(self, url: str) -> None:
        self.url = url


async def test_requests_at_a_stopped_process_are_answered_elsewhere(
    start_engine, start_gateway, sdk, connect, monkeypatch, process
):
    stopped, url = process
    other = await start_engine()
    checks = {"health_interval_seconds": 0.3, "health_timeout_seconds": 1, "unhealthy_after": 2}
    gateway = await start_gateway(At(url), other, relay=checks)
    books = Books(gateway, monkeypatch)
    client = sdk(gateway)
    for seed in range(20):  # a prompt that is warm at the process
        right = await Asked.by(client, stream=False, messages=text_of(seed), max_tokens=12)
        if right.replica == "r0":
            break
    begun = await connect(gateway)
    body = {"model": "demo", "messages": text_of(seed), "stream": True, "max_tokens": 500, "ignore_eos": True}
    await begun.send(post(CHAT, json.dumps(body).encode()))
    assert b"x-gateway-replica: r0" in await begun.reader.readuntil(b"data: ")

    stopped.send_signal(signal.SIGSTOP)
    async with asyncio.timeout(HANG_SECONDS):
        answers = await asyncio.gather(
            *(Asked.by(client, stream=n % 2 == 0, messages=text_of(seed), max_tokens=12) for n in range(6))
        )
        rest = b""  # as long as it is: a stream reader's limit holds for one line
        while b"data: [DONE]\n\n" not in rest:
            rest += await begun.reader.read(65_536) or pytest.fail("no end mark")
    assert {(answer.ending, answer.replica, answer.text) for answer in answers} == {("answer", "r1", right.text)}
    assert b'"code":"replica_disconnected"' in rest
    metrics = await books.check(seed + 8)
    assert 1 <= metrics.value("gateway_failovers_total", stage="first_byte") <= 6
    assert metrics.value("gateway_failovers_total", stage="stream") == 1
    assert (await gateway.replicas())["r0"]["state"] == "ejected"

    stopped.send_signal(signal.SIGCONT)

    async def back() -> bool:
        return (await gateway.replicas())["r0"]["up"] is True

    await eventually(back)
    assert (await Asked.by(client, stream=True, messages=text_of(seed), max_tokens=12)).text == right.text
