"""What the gateway's processes take, as Linux reports it; and whether that grows."""

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_MIB = 1024 * 1024
_MOST_SHARE, _MOST_BYTES = 0.03, 8 * _MIB
"""Memory may grow by so much: by the larger of the two."""
_MOST_FILES = 5
_MOST_THREADS = 5

_EXPLAINING = "gateway.explain.worker"
"""Stands in the command line of the process that explains."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one moment.

    Attributes:
        pid: Its number.
        rss: Bytes of memory, with what it shares with others.
        pss: The same, with its part of what is shared; None where that cannot be read.
        files: Open file descriptors.
        threads: Its threads.
    """

    pid: int
    rss: int
    pss: int | None
    files: int
    threads: int


Sample = Mapping[str, Process]
"""The gateway's process and its children, by what they are."""


def sample(pid: int) -> Sample:
    """How a gateway and its children stand.

    Raises:
        OSError: it is not there any more.
    """
    found = {"gateway": _process(pid)}
    for child in _children(pid):
        try:
            name = "explaining" if _EXPLAINING in _command(child) else _command(child)
            found[name] = _process(child)
        except (OSError, KeyError):
            continue  # it has just ended; one that is not waited for yet has no memory any more
    return found


def _process(pid: int) -> Process:
    status = dict(_lines(Path(f"/proc/{pid}/status")))
    try:
        pss = _kib(dict(_lines(Path(f"/proc/{pid}/smaps_rollup")))["Pss"])
    except (OSError, KeyError):
        pss = None
    return Process(pid, _kib(status["VmRSS"]), pss, len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"]))


def _children(pid: int) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if int(parent) == pid:
                yield int(entry.name)


def _command(pid: int) -> str:
    return " ".join(Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")).strip()


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        yield name, value.strip()


def _kib(value: str) -> int:
    return int(value.split(maxsplit=1)[0]) * 1024


def growth(samples: Sequence[Sample]) -> tuple[list[str], list[str]]:
    """The medians of the second and of the last quarter of a run, beside each other.

    Args:
        samples: Of the whole run, as far apart from each other.

    Returns:
        A table's lines, and what has grown that must not.
    """
    quarter = len(samples) // 4
    if not quarter:
        return [], ["too short: there are fewer than four samples"]
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    lines = [f"{'':32}{'second quarter':>16}{'last quarter':>16}{'most':>12}"]
    problems = []
    for name in early[0]:
        if {each[name].pid for each in samples if name in each} != {early[0][name].pid}:
            problems.append(f"{name}: it was another process later on")
        for figure, allowed in _FIGURES.items():
            values = [[_value(each, name, figure) for each in part] for part in (early, late, samples)]
            known = [[value for value in part if value is not None] for part in values]
            if not all(known):
                continue
            before, after = statistics.median(known[0]), statistics.median(known[1])
            show = _mib if figure in ("rss", "pss") else _count
            lines.append(f"{name + ' ' + figure:32}{show(before):>16}{show(after):>16}{show(max(known[2])):>12}")
            if allowed is not None and after - before > allowed(before):
                problems.append(f"{name}: {figure} grew from {show(before)} to {show(after)}")
    return lines, problems


_FIGURES: Mapping[str, Callable[[float], float] | None] = {
    "rss": lambda before: max(_MOST_SHARE * before, _MOST_BYTES),
    "pss": None,
    "files": lambda _: _MOST_FILES,
    "threads": lambda _: _MOST_THREADS,
}
"""What is compared, and by how much each may grow."""


def _value(each: Sample, name: str, figure: str) -> float | None:
    return getattr(each[name], figure) if name in each else None


def _mib(value: float) -> str:
    return f"{value / _MIB:.1f} MiB"


def _count(value: float) -> str:
    return f"{value:g}"


def shown(each: Sample) -> str:
    """One sample in short."""
    return "; ".join(
        f"{name} {_mib(process.rss)}, {process.files} files, {process.threads} threads"
        for name, process in each.items()
    )
