"""What the gateway costs per request and per streamed chunk, beside the bare floor and its peers, in one run.

    python -m benchmarks.overhead [--seconds 4] [--rounds 3] [--peer NAME='command {port} {a} {b}'] [--off] [--api API]
                                  [--long]

The floor is the least that a Python proxy can do (`floor`): callbacks that parse the body as JSON and pass it on, and
write what comes back. A peer is any other gateway: its command gets a port to listen on and the URLs of two engines.
Every candidate runs pinned to one core; the mock engines and the load run on another. They are loaded in turn, round by
round, so that a change of the machine's speed meets all of them. What counts is CPU time per request (user and system
time of the whole process tree, up to the moment when it is idle again: explanations are worked out after the response),
which holds on a noisy machine.

Bodies: `chat` = 200 conversations of 13 messages that share a 7 KB system prompt (10 KB each), sent over and over;
`turns` = conversations like these, turn by turn: each body is sent once and ends with a new message; `cold` = the same
size, no two texts alike, each sent once; `stream` = 32 streams at once, 100 chunks 10 ms apart, each with a new
conversation. `one` = the chat bodies over one connection, whose latencies are given; the floor's are those of the
engine and of the load generator. Bodies that are sent once may be used up before the time is over: the load ends then.
Of `turns` a slower candidate gets fewer, and with them fewer of the later turns, which are longer. Engines report as
cached what one cache for all bodies would hold: nearly all of a `chat` body, nothing of a `cold` one.

With ``--long`` requests of about 100,000 tokens (650 KB) are sent as well: the next turns of an agent's sessions, whose
first turns are sent before, and prompts like no other; 30 and 12 a round, four at once.

With ``--api`` the same bodies are also sent as requests of other APIs, and each is compared with chat: the ratio of CPU
time in every round, of which the median, the least and the most are given. The APIs of a candidate are loaded in turn,
and take bodies of their own of those that are sent once.

RSS: resident memory of the process tree after all rounds, pages that processes share counted once. A faster candidate
has served more requests by then.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.free_ports import free_port
from benchmarks.overhead.bodies import ONCE, PATHS, write_bodies, write_long_bodies
from benchmarks.overhead.candidates import Candidate, commands, start
from benchmarks.overhead.processes import (
    QUIET,
    cpu_seconds,
    engine_command,
    idle_cpu_seconds,
    memory_mib,
    pinned,
    run_load,
    terminate,
    tree,
)

CHUNKS = 100


def measure(candidate: Candidate, kind: str, bodies: Path, connections: int, seconds: float, api: str) -> None:
    before = cpu_seconds(*tree(candidate.process.pid))
    result = run_load(candidate.port, bodies, connections, seconds, once=kind in ONCE, api=api)
    cpu = idle_cpu_seconds(*tree(candidate.process.pid)) - before
    if result["errors"]:
        raise SystemExit(f"{candidate.name}: {result['errors']} requests failed under {kind} ({api})")
    if kind == "one":
        candidate.figures.setdefault("p50", []).append(result["p50"])
        candidate.figures.setdefault("p99", []).append(result["p99"])
    divisor = result["requests"] * (CHUNKS if kind == "stream" else 1)
    candidate.figures.setdefault(kind if api == "chat" else f"{kind} {api}", []).append(cpu / divisor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--off", action="store_true", help="also with explanations off, and without their limit")
    parser.add_argument("--api", action="append", default=[], choices=[*PATHS][1:], help="a translated API")
    parser.add_argument("--long", action="store_true", help="also requests of 100,000 tokens")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="overhead-"))
    apis = ["chat", *args.api]
    write_bodies(folder, args.rounds * len(apis))
    if args.long:
        write_long_bodies(folder, args.rounds)
    ports = [free_port(), free_port()]
    engines = [f"http://127.0.0.1:{port}" for port in ports]
    processes = [pinned(1, engine_command(ports, CHUNKS), **QUIET)]
    try:
        time.sleep(1)
        candidates = start(commands(args.peer, folder, engines, off=args.off), engines, folder, processes)
        for candidate in candidates:
            run_load(candidate.port, folder / "chat.jsonl", args.connections, 1.5)
            # What is loaded for the first requests is no part of later ones.
            idle_cpu_seconds(*tree(candidate.process.pid))
        for number in range(args.rounds):
            for kind in ("chat", "turns", "cold", "one", "stream"):
                connections = {"one": 1, "stream": 32}.get(kind, args.connections)
                seconds = max(args.seconds, 4 * (kind == "stream"))
                for candidate in candidates:
                    for at, api in enumerate(apis if candidate.name != "floor" else apis[:1]):
                        bodies = f"{kind}-{number * len(apis) + at}" if kind in ONCE else "chat"
                        measure(candidate, kind, folder / f"{bodies}.jsonl", connections, seconds, api)
            for candidate in candidates if args.long else ():
                for kind in ("first", "agent", "long"):
                    measure(candidate, kind, folder / f"{kind}-{number}.jsonl", 4, 60, "chat")
        report(candidates, long=args.long)
        for candidate in candidates[1:]:
            report_apis(candidate, args.api)
    finally:
        terminate(processes)


def report(candidates: list[Candidate], *, long: bool) -> None:
    """Print the median of each figure, and its ratio to the floor's; after the peers, the gateway's ratio to each."""
    figures = {
        each.name: {name: statistics.median(values) for name, values in each.figures.items()} for each in candidates
    }
    base = figures["floor"]
    columns = "repeated ms/request | turn ms/request | unseen ms/request | us/chunk | one connection, p50 | p99"
    columns += " | agent's turn ms/request | long unseen ms/request" * long
    print(f"| | {columns} | to first response | RSS |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |" + " --- | --- |" * long)
    for each in candidates:
        of = figures[each.name]
        cells = [f"{of[kind] * 1e3:.3f} ({of[kind] / base[kind]:.1f}x)" for kind in ("chat", "turns", "cold")]
        cells.append(f"{of['stream'] * 1e6:.1f} ({of['stream'] / base['stream']:.1f}x)")
        cells += [f"{of[name] * 1e3:.2f} ms" for name in ("p50", "p99")]
        cells += [f"{of[kind] * 1e3:.1f} ({of[kind] / base[kind]:.1f}x)" for kind in ("agent", "long")[: 2 * long]]
        cells += [f"{each.first_response:.2f} s", f"{memory_mib(*tree(each.process.pid)):.0f} MiB"]
        print(f"| {each.name} | {' | '.join(cells)} |")
    for each in candidates[2:]:
        ratios = [f"{kind} {figures['gateway'][kind] / figures[each.name][kind]:.2f}" for kind in base]
        print(f"gateway / {each.name}: {', '.join(ratios)}")


def report_apis(candidate: Candidate, apis: list[str]) -> None:
    """Print what requests and chunks of other APIs take of a chat request's CPU time."""
    for api in apis:
        cells = []
        for name, kind in {"repeated": "chat", "turn": "turns", "unseen": "cold", "chunk": "stream"}.items():
            pairs = zip(candidate.figures[f"{kind} {api}"], candidate.figures[kind], strict=True)
            ratios = [own / chat for own, chat in pairs]
            cells.append(f"{name} {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        print(f"{candidate.name}, {api} / chat: {', '.join(cells)}")


main()
