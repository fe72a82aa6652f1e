"""Time per look-up and per event, and bytes per block, by the number of blocks in the index (``benchmarks.index``)."""

import json
import subprocess
import sys
from argparse import ArgumentParser, Namespace

from benchmarks.growth.plot import Axis, Plot
from benchmarks.growth.result import Result

_COLUMNS = ("blocks", "lookup_p50_us", "lookup_p99_us", "store_us", "remove_us", "bytes_per_block")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--blocks", type=int, nargs="+", default=[100_000, 1_000_000, 4_000_000], help="held blocks")


def measure(args: Namespace) -> Result:
    rows = []
    for blocks in args.blocks:  # a process each, because memory is measured as growth of the process
        command = [sys.executable, "-m", "benchmarks.index", "--json", "--blocks", str(blocks)]
        (found,) = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        rows.append([found[column] for column in _COLUMNS])
    return Result(
        (
            *("blocks", "look-up of 200 blocks, p50 us", "p99 us", "stored, us per block", "removed, us per block"),
            "bytes per block",
        ),
        rows,
        Plot(
            "Time per look-up and event by blocks in the index",
            Axis("held blocks"),
            Axis("us"),
            {
                "look-up p50": [(row[0], row[1]) for row in rows],
                "look-up p99": [(row[0], row[2]) for row in rows],
                "stored block": [(row[0], row[3]) for row in rows],
                "removed block": [(row[0], row[4]) for row in rows],
            },
        ),
        [
            "Eight replicas; a look-up asks for all of them. In process, nothing else uses the index. Look-ups by the"
            " clock, events by CPU time."
        ],
    )
