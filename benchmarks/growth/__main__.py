"""How the cost of the gateway grows, part by part.

    python -m benchmarks.growth [PART...] [--seconds 4] [--page docs/performance.md]

Parts: `prompt` (length of prompts), `replicas`, `index` (blocks), `streams` (open at the same time), `conversations`
(known ones), `workers`, `stalls` (one long prompt beside normal traffic). Without PART: all of them. Each takes at most
two minutes with its default sizes on an idle machine.

Each part writes its plot to docs/images/growth-PART.svg and prints its table. With `--page`, the table also replaces
what stands between `<!-- growth PART -->` and `<!-- end -->` in that page.

CPU time is user and system time of the gateway's processes. The gateway runs on one core; engines, load and the rest of
the benchmark run on another (`workers`: all of them on all cores).
"""

import argparse
import sys
import time
from pathlib import Path

from benchmarks.growth import conversations, index_size, prompt_length, replicas, stalls, streams, workers

PARTS = {
    "prompt": prompt_length,
    "replicas": replicas,
    "index": index_size,
    "streams": streams,
    "conversations": conversations,
    "workers": workers,
    "stalls": stalls,
}
IMAGES = Path(__file__).parents[2] / "docs" / "images"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement under load")
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder of the plots")
    parser.add_argument("--page", type=Path, help="page whose tables are replaced")
    for part in PARTS.values():
        part.add_arguments(parser)
    args = parser.parse_args()
    for name in args.parts or PARTS:
        began = time.perf_counter()
        result = PARTS[name].measure(args)
        (args.images / f"growth-{name}.svg").write_text(result.plot.svg())
        print(f"\n## {name}\n\n{result.markdown()}", flush=True)
        if args.page is not None:
            args.page.write_text(with_table(args.page.read_text(), name, result.markdown()))
        sys.stderr.write(f"{name}: {time.perf_counter() - began:.0f} s\n")


def with_table(page: str, name: str, table: str) -> str:
    """A page with the table of a part replaced."""
    mark = f"<!-- growth {name} -->"
    before, found, rest = page.partition(mark)
    _, end, after = rest.partition("<!-- end -->")
    if not found or not end:
        raise SystemExit(f"the page has no {mark} with <!-- end --> behind it")
    return f"{before}{mark}\n\n{table}\n\n{end}{after}"


if __name__ == "__main__":
    main()
