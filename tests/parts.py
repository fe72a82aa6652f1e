"""The tests in parts side by side: ``python -m tests.parts LEVEL [PART ...]``, or one of these targets of ``make``:

- ``unit`` (``make test-unit``): packages without I/O.
- ``fast`` (``make test``): everything that is not marked ``slow``.
- ``all`` (``make test-all``, and ``.ci/run``): also those that are, property tests with more examples.
- ``deep`` (``make test-deep``): what is marked ``long``, and property tests with many examples.

Parts that start processes wait for a part of their time: a few of them use two cores, and with more of them a process
would wait long for its turn. The others wait in a queue, the longest first. Units fill what is left of the cores, with
a low priority. Tests that measure the time answers take run after the others, beside units at most.

A test that fails makes the run fail. Failed tests are run again, alone, only to say which of them are flaky.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests import fork_server

MAX_RERUN = 20
"""Number of failed tests above which none is run again."""

ROOT = Path(__file__).parents[1]
_TESTS_FAILED, _NO_TESTS = 1, 5
"""Exit codes of pytest."""

_TEST_SECONDS = 600
"""How long a test may take. After that its part ends, and the output shows what every thread does."""


class Level(StrEnum):
    """Which tests are run."""

    UNIT = "unit"
    FAST = "fast"
    ALL = "all"
    DEEP = "deep"


_SELECTED = {
    Level.UNIT: "not slow and not long and not engine",
    Level.FAST: "not slow and not long and not engine",
    Level.ALL: "not long and not engine",
    Level.DEEP: "(hypothesis or long) and not engine",
}
_PROFILES = {Level.UNIT: "fast", Level.FAST: "fast", Level.ALL: "more", Level.DEEP: "deep"}
_AT_ONCE, _UNITS_AT_ONCE = 4, 2
"""How many parts run side by side: those that start processes, and units."""

_NICE = 10
"""Of units beside others: a tenth of a core that another process uses all the time. They use what the others leave."""

_niced: set[int] = set()
_others_are_over = threading.Event()


@dataclass(frozen=True)
class Part:
    """Some tests.

    Attributes:
        name: Its name.
        paths: Files and folders.
        but: What is left out of them.
        low_priority: Whether it uses a core all the time, and gives way to all parts that measure time.
    """

    name: str
    paths: Sequence[str]
    but: Sequence[str] = ()
    low_priority: bool = False

    @property
    def cache(self) -> Path:
        """Where pytest keeps what failed."""
        return ROOT / ".pytest_cache" / self.name


def _in(folder: str, names: str, prefix: str = "") -> list[str]:
    return [f"{folder}/{prefix}{name}{'.py' if prefix else ''}" for name in names.split()]


def _of_gateway(names: str) -> list[str]:
    return _in("tests/gateway", names, "test_")


CANON = _in("tests", "canon tokenize golden")
EXPLAIN = _in("tests", "explain stats spaces")
PURE = _in("tests", "admission config docs engines fleet index proxy routing telemetry")
SCENARIOS = _in("tests", "scenarios demo observability")
BROWSER = ["tests/browser"]
EVALUATION = ["tests/evaluation"]
SERVERS = _in("tests", "admin cluster discovery http_client server tracing warmup")
PROCESSES = _of_gateway("workers reload stopping command_line shared_past shared_figures draining key_leaks")
MORE_PROCESSES = _of_gateway("replicas_come_and_go discovery shared_state slow_clients own_regexes")
TIMED = _of_gateway("shared_engines routing isolation_prefill hot_prefixes overload")
IN_PROCESS = [
    path
    for path in sorted(str(file.relative_to(ROOT)) for file in ROOT.glob("tests/gateway/test_*.py"))
    if path not in [*PROCESSES, *MORE_PROCESSES, *TIMED]
]

UNITS = [
    Part("canon", CANON, low_priority=True),
    Part("explain", EXPLAIN, low_priority=True),
    Part("pure", PURE, low_priority=True),
]
PARTS = [
    # The longest first.
    Part("browser", BROWSER),
    # Commands that evaluate traffic and set-ups, with engines over sockets.
    Part("evaluation", EVALUATION),
    # In-process gateways, every third file in each.
    Part("gateway", IN_PROCESS[::3]),
    Part("gateway-2", IN_PROCESS[1::3]),
    # Servers and clients of one package: the admin API, Redis, Kubernetes; KV events and all others.
    Part("servers", SERVERS),
    Part("scenarios", SCENARIOS),
    Part(
        "rest", ["tests"], but=["tests/gateway", *SERVERS, *EVALUATION, *SCENARIOS, *BROWSER, *CANON, *EXPLAIN, *PURE]
    ),
    Part("processes-2", MORE_PROCESSES),
    Part("gateway-3", IN_PROCESS[2::3]),
    Part("processes", PROCESSES),
    *UNITS,
]
ALONE = Part("timed", TIMED)


@dataclass(frozen=True)
class Result:
    """How a part ended."""

    part: Part
    code: int
    failed: Sequence[str]


def run(part: Part, *options: str, nice: int = 0) -> Result:
    """Run a part, print its progress, and what pytest printed when it is over."""
    # What the fork server has imported already needs no rewritten assertions.
    command = [sys.executable, "-m", "pytest", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    command += ["--durations=6", "--durations-min=5"]
    command += ["-o", f"faulthandler_timeout={_TEST_SECONDS}", "-o", "faulthandler_exit_on_timeout=true"]
    command += ["-o", f"cache_dir={part.cache}", *options, *part.paths]
    command += [f"--ignore={path}" for path in part.but]
    began, lines, shown = time.monotonic(), [], 0
    with fork_server.launch(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        if nice and not _others_are_over.is_set():
            _niced.add(process.pid)
            os.setpriority(os.PRIO_PROCESS, process.pid, nice)
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            done = re.search(r"\[ *(\d+)%\]$", line)
            if done is not None and int(done[1]) >= shown + 25:
                shown = int(done[1]) // 25 * 25
                print(f"{part.name}: {done[1]}%", flush=True)
        _niced.discard(process.pid)
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    head = f"== {part.name}: {minutes} min {seconds} s =="
    print("\n" + head, *(line.rstrip("\n") for line in lines), "", sep="\n", flush=True)
    code = 0 if process.returncode == _NO_TESTS else process.returncode
    return Result(part, code, _last_failed(part) if code == _TESTS_FAILED else [])


def end_niceness() -> None:
    """Give units that still run their full share of the cores, where this user may: nothing else needs them more."""
    _others_are_over.set()
    for pid in tuple(_niced):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, 0)


def _last_failed(part: Part) -> list[str]:
    file = part.cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(file.read_text())) if file.exists() else []


def name_flaky(results: Sequence[Result], *options: str) -> None:
    """Run failed tests again, alone, and name those that pass then."""
    if sum(len(result.failed) for result in results) > MAX_RERUN:
        return
    for result in results:
        if result.failed:
            print(f"Once more, alone: {' '.join(result.failed)}", flush=True)
            again = run(result.part, "--last-failed", "--last-failed-no-failures=none", *options)
            if flaky := sorted(set(result.failed) - set(again.failed)):
                print("Flaky, and failures all the same:", *flaky, sep="\n  ", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts of a level, or some of them."""
    known = {part.name: part for part in [*PARTS, ALONE]}
    parser = argparse.ArgumentParser(prog="python -m tests.parts")
    parser.add_argument("level", type=Level, choices=list(Level))
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(known)}")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.parts if name not in known]:
        parser.error(f"there is no part {', '.join(unknown)}")
    parts = [known[name] for name in chosen.parts] or (UNITS if chosen.level is Level.UNIT else list(known.values()))
    options = ("-m", _SELECTED[chosen.level], f"--hypothesis-profile={_PROFILES[chosen.level]}")
    first = [part for part in parts if not part.low_priority and part is not ALONE]
    units = [part for part in parts if part.low_priority]
    fork_server.start(*fork_server.FOR_TESTS)
    with ThreadPoolExecutor(_AT_ONCE) as queue, ThreadPoolExecutor(_UNITS_AT_ONCE) as units_queue:
        running = [queue.submit(run, part, "--cache-clear", *options) for part in first]
        beside = [
            units_queue.submit(run, part, "--cache-clear", *options, nice=_NICE if first else 0) for part in units
        ]
        wait(running)
        if ALONE in parts:
            running.append(queue.submit(run, ALONE, "--cache-clear", *options))
            wait(running)
        end_niceness()
        results = [each.result() for each in [*running, *beside]]
    name_flaky(results, *options)
    bad = [result.part.name for result in results if result.code]
    print(f"Failed: {', '.join(bad)}" if bad else "All parts passed.", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
