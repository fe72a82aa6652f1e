"""The longest iteration of the event loop, and a normal client's p99, while one new, long prompt arrives.

A normal client sends 10 KB chat requests at a steady rate. Without the long prompt, and while one arrives each second,
the late iterations of the event loop (``watched``) and the client's times are compared.
"""

import asyncio
import random
import statistics
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.growth.plot import Axis, Plot
from benchmarks.growth.prompts import body, chat
from benchmarks.growth.result import Result
from benchmarks.growth.stage import Stage
from benchmarks.overhead.bodies import write_bodies
from benchmarks.overhead.load import HEAD

_CONNECTIONS = 4
_PAUSE_SECONDS = 1.0
"""Between two long prompts."""
_AFTER_SECONDS = 0.3
"""In which a request is settled and handed over, after its answer."""


@dataclass(frozen=True)
class Phase:
    """What happened while prompts of one length arrived.

    Attributes:
        windows: Begin and end of each of them, from the first byte sent to the answer.
        seconds: The normal client's times of requests that overlap with them.
    """

    windows: Sequence[tuple[float, float]]
    seconds: Sequence[float]


class Client:
    """Sends requests on one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connected(cls, port: int) -> "Client":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, request: bytes) -> tuple[float, float]:
        """Begin and end of a request."""
        began = time.monotonic()
        self._writer.write(HEAD + b"content-length: %d\r\n\r\n%b" % (len(request), request))
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise SystemExit(f"a request failed: {head[:40]!r}")
        length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
        await self._reader.readexactly(int(length))
        return began, time.monotonic()


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--long-tokens", type=int, nargs="+", default=[8_000, 32_000, 128_000], help="of long prompts")
    parser.add_argument("--long-prompts", type=int, default=15, help="how many of each length")
    parser.add_argument("--normal-rate", type=float, default=100, help="requests per second of the normal client")


def measure(args: Namespace) -> Result:
    rows = []
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        turns = Path(folder) / "turns"
        command = ("-m", "benchmarks.growth.watched", str(turns), "serve")
        with Stage(blocks=2_000_000, command=command) as stage:
            write_bodies(stage.folder)
            stage.cost(stage.folder / "chat.jsonl", 2)
            normal = (stage.folder / "chat.jsonl").read_bytes().split(b"\n")
            for tokens in (0, *args.long_tokens):
                rng = random.Random(tokens)
                long = [
                    body(chat(rng, tokens), warm=False).encode() if tokens else b"" for _ in range(args.long_prompts)
                ]
                found = uvloop.run(phase(stage, long, normal, args.normal_rate))
                rows.append((tokens, *_late(turns, found.windows), *_p50_and_p99(found.seconds)))
    return Result(
        (
            *(
                "long prompt's tokens",
                "longest iteration, ms (median of prompts)",
                "most CPU of an iteration, ms (median)",
            ),
            *("longest of all, ms", "most CPU of all, ms", "normal client p50 ms", "p99 ms"),
        ),
        rows,
        Plot(
            "One new, long prompt beside 100 normal requests per second",
            Axis("tokens of the long prompt", log=False),
            Axis("ms", log=False),
            {
                "longest iteration (median)": [(row[0], row[1]) for row in rows],
                "most CPU of an iteration": [(row[0], row[2]) for row in rows],
                "normal client's p99": [(row[0], row[6]) for row in rows],
            },
        ),
        [
            f"{args.long_prompts} prompts of each length, one after the other; 0 tokens: nothing but the normal client."
            " An iteration is the time between two calls of a timer of 1 ms on the event loop, which may hold two. CPU"
            " is that of the loop's thread; in the rest of an iteration another thread held the interpreter's lock, or"
            " another process the core. Iterations of up to 3 ms are not recorded: 0 means that there was none."
        ],
    )


def _late(turns: Path, windows: Sequence[tuple[float, float]]) -> tuple[float, float, float, float]:
    """Longest iteration in each window, as their median and the longest of all, in ms, each with the CPU time."""
    late = [tuple(map(float, line.split())) for line in turns.read_text().splitlines()]
    seconds, used = [], []
    for begin, end in windows:
        inside = [turn for turn in late if begin <= turn[0] and turn[0] - turn[1] <= end + _AFTER_SECONDS]
        seconds.append(1e3 * max((turn[1] for turn in inside), default=0.0))
        used.append(1e3 * max((turn[2] for turn in inside), default=0.0))
    return statistics.median(seconds), statistics.median(used), max(seconds), max(used)


def _p50_and_p99(seconds: Sequence[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return 1e3 * cuts[49], 1e3 * cuts[98]


async def phase(stage: Stage, long: Sequence[bytes], normal: Sequence[bytes], rate: float) -> Phase:
    """Send long prompts, an empty one being a pause, beside a normal client."""
    clients = [await Client.connected(stage.port) for _ in range(_CONNECTIONS)]
    asked: list[tuple[float, float]] = []

    async def normal_client(client: Client, number: int) -> None:
        while True:
            due = time.monotonic() + _CONNECTIONS / rate
            asked.append(await client.ask(normal[(number + len(asked)) % len(normal)]))
            await asyncio.sleep(due - time.monotonic())

    tasks = [asyncio.create_task(normal_client(client, number)) for number, client in enumerate(clients)]
    sender = await Client.connected(stage.port)
    windows = []
    await asyncio.sleep(_PAUSE_SECONDS)
    for prompt in long:
        if prompt:
            windows.append(await sender.ask(prompt))
        else:
            began = time.monotonic()
            await asyncio.sleep(_PAUSE_SECONDS / 2)
            windows.append((began, time.monotonic()))
        await asyncio.sleep(_PAUSE_SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    near = [
        end - begin
        for begin, end in asked
        if any(begin < until + _AFTER_SECONDS and end > since for since, until in windows)
    ]
    return Phase(windows, near)
