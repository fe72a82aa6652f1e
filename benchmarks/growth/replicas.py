"""CPU time per warm 10 KB request by the number of replicas, and what their health checks cost beside it."""

from argparse import ArgumentParser, Namespace

from benchmarks.growth.plot import Axis, Plot
from benchmarks.growth.result import Result
from benchmarks.growth.stage import Stage
from benchmarks.overhead.bodies import write_bodies

_IDLE_SECONDS = 4.0
"""Two rounds of health checks."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 4, 16, 64, 256], help="numbers of replicas")


def measure(args: Namespace) -> Result:
    rows = []
    for replicas in args.replicas:
        with Stage(replicas) as stage:
            write_bodies(stage.folder)
            bodies = stage.folder / "chat.jsonl"
            stage.cost(bodies, 2)
            idle = stage.idle_share(_IDLE_SECONDS)
            cost = stage.cost(bodies, args.seconds, idle_share=idle)
            rows.append((replicas, cost.gateway_ms, cost.explain_ms, cost.rate, 1e3 * idle))
    return Result(
        ("replicas", "gateway ms", "explaining ms", "requests/s", "health checks, ms of CPU per second"),
        rows,
        Plot(
            "CPU time per warm request by number of replicas",
            Axis("replicas"),
            Axis("ms of CPU", log=False),
            {
                "gateway": [(row[0], row[1]) for row in rows],
                "explaining": [(row[0], row[2]) for row in rows],
            },
        ),
        ["CPU time of the health checks is measured without requests, and is not part of the time per request."],
    )
