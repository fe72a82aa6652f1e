"""How long `prefix-gateway analyze` takes on a generated log.

    python -m benchmarks.analyze [--mib 200] [--log FILE] [--only-log] [--seconds-between 0.5]

The log has a support chat (three fifths of the requests: conversations of up to seven turns behind one system prompt),
a bot with the time in front of its instructions, an application with tools in changing order, and prompts that share
nothing. Prints wall time, CPU time of all processes, and the memory of the largest one; and what a GiB takes at that
rate. CPU time divided by two is what two cores take that do nothing else.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.overhead.bodies import WORDS

BEGAN = 1_790_000_000.0
GIB = 2**30


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


class Traffic:
    """Requests of four applications, one after the other."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.support = "You are the support assistant of a shop. " + words(self.rng, 700)
        self.bot = words(self.rng, 500)
        self.trips = "You plan trips. " + words(self.rng, 300)
        parameters = {"type": "object", "properties": {"place": {"type": "string"}}}
        self.tools = [
            {
                "type": "function",
                "function": {"name": f"tool_{n}", "description": words(self.rng, 12), "parameters": parameters},
            }
            for n in range(4)
        ]
        self.conversations: list[tuple[str, list[dict[str, str]]]] = []
        self.begun = 0

    def request(self, at: float) -> tuple[dict[str, str], dict]:
        """Headers and body."""
        chance = self.rng.random()
        if chance < 0.6:
            return self.turn()
        if chance < 0.8:
            now = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
            return self.single("invoice-bot", f"Current time: {now}\nYou check invoices. {self.bot}", 120)
        if chance < 0.9:
            tools = self.rng.sample(self.tools, len(self.tools))
            return self.single("planner", self.trips, 50, tools=tools)
        return {"user-agent": "curl/8.5"}, {"model": "llama", "messages": [self.said("user", 600)]}

    def single(self, client: str, system: str, length: int, **more: object) -> tuple[dict[str, str], dict]:
        messages = [{"role": "system", "content": system}, self.said("user", length)]
        return {"x-client": client}, {"model": "llama", "messages": messages, **more}

    def turn(self) -> tuple[dict[str, str], dict]:
        if self.conversations and self.rng.random() < 0.8:
            number = self.rng.randrange(len(self.conversations))
            session, messages = self.conversations[number]
            messages += [self.said("assistant", 80), self.said("user", 30)]
            if len(messages) > 13:
                del self.conversations[number]
        else:
            self.begun += 1
            session, messages = f"c{self.begun}", [{"role": "system", "content": self.support}, self.said("user", 30)]
            self.conversations = [*self.conversations[-199:], (session, messages)]
        return {"x-client": "support-web", "x-session-id": session}, {"model": "llama", "messages": messages}

    def said(self, role: str, length: int) -> dict[str, str]:
        return {"role": role, "content": words(self.rng, length)}


def lines(size: int, seconds_between: float) -> Iterator[bytes]:
    """JSON lines of at least `size` bytes in all."""
    traffic = Traffic(seed=1)
    at, written = BEGAN, 0
    while written < size:
        at += traffic.rng.expovariate(1 / seconds_between)
        headers, body = traffic.request(at)
        line = json.dumps({"timestamp": round(at, 3), "headers": headers, "request": body}).encode() + b"\n"
        written += len(line)
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=200)
    parser.add_argument("--log", type=Path, help="where the log is written (default: a temporary file)")
    parser.add_argument("--only-log", action="store_true", help="write the log and do not analyze it")
    parser.add_argument("--seconds-between", type=float, default=0.5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = args.log or Path(folder) / "requests.jsonl"
        with log.open("wb") as target:
            target.writelines(lines(round(args.mib * 2**20), args.seconds_between))
        if args.only_log:
            return
        began = time.monotonic()
        command = [sys.executable, "-m", "gateway", "analyze", str(log), "--json"]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        wall = time.monotonic() - began
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = spent.ru_utime + spent.ru_stime
        size = log.stat().st_size
    per_gib = GIB / size / 60
    print(f"{size / 2**20:.0f} MiB, {found['requests']:,} requests, {found['prompt_tokens']:,} prompt tokens")
    print(f"wall {wall:.0f} s, CPU of all processes {cpu:.0f} s, largest process {spent.ru_maxrss / 1024:.0f} MiB")
    print(f"a GiB: {wall * per_gib:.1f} min as measured, {cpu / 2 * per_gib:.1f} min on two cores of its own")


if __name__ == "__main__":
    main()
