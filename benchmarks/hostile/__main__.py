"""Attacks by one tenant, and what another tenant sees of them.

    python -m benchmarks.hostile [NAME ...] [--seconds 5] [--limit-ms 50] [--markdown FILE]

A gateway with two tenants, isolated prefix spaces, all canonicalization rules applied and all kinds of personal data
searched for, in front of a mock engine that answers at once. One attack after the other goes on for some seconds, from
a process of its own that builds its bodies before; meanwhile the other tenant sends small chats on a kept connection
and now and then one of 40 KB, and both ports are asked for `/healthz` every 10 ms. A control is asked as often: a
process that does nothing else, whose delays are the machine's and not the gateway's. First, the same is measured
without an attack: the noise floor.

The columns: `freeze` is the longest answer to `/healthz`, less the control's longest answer at the same time; `CPU` is
what the gateway's main process computed during that answer; `public`, `admin` and `control` are the longest answers by
themselves; then the normal client's median, its 99th percentile, its longest answer to 40 KB and its errors; the memory
of all of the gateway's processes before the attack, at most, and after it; the generation requests and other requests
that it caused at the engine; the seconds until the gateway was at rest again; what the attackers got; what the gateway
logged. A gateway that ended, or is still busy half a minute after an attack, is started anew. A name may end in `*`.
"""

import argparse
import asyncio
import fnmatch
import signal
import sys
from pathlib import Path

from benchmarks.hostile.attacks import CATALOG
from benchmarks.hostile.attacks.attack import Target
from benchmarks.hostile.measure import NOTHING, Result, measured
from benchmarks.hostile.report import COLUMNS, cells, conclusion, line, write_markdown
from benchmarks.hostile.stage import Stage
from gateway.http_client.open_files import raise_open_files

_FLOORS = 2


def main() -> int:
    """Entry point."""
    args = _arguments()
    if args.list:
        print("\n".join(f"{attack.name:24} {attack.what}" for attack in CATALOG.values()))
        return 0
    raise_open_files()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # so that no process is left
    with Stage(args.receive_seconds, args.personal_data) as stage:
        return asyncio.run(_run(args, stage))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="attacks to run; all if none is named")
    parser.add_argument("--list", action="store_true", help="list the attacks")
    parser.add_argument("--seconds", type=float, default=5, help="for which each attack goes on")
    parser.add_argument(
        "--repeat", type=int, default=1, help="measure each so often, and keep the one with the shortest freeze"
    )
    parser.add_argument("--limit-ms", type=float, help="exit with 1 if a freeze is longer")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table to a file")
    parser.add_argument("--seed", type=int, default=1, help="for bodies that are random")
    parser.add_argument("--idle", type=int, default=10_000, help="connections that send nothing")
    parser.add_argument("--slow", type=int, default=1000, help="requests that arrive byte by byte")
    parser.add_argument("--receive-seconds", type=float, default=10, help="the gateway's server.receive_seconds")
    parser.add_argument(
        "--personal-data", choices=("report", "mask", "block"), default="mask", help="the gateway's personal_data.mode"
    )
    parser.add_argument("--fresh", action="store_true", help="a new gateway for each attack")
    args = parser.parse_args()
    args.names = [name for pattern in args.names or ["*"] for name in _matching(parser, pattern)]
    return args


def _matching(parser: argparse.ArgumentParser, pattern: str) -> list[str]:
    names = fnmatch.filter(CATALOG, pattern)
    if not names:
        parser.error(f"no attack is called {pattern} (--list shows all)")
    return names


async def _run(args: argparse.Namespace, stage: Stage) -> int:
    target = Target(stage.port, stage.keys["attacker"], args.seed, args.idle, args.slow)
    results: list[Result] = []
    busy = False
    print(line(COLUMNS), flush=True)
    for number, name in enumerate((*[NOTHING] * _FLOORS, *args.names)):
        best: Result | None = None
        for _ in range(args.repeat if name != NOTHING else 1):
            if stage.gateway.ended or busy or (args.fresh and number >= _FLOORS):
                stage.restart()
            result = await measured(name, stage, target, args.seconds)
            busy = result.stuck
            best = result if best is None or result.freeze < best.freeze else best
        assert best is not None
        results.append(best)
        print(line(cells(best)), flush=True)
        if args.markdown is not None:
            rows = [cells(result) for result in results]
            write_markdown(args.markdown, rows, conclusion(results[:_FLOORS], results[_FLOORS:]))
    print(conclusion(results[:_FLOORS], results[_FLOORS:]))
    too_long = args.limit_ms is not None and any(r.freeze > args.limit_ms or r.died for r in results[_FLOORS:])
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
