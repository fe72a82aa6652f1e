"""Resident memory by number of requests: the gateway and its peers in one run.

    python -m benchmarks.overhead.memory [--requests 100000] [--peer NAME='command {port} {a} {b}']

Conversations turn by turn, as ``turns`` of ``benchmarks.overhead``: each body is sent once to each candidate. Memory is
that of a candidate's process tree when it is idle again, pages that processes share counted once; behind it, that of
each process.
"""

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.free_ports import free_port
from benchmarks.overhead.bodies import write_bodies, write_turns
from benchmarks.overhead.candidates import Candidate, commands, start
from benchmarks.overhead.processes import (
    QUIET,
    engine_command,
    idle_cpu_seconds,
    memory_mib,
    pinned,
    run_load,
    terminate,
    tree,
)

_CONNECTIONS = 16
_PATIENCE_SECONDS = 600
_ROWS = 10


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="memory-"))
    write_bodies(folder, 0)
    ports = [free_port(), free_port()]
    engines = [f"http://127.0.0.1:{port}" for port in ports]
    processes: list[subprocess.Popen] = [pinned(1, engine_command(ports, 1), **QUIET)]
    try:
        time.sleep(1)
        gateway_and_peers = commands(args.peer, folder, engines)[1:]
        candidates = start(gateway_and_peers, engines, folder, processes)
        print(f"| requests | {' | '.join(each.name for each in candidates)} |")
        print(f"| ---: |{' ---: |' * len(candidates)}")
        sent = shown = 0
        for path, bodies in write_turns(folder):
            for each in candidates:
                errors = run_load(each.port, path, _CONNECTIONS, _PATIENCE_SECONDS, once=True)["errors"]
                if errors:
                    raise SystemExit(f"{each.name}: {errors} requests failed")
            sent += bodies
            if sent >= shown + args.requests / _ROWS or sent >= args.requests:
                shown = sent
                print(f"| {sent:,} | {' | '.join(map(cell, candidates))} |", flush=True)
            if sent >= args.requests:
                return
    finally:
        terminate(processes)


def cell(candidate: Candidate) -> str:
    """A candidate's memory, in all and by process."""
    pids = tree(candidate.process.pid)
    idle_cpu_seconds(*pids)
    parts = " + ".join(f"{memory_mib(pid):.0f}" for pid in pids)
    return f"{memory_mib(*pids):.0f} MiB ({parts})" if len(pids) > 1 else f"{parts} MiB"


if __name__ == "__main__":
    main()
