import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import HANG_SECONDS


class Demo:
    """The command as a user runs it, with its output as it comes."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "demo", *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                # A demo that is killed leaves its folder of configuration files.
                env={**os.environ, "TMPDIR": str(folder)},
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait_for(self, pattern: str) -> re.Match[str]:
        end = time.monotonic() + HANG_SECONDS
        while (found := re.search(pattern, self.out)) is None:
            assert self.process.poll() is None, f"ended before it said {pattern!r}: {self.out}{self.err}"
            assert time.monotonic() < end, f"never said {pattern!r}: {self.out}{self.err}"
            time.sleep(0.05)
        return found

    def end(self) -> int:
        return self.process.wait(HANG_SECONDS)

    def children(self) -> list[int]:
        return [
            int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if _parent(stat) == self.process.pid
        ]


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return -1


def alive(pids: list[int]) -> list[int]:
    """Those that still run. A zombie that waits for its reaper does not."""
    running = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                running.append(pid)
    return running


@pytest.fixture
def left_behind() -> Callable[[list[int]], list[int]]:
    """Which of these processes outlive their parent by more than a moment."""

    def wait(pids: list[int]) -> list[int]:
        end = time.monotonic() + 20
        while alive(pids) and time.monotonic() < end:
            time.sleep(0.05)
        return alive(pids)

    return wait


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts the demo on free ports, unless the options say otherwise."""
    started: list[Demo] = []

    def start(*options: str) -> Demo:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        free = [word for flag in ("--port", "--admin-port") if flag not in options for word in (flag, "0")]
        started.append(Demo(folder, *free, *options))
        return started[-1]

    yield start
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, 9)
        one.process.wait()
