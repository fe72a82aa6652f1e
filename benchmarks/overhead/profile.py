"""Where the time of a request goes: a gateway under cProfile and load, by package of its code.

    python -m benchmarks.overhead.profile [--kind chat|turns|cold|stream] [--api API] [--seconds 4] [--functions 0]

A gateway with explanations off serves the bodies of the overhead benchmark twice: without a profiler, for the CPU time
of a request, and with one, for its distribution. A profiler makes calls more expensive than the work inside them, so
each row is a share of what the profiler saw, scaled to the CPU time without it: good for comparing rows, and no more
exact than that. What is called of libraries (orjson, the tokenizer, the event loop's transports) counts for the package
that calls it.
"""

import argparse
import cProfile
import os
import pstats
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import gateway
from benchmarks.free_ports import free_port
from benchmarks.overhead.bodies import ONCE, PATHS, write_bodies
from benchmarks.overhead.processes import (
    QUIET,
    cpu_seconds,
    engine_command,
    gateway_config,
    pinned,
    run_load,
    terminate,
    wait_until_serving,
)

PACKAGE = str(Path(gateway.__file__).parent) + os.sep
CHUNKS = 100

Function = tuple[str, int, str]


def serve(config: str, profile: str) -> int:
    """Serve; SIGUSR1 starts the profiler, SIGUSR2 stops it and writes the profile."""
    from gateway.__main__ import main as run

    profiler = cProfile.Profile()

    def stop(*_: object) -> None:
        profiler.disable()
        profiler.dump_stats(profile)

    signal.signal(signal.SIGUSR1, lambda *_: profiler.enable())
    signal.signal(signal.SIGUSR2, stop)
    sys.argv = ["prefix-gateway", "serve", "--config", config]
    return run() or 0


def package_of(function: Function) -> str:
    """The package of a function of the gateway; empty for a library's."""
    path, _, _ = function
    if not path.startswith(PACKAGE):
        return ""
    first, _, rest = path[len(PACKAGE) :].partition(os.sep)
    return f"{first}/" if rest else first


def by_package(stats: pstats.Stats) -> tuple[Counter[str], Counter[str]]:
    """Seconds and calls by package; those of libraries count where they are called."""
    seconds, calls = Counter[str](), Counter[str]()
    for function, (_, count, own, _, callers) in stats.stats.items():  # type: ignore[attr-defined]
        package = package_of(function)
        if package:
            seconds[package] += own
            calls[package] += count
            continue
        shares = {caller: values[2] for caller, values in callers.items()}
        total = sum(shares.values())
        for caller, share in shares.items():
            seconds[package_of(caller) or "libraries"] += own * share / total if total else 0.0
        if not total:
            seconds["event loop"] += own
    return seconds, calls


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=["chat", "turns", "cold", "stream"], default="chat")
    parser.add_argument(
        "--api", choices=[*PATHS], default="chat", help="send the bodies as its requests (default chat)"
    )
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--functions", type=int, default=0, help="also the functions that take most (default 0)")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="profile-"))
    write_bodies(folder, 3)
    first, second, port = free_port(), free_port(), free_port()
    config = gateway_config(
        folder, port, [f"http://127.0.0.1:{first}", f"http://127.0.0.1:{second}"], explain={"enabled": False}
    )
    profile = folder / "profile"
    processes: list[subprocess.Popen] = [pinned(1, engine_command([first, second], CHUNKS), **QUIET)]
    try:
        command = [sys.executable, "-m", "benchmarks.overhead.profile", "serve", str(config), str(profile)]
        processes.append(served := pinned(0, command, **QUIET))
        names = ["chat"] * 3 if options.kind == "chat" else [f"{options.kind}-{number}" for number in range(3)]
        bodies = [folder / f"{name}.jsonl" for name in names]
        once = options.kind in ONCE
        wait_until_serving("gateway", port, served, (folder / "chat.jsonl").read_bytes().split(b"\n")[0])
        connections = 32 if options.kind == "stream" else 16
        run_load(port, bodies[0], connections, 2, once=once, api=options.api)
        before = cpu_seconds(served.pid)
        plain = run_load(port, bodies[1], connections, options.seconds, once=once, api=options.api)["requests"]
        cost = (cpu_seconds(served.pid) - before) / plain
        os.kill(served.pid, signal.SIGUSR1)
        profiled = run_load(port, bodies[2], connections, options.seconds, once=once, api=options.api)["requests"]
        os.kill(served.pid, signal.SIGUSR2)
        while not profile.exists() or not profile.stat().st_size:
            time.sleep(0.1)
        time.sleep(0.5)
    finally:
        terminate(processes)
    report(pstats.Stats(str(profile)), cost, profiled, options.functions)


def report(stats: pstats.Stats, cost: float, requests: int, functions: int) -> None:
    """Print the distribution of ``cost`` seconds per request."""
    seconds, calls = by_package(stats)
    scale = cost / sum(seconds.values())
    print(f"{cost * 1e6:.0f} us of CPU per request without the profiler\n")
    print("| package | us per request | calls per request |\n| --- | ---: | ---: |")
    for package, value in seconds.most_common():
        if value * scale >= 0.5e-6:
            print(f"| `{package}` | {value * scale * 1e6:.0f} | {calls[package] / requests:.0f} |")
    rows = sorted(stats.stats.items(), key=lambda row: -row[1][2])  # type: ignore[attr-defined]
    for (path, line, name), (_, count, own, _, _) in rows[:functions]:
        print(f"{own * scale * 1e6:7.1f} us {count / requests:6.1f} calls  {path.removeprefix(PACKAGE)}:{line} {name}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        sys.exit(serve(*sys.argv[2:4]))
    main()
