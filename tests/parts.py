"""All tests, in parts side by side: ``make test``, or ``python -m tests.parts [PART ...]`` for some of them.

Most tests wait most of their time, for processes to start or for something to be noticed, so that several parts fit on
two cores. What is sent where depends on what answers take: tests of that have the machine for themselves, in the end.

On a busy machine a process may stand still for longer than any patience. So what failed beside others is run once more
by itself, unless it is much. Whether it fails then decides, and what passed only then is named: it is to be mended.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

MOST_FAILED = 20
"""More, and it is no accident."""

ROOT = Path(__file__).parents[1]
FAILED = 1
"""What pytest exits with where tests failed, and nothing worse happened."""


@dataclass(frozen=True)
class Part:
    """Some tests.

    Attributes:
        name: What it is called.
        paths: Where they are.
        but: What is left out of that.
        gives_way: Whether it waits for nothing, and lets others go first.
    """

    name: str
    paths: Sequence[str]
    but: Sequence[str] = ()
    gives_way: bool = False

    @property
    def cache(self) -> Path:
        """Where pytest keeps what failed."""
        return ROOT / ".pytest_cache" / self.name


def _of_gateway(names: str) -> list[str]:
    return [f"tests/gateway/test_{name}.py" for name in names.split()]


PROCESSES = ["tests/scenarios", "tests/browser", "tests/observability", "tests/demo"]
COMMANDS = _of_gateway("workers reload replicas_come_and_go discovery stopping command_line")
FAILING = [
    *("tests/cluster", "tests/discovery", "tests/server"),
    *_of_gateway("shared_state shared_past shared_figures draining slow_clients"),
]
CANON = ["tests/canon"]
EXPLAIN = ["tests/explain", "tests/stats"]
TIMED = _of_gateway("shared_engines routing isolation_prefill hot_prefixes overload")

PARTS = [
    # A gateway for every scenario, the demo, browsers, Prometheus.
    Part("processes", PROCESSES),
    Part("sockets", ["tests/gateway"], but=[*COMMANDS, *FAILING, *TIMED]),
    Part("rest", ["tests"], but=["tests/gateway", *PROCESSES, *FAILING, *CANON, *EXPLAIN]),
    # A gateway as it is started by hand, with workers, too.
    Part("commands", COMMANDS),
    # Redis and other things that go and come back.
    Part("failing", FAILING),
    Part("canon", CANON, gives_way=True),
    Part("explain", EXPLAIN, gives_way=True),
]
ALONE = Part("timed", TIMED)


@dataclass(frozen=True)
class Result:
    """How a part went."""

    part: Part
    code: int
    failed: Sequence[str]


def run(part: Part, *options: str) -> Result:
    """Run a part, telling how far it is, and show what pytest printed when it is over."""
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={part.cache}", *options, *part.paths]
    command += [f"--ignore={path}" for path in part.but]
    if part.gives_way:
        command = ["nice", "-n", "10", *command]
    began, lines, told = time.monotonic(), [], 0
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            done = re.search(r"\[ *(\d+)%\]$", line)
            if done is not None and int(done[1]) >= told + 10:
                told = int(done[1]) // 10 * 10
                print(f"{part.name}: {done[1]}%", flush=True)
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    head = f"== {part.name}: {minutes} min {seconds} s =="
    print("\n" + head, *(line.rstrip("\n") for line in lines), "", sep="\n", flush=True)
    return Result(part, process.returncode, _last_failed(part) if process.returncode == FAILED else [])


def anew(part: Part) -> Result:
    """Run a part, whatever failed before."""
    return run(part, "--cache-clear")


def _last_failed(part: Part) -> list[str]:
    file = part.cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(file.read_text())) if file.exists() else []


def again(results: Iterable[Result]) -> bool:
    """Run what failed once more, by itself; whether all is well then."""
    failed = [result for result in results if result.code]
    names = [name for result in failed for name in result.failed]
    if any(result.code != FAILED or not result.failed for result in failed) or len(names) > MOST_FAILED:
        return False
    well = True
    for result in failed:
        print(f"Once more, by themselves: {' '.join(result.failed)}", flush=True)
        well &= run(result.part, "--last-failed", "--last-failed-no-failures=none").code == 0
    if well and names:
        print("Passed only by themselves, to be mended:", *names, sep="\n  ")
    return well


def main(names: Sequence[str]) -> int:
    """Run all parts, or those named."""
    known = {part.name: part for part in [*PARTS, ALONE]}
    if unknown := [name for name in names if name not in known]:
        print(f"There is no part {', '.join(unknown)}; there are {', '.join(known)}.", file=sys.stderr)
        return 2
    chosen = [known[name] for name in names or known]
    with ThreadPoolExecutor(len(PARTS)) as threads:
        results = list(threads.map(anew, [part for part in chosen if part is not ALONE]))
    if ALONE in chosen:
        results.append(anew(ALONE))
    return 0 if again(results) else 1


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
