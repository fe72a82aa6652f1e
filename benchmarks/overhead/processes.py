"""The processes of a benchmark: engines, gateways and load, each pinned to a core, and the CPU time they take."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TICK = os.sysconf("SC_CLK_TCK")
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def pinned(core: int | None, command: list[str], **options: Any) -> subprocess.Popen:
    """Start a command on one core; None: on any."""
    cores = sorted(os.sched_getaffinity(0))
    prefix = [] if core is None else ["taskset", "-c", str(cores[core % len(cores)])]
    return subprocess.Popen([*prefix, *command], start_new_session=True, **options)


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found, todo = [], [pid]
    while todo:
        current = todo.pop()
        found.append(current)
        for task in Path(f"/proc/{current}/task").glob("*/children"):
            todo += [int(child) for child in task.read_text().split()]
    return found


def cpu_seconds(*processes: int) -> float:
    """User and system time of processes."""
    total = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(") ", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICK


def idle_cpu_seconds(*processes: int, patience: float = 60.0) -> float:
    """CPU seconds when the processes have become idle: what was handed over is worked off."""
    deadline = time.monotonic() + patience
    before = cpu_seconds(*processes)
    while time.monotonic() < deadline:
        time.sleep(0.5)
        now = cpu_seconds(*processes)
        if now - before < 0.03:
            break
        before = now
    return cpu_seconds(*processes)


def memory_mib(*processes: int | str) -> float:
    """Resident memory of processes; pages that they share count once."""
    total = 0
    for process in processes:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def engine_command(ports: Iterable[int], chunks: int, *options: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.overhead.engine", *map(str, ports), str(chunks), *options]


def gateway_config(folder: Path, port: int, engines: list[str], **sections: Any) -> Path:
    """A configuration file with one model, and further sections as they are given."""
    path = folder / f"gateway-{port}.yaml"
    models = [{"id": "m", "tokenizer": "builtin:demo", "replicas": engines}]
    server = {"port": port, "admin_port": 0, "drain_seconds": 0}
    path.write_text(json.dumps({"server": server, "models": models, **sections}))
    return path


def wait_until_serving(name: str, port: int, process: subprocess.Popen, body: bytes) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", body, {"content-type": "application/json"}
    )
    for _ in range(1200):
        try:
            urllib.request.urlopen(request, timeout=5).read()
            return
        except (OSError, urllib.error.HTTPError):
            if process.poll() is not None:
                break
            time.sleep(0.05)
    raise SystemExit(f"{name} does not serve")


def run_load(
    port: int, bodies: Path, connections: int, seconds: float, *, once: bool = False, api: str = "chat"
) -> dict[str, Any]:
    """Send the bodies of a file over and over, or each of them once; what the load counted."""
    options = [str(port), str(bodies), str(connections), str(seconds), api, *(["once"] if once else [])]
    process = pinned(1, [sys.executable, "-m", "benchmarks.overhead.load", *options], stdout=subprocess.PIPE, text=True)
    return json.loads(process.communicate()[0])


def terminate(processes: Iterable[subprocess.Popen]) -> None:
    """End processes and those that they started."""
    processes = list(processes)
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
    for process in processes:
        process.wait(20)
