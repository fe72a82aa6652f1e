"""What the gateway costs per request and per streamed chunk, beside the bare floor, in one run.

    python -m benchmarks.overhead [--seconds 4] [--rounds 3] [--peer NAME='command {port} {a} {b}']

The floor is the least that a Python proxy can do (`floor`): callbacks that parse the body as JSON and pass it on, and
write what comes back. Every candidate runs pinned to one core; the mock engines and the load run on another.
They are loaded in turn, round by round, so that a change of the machine's speed meets all of them. What counts is CPU
time per request (user and system time of the whole process tree), which holds on a noisy machine; requests per second
are shown beside it.

Bodies: `chat` = 200 conversations of 13 messages that share a 7 KB system prompt (10 KB each, prefix warm); `cold` =
the same size, no two texts alike; `stream` = 32 streams at once, 100 chunks 10 ms apart.
"""

import argparse
import json
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.overhead.bodies import write_bodies

HERE = Path(__file__).parent
TICK = os.sysconf("SC_CLK_TCK")
CHUNKS = 100


@dataclass
class Candidate:
    name: str
    port: int
    process: subprocess.Popen
    figures: dict[str, list[float]] = field(default_factory=dict)
    rates: dict[str, list[float]] = field(default_factory=dict)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def pinned(core: int, command: list[str], **options) -> subprocess.Popen:
    cores = sorted(os.sched_getaffinity(0))
    return subprocess.Popen(
        ["taskset", "-c", str(cores[core % len(cores)]), *command], start_new_session=True, **options
    )


def tree(pid: int) -> list[int]:
    found, todo = [], [pid]
    while todo:
        current = todo.pop()
        found.append(current)
        for task in Path(f"/proc/{current}/task").glob("*/children"):
            todo += [int(child) for child in task.read_text().split()]
    return found


def cpu_seconds(pid: int) -> float:
    total = 0
    for process in tree(pid):
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(") ", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICK


def wait_until_serving(candidate: Candidate, body: bytes) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{candidate.port}/v1/chat/completions", body, {"content-type": "application/json"}
    )
    for _ in range(120):
        try:
            urllib.request.urlopen(request, timeout=5).read()
            return
        except (OSError, urllib.error.HTTPError):
            if candidate.process.poll() is not None:
                break
            time.sleep(0.5)
    raise SystemExit(f"{candidate.name} does not serve")


def load(candidate: Candidate, kind: str, folder: Path, connections: int, seconds: float) -> dict:
    command = [sys.executable, "-m", "benchmarks.overhead.load", str(candidate.port), str(folder / f"{kind}.jsonl")]
    finished = pinned(1, [*command, str(connections), str(seconds)], stdout=subprocess.PIPE, text=True)
    return json.loads(finished.communicate()[0])


def measure(candidate: Candidate, kind: str, folder: Path, connections: int, seconds: float) -> None:
    before = cpu_seconds(candidate.process.pid)
    result = load(candidate, kind, folder, connections, seconds)
    cpu = cpu_seconds(candidate.process.pid) - before
    if result["errors"]:
        raise SystemExit(f"{candidate.name}: {result['errors']} requests failed under {kind}")
    divisor = result["requests"] * (CHUNKS if kind == "stream" else 1)
    candidate.figures.setdefault(kind, []).append(cpu / divisor)
    candidate.rates.setdefault(kind, []).append(result["requests"] / result["seconds"])


def gateway_config(folder: Path, port: int, engines: list[str]) -> Path:
    path = folder / "gateway.yaml"
    path.write_text(
        json.dumps(
            {
                "server": {"port": port, "admin_port": 0},
                "models": [{"id": "m", "tokenizer": "builtin:demo", "replicas": engines}],
            }
        )
    )
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="overhead-"))
    write_bodies(folder)
    ports = [free_port(), free_port()]
    engines = [f"http://127.0.0.1:{port}" for port in ports]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [
        pinned(1, [sys.executable, "-m", "benchmarks.overhead.engine", *map(str, ports), str(CHUNKS)], **quiet)
    ]
    try:
        time.sleep(1)
        port = free_port()
        floor = Candidate(
            "floor",
            port,
            pinned(0, [sys.executable, "-m", "benchmarks.overhead.floor", str(port), *engines], **quiet),
        )
        port = free_port()
        config = gateway_config(folder, port, engines)
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(config)]
        gateway = Candidate("gateway", port, pinned(0, command, **quiet))
        candidates = [floor, gateway]
        for peer in args.peer:
            name, _, text = peer.partition("=")
            port = free_port()
            words = shlex.split(text.format(port=port, a=engines[0], b=engines[1]))
            candidates.append(Candidate(name, port, pinned(0, words, **quiet)))
        processes += [candidate.process for candidate in candidates]
        body = (folder / "chat.jsonl").read_bytes().split(b"\n")[0]
        for candidate in candidates:
            wait_until_serving(candidate, body)
            load(candidate, "chat", folder, args.connections, 1.5)
        for _ in range(args.rounds):
            for kind in ("chat", "cold", "stream"):
                for candidate in candidates:
                    streams = 32 if kind == "stream" else args.connections
                    measure(
                        candidate, kind, folder, streams, max(args.seconds, 4) if kind == "stream" else args.seconds
                    )
        report(candidates)
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            process.wait(20)


def report(candidates: list[Candidate]) -> None:
    print(f"{'':10} {'chat ms/req':>18} {'cold ms/req':>18} {'us/chunk':>14} {'chat req/s':>12}")
    for candidate in candidates:
        chat, cold, chunk = (statistics.median(candidate.figures[kind]) for kind in ("chat", "cold", "stream"))
        base = candidates[0].figures
        ratio = {kind: statistics.median(candidate.figures[kind]) / statistics.median(base[kind]) for kind in base}
        print(
            f"{candidate.name:10} {chat * 1e3:10.3f} ({ratio['chat']:4.2f}x) {cold * 1e3:10.3f} ({ratio['cold']:4.2f}x)"
            f" {chunk * 1e6:6.1f} ({ratio['stream']:4.2f}x) {statistics.median(candidate.rates['chat']):12.0f}"
        )


main()
