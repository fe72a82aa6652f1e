import argparse
import random
import sys
import time

from benchmarks.fuzz import __doc__ as description
from benchmarks.fuzz.targets import RUNS, TARGETS

_ROUND = 2000
"""Examples between two looks at the clock."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fuzz", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=sorted([*RUNS, *TARGETS]))
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=None, help="of the first round; the next ones count up")
    arguments = parser.parse_args()
    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
    began, rounds = time.monotonic(), 0
    if arguments.target in RUNS:
        tried = RUNS[arguments.target](arguments.seconds, seed)
        print(f"{arguments.target}: {tried} examples in {time.monotonic() - began:.0f} s, seed {seed}: ok")
        return 0
    while time.monotonic() - began < arguments.seconds:
        try:
            TARGETS[arguments.target].run(_ROUND, seed + rounds)
        except Exception:
            print(f"failed; again with: --seed {seed + rounds}", file=sys.stderr)
            raise
        rounds += 1
    print(f"{arguments.target}: {rounds * _ROUND} examples in {time.monotonic() - began:.0f} s, seeds from {seed}: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
