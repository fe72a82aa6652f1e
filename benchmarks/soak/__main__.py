"""Half an hour of steady, mixed load on one gateway: its memory has to stay flat, and its open files.

    python -m benchmarks.soak [--seconds 1800] [--seed 1]

A gateway as a process, with its explaining process, in front of three simulated engines with KV events, and with a
Redis if one is installed. Twenty tenants with keys. All the time there are: conversations in streams and without,
with new session ids and client names without end; long prompts that nothing was like before; clients that leave while
they send, wait or read; requests that are wrong in a dozen ways; a tenant beyond its limit; bursts of which some wait
in the gateway; connections that are opened and closed, or idle. Operators ask, listen, reset spaces, warm caches, drain
replicas and have the configuration read again, right and wrong. An engine is killed every two minutes and comes back,
under a new name every other time; another gateway comes and is killed; Redis is emptied.

Every ten seconds memory, open files and threads of both processes are read from `/proc`. What fills up in the first
quarter of the run (``stage`` says which bounds are lower than by default for that) does not count: the medians of the
second quarter and of the last are compared.

Exit code 0 if the process that explains was never replaced, neither process has grown by more than 8 MiB or 3 %,
whichever is more, nor by more than five open files or threads, and every request was answered as it should be; else 1.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from benchmarks.chaos.verdict import leaked_load
from benchmarks.soak.clients import LONGEST_SECONDS, Act, Clients
from benchmarks.soak.samples import Sample, growth, sample, shown
from benchmarks.soak.score import Score
from benchmarks.soak.stage import Stage
from benchmarks.soak.trouble import Trouble

_SAMPLE_SECONDS = 10.0
_REPORT_SECONDS = 60.0


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if not sys.platform.startswith("linux"):
        print("What processes take is read from /proc, which only Linux has.", file=sys.stderr)
        return 1
    return asyncio.run(_run(args.seconds, args.seed))


async def _run(seconds: float, seed: int) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # so that no process is left behind
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    score, samples = Score(), list[Sample]()
    async with Stage(folder) as stage:
        print(f"logs in {folder}; Redis: {'yes' if stage.redis else 'none is installed'}", flush=True)
        clients = Clients(stage, score, seed)
        trouble = Trouble(stage, clients, score, seed)
        load = _Load(score, seed)
        load.begin((*clients.acts(), *trouble.acts()), clients.talkers())
        with (folder / "samples.jsonl").open("w") as file:
            await _watch(stage, score, samples, seconds, file)
        await load.end()
        died = stage.gateway.died
        problems = ["the gateway ended by itself"] if died else []
        if len({each["explaining"].pid for each in samples if "explaining" in each}) > 1:
            problems.append("the process that explains was replaced")
        problems += [f"leaked load: {each}" for each in await leaked_load([] if died else [stage.gateway])]
    return _report(score, samples, problems, folder)


class _Load:
    """Does everything again and again until it is ended."""

    def __init__(self, score: Score, seed: int) -> None:
        self._score = score
        self._random = random.Random(seed)
        self._ending = asyncio.Event()
        self._beginning: list[asyncio.Task[None]] = []
        self._under_way: set[asyncio.Task[None]] = set()

    def begin(self, acts: Sequence[tuple[str, float, Act]], loops: Sequence[tuple[str, Act]]) -> None:
        """Begin.

        Args:
            acts: Each with its name, seconds between two beginnings, and how it goes.
            loops: Each with its name; it begins anew as soon as it is over.
        """
        self._beginning = [asyncio.ensure_future(self._again(*each)) for each in acts]
        self._beginning += [asyncio.ensure_future(self._on_and_on(*each)) for each in loops]

    async def end(self) -> None:
        """Begin nothing more, and wait until all of it is over."""
        self._ending.set()
        await asyncio.gather(*self._beginning)
        await asyncio.gather(*self._under_way)

    async def _again(self, kind: str, seconds: float, act: Act) -> None:
        while True:
            try:
                await asyncio.wait_for(self._ending.wait(), seconds * self._random.uniform(0.5, 1.5))
                return
            except TimeoutError:
                task = asyncio.ensure_future(self._attempt(kind, act))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)

    async def _on_and_on(self, kind: str, act: Act) -> None:
        while not self._ending.is_set():
            await self._attempt(kind, act)

    async def _attempt(self, kind: str, act: Act) -> None:
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                await act()
        except (OSError, EOFError, ValueError, RuntimeError) as error:
            self._score.fail(kind, f"{type(error).__name__}: {error}")
            await asyncio.sleep(0.1)


async def _watch(stage: Stage, score: Score, samples: list[Sample], seconds: float, file: TextIO) -> None:
    """Take samples for so long, write them down, and print one a minute."""
    began = time.monotonic()
    reported_at, reported_answered = began, 0
    while (now := time.monotonic()) - began < seconds:
        await asyncio.sleep(min(_SAMPLE_SECONDS, began + seconds - now))
        try:
            samples.append(sample(stage.gateway.pid))
        except OSError:
            return  # it ended, which is reported in the end
        now = time.monotonic()
        taken = {name: asdict(process) for name, process in samples[-1].items()}
        print(json.dumps({"seconds": round(now - began), **taken}), file=file, flush=True)
        if now - reported_at >= _REPORT_SECONDS:
            rate = (score.answered - reported_answered) / (now - reported_at)
            failed = f"; {sum(score.failed.values())} FAILED" if score.failed else ""
            print(f"{now - began:6.0f} s  {rate:5.1f} requests/s; {shown(samples[-1])}{failed}", flush=True)
            reported_at, reported_answered = now, score.answered


def _report(score: Score, samples: Sequence[Sample], problems: Sequence[str], folder: Path) -> int:
    lines, grown = growth(samples)
    print("\n" + "\n".join(lines))
    print(f"\nanswered as expected   {score.answered}")
    print("what was done         ", ", ".join(f"{count} {what}" for what, count in sorted(score.outcomes.items())))
    problems = [*problems, *grown, *(f"failed: {count} x {what}" for what, count in score.failed.most_common(20))]
    for problem in problems:
        print(f"NOT RIGHT              {problem}")
    print(f"\n{'not right' if problems else 'flat, and nothing failed'}; logs in {folder}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
