"""CPU time per chunk by the number of streams that are open at the same time in one process.

Chunks come at the same rate in all cases, so that only the number of streams differs: with more streams, each of them
is slower.
"""

import json
import random
import subprocess
import sys
from argparse import ArgumentParser, Namespace

from benchmarks.growth.plot import Axis, Plot
from benchmarks.growth.prompts import body, chat
from benchmarks.growth.result import Result
from benchmarks.growth.stage import Stage
from benchmarks.overhead.processes import pinned
from gateway.http_client.open_files import FileLimits, open_files, raise_open_files

_OTHER_FILES = 200
"""Files that a process has open beside the connections of streams."""
_FILES_PER_STREAM = 2
"""A connection of the client and one to the replica."""
_ENDLESS = 10**9


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, nargs="+", default=[32, 100, 1_000, 3_000, 10_000], help="open streams")
    parser.add_argument("--chunk-rate", type=float, default=2000, help="chunks per second of all streams together")


def measure(args: Namespace) -> Result:
    raise_open_files()
    most = int(FileLimits.of(open_files()).served - _OTHER_FILES) // _FILES_PER_STREAM
    counts = sorted({min(count, most) for count in args.streams})
    rows = []
    for streams in counts:
        # With the queue and the replicas' slots as they are by default, the gateway would hold back most of them.
        limits = {"queue": {"max_seconds": 0}, "placement": {"slots": 2 * streams}}
        with Stage(pause=streams / args.chunk_rate, chunks=_ENDLESS, **limits) as stage:
            file = stage.write_bodies("stream", [body(chat(random.Random(1), 200), warm=True, stream=True)])
            pids = [*stage.gateway_pids, *stage.explain_pids]
            seconds = max(2 * args.seconds, 1.5 * streams / args.chunk_rate)
            command = [sys.executable, "-m", "benchmarks.growth.stream_load", str(stage.port), str(file)]
            load = pinned(1, [*command, str(streams), str(seconds), *map(str, pids)], stdout=subprocess.PIPE, text=True)
            assert load.stdout is not None
            counted = json.loads(load.stdout.readline())
            memory = stage.memory_mib()
            load.wait()
        if counted["failed"]:
            raise SystemExit(f"{counted['failed']} of {streams} streams failed")
        rate = counted["chunks"] / counted["seconds"]
        rows.append((streams, 1e6 * counted["cpu"] / counted["chunks"], rate, *memory))
    notes = []
    if max(args.streams) > most:
        notes.append(
            f"This machine lets a process have {open_files():,.0f} files open, of which the gateway uses three quarters"
            f" for connections: with two per stream that is {most:,} streams; {max(args.streams):,} need a limit of"
            f" {(max(args.streams) * _FILES_PER_STREAM + _OTHER_FILES) * 4 // 3:,}."
        )
    return Result(
        ("streams", "us per chunk", "chunks/s", "gateway MiB", "explaining MiB"),
        rows,
        Plot(
            "CPU time per chunk by number of open streams",
            Axis("open streams"),
            Axis("us of CPU, all processes", log=False),
            {"chunk": [(row[0], row[1]) for row in rows]},
        ),
        notes,
    )
