"""CPU time per warm 10 KB request and requests per second by number of workers."""

import os
from argparse import ArgumentParser, Namespace

from benchmarks.growth.plot import Axis, Plot
from benchmarks.growth.result import Result
from benchmarks.growth.stage import Stage
from benchmarks.overhead.bodies import write_bodies

_CONNECTIONS = 64
"""The kernel spreads connections over the workers, so there have to be many."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="numbers of workers")


def measure(args: Namespace) -> Result:
    rows = []
    for workers in args.workers:
        with Stage(core=None, command=("-m", "gateway", "serve", "--workers", str(workers))) as stage:
            write_bodies(stage.folder)
            bodies = stage.folder / "chat.jsonl"
            stage.cost(bodies, 3, connections=_CONNECTIONS)
            cost = stage.cost(bodies, 2 * args.seconds, connections=_CONNECTIONS)
            rows.append((workers, cost.gateway_ms, cost.explain_ms, cost.rate, *stage.memory_mib()))
    return Result(
        ("workers", "gateway ms", "explaining ms", "requests/s", "gateway MiB", "explaining MiB"),
        rows,
        Plot(
            "CPU time per warm request by number of workers",
            Axis("workers", log=False),
            Axis("ms of CPU", log=False),
            {"gateway": [(row[0], row[1]) for row in rows], "explaining": [(row[0], row[2]) for row in rows]},
        ),
        [
            f"Not pinned, {_CONNECTIONS} connections. This machine has {os.cpu_count()} cores, which the workers share"
            " with the explaining process, the engines and the load: with two cores requests per second cannot double."
        ],
    )
