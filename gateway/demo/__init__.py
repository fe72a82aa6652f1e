"""``prefix-gateway demo``: the gateway and a round robin gateway under the same simulated traffic.

In: the command line's options. Out: live tables and a summary. Start with ``session``, which runs everything.
``demo_plan`` has the numbers, ``applications`` the traffic, ``children`` the processes, ``score`` the measurements,
``demo_view`` the tables.
"""

import argparse
import math
import sys

DESCRIPTION = """\
See it work: three simulated replicas, the gateway in front of them, and the traffic of four applications.
The same traffic goes through round robin beside it, with three replicas of its own, so the gain can be seen.
Runs until Ctrl-C, or for --seconds; both end with a summary."""

EPILOG = """\
example:
  prefix-gateway demo
  prefix-gateway demo --seconds 30 --json
  prefix-gateway demo --port 9000 --admin-port 9001

exit code: 0, 1 (requests failed), 2 (a port is taken, or bad usage)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.add_argument(
        "--seconds", type=_seconds, default=None, metavar="N", help="end after N seconds of traffic (default: Ctrl-C)"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON, and nothing else, to stdout")
    parser.add_argument(
        "--port", type=_port, default=8080, help="the gateway's port; 0 takes a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--admin-port",
        type=_port,
        default=8081,
        metavar="PORT",
        help="the gateway's admin port; 0 takes a free one (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from gateway.demo.session import PortTaken, run_session

    try:
        return run_session(args)
    except PortTaken as taken:
        for line in taken.lines:
            print(f"prefix-gateway demo: {line}", file=sys.stderr)
        return 2


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port between 0 and 65535, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, not {text!r}")
    return seconds
