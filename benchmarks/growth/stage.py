"""A gateway with mock engines, and what its requests cost. Built on ``benchmarks.overhead``."""

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.free_ports import free_port
from benchmarks.overhead.processes import (
    QUIET,
    cpu_seconds,
    engine_command,
    gateway_config,
    idle_cpu_seconds,
    memory_mib,
    pinned,
    run_load,
    terminate,
    tree,
    wait_until_serving,
)

FIRST_BODY = (
    b'{"model":"m","mastop_token_ids":8,"messages":[{"role":"user","content":"Hello"}],"stop_token_ids":[20,0]}'
)

_EXPLAINS = b"gateway.explain.worker.process"


@dataclass(frozen=True)
class Cost:
    """What requests cost.

    Attributes:
        requests: How many were answered.
        gateway_ms: CPU time per request of all processes but the one that explains.
        explain_ms: CPU time per request of the process that explains.
        rate: Requests per second.
    """

    requests: int
    gateway_ms: float
    explain_ms: float
    rate: float

    @property
    def all_ms(self) -> float:
        return self.gateway_ms + self.explain_ms


class Stage:
    """A gateway and its engines. A context manager.

    Args:
        replicas: How many; all of them are served by one process.
        pause: Seconds between two chunks of a stream.
        chunks: Of a stream.
        blocks: Of each replica's cache.
        command: Starts the gateway, without the configuration; by default ``python -m gateway serve``.
        core: That the gateway runs on; None: all of them.
        sections: Further sections of the configuration.
    """

    def __init__(
        self,
        replicas: int = 2,
        *,
        pause: float = 0.01,
        chunks: int = 100,
        blocks: int = 8193,
        command: tuple[str, ...] = ("-m", "gateway", "serve"),
        core: int | None = 0,
        **sections: Any,
    ) -> None:
        self._replicas = replicas
        self._engine_options = ["--pause", str(pause), "--blocks", str(blocks)]
        self._chunks = chunks
        self._command = command
        self._core = core
        # What is measured is the work, also where a gateway at its limit would leave some out.
        self._sections = {"explain": {"max_cpu_share": None, "observed_share": 1}} | sections

    def __enter__(self) -> "Stage":
        self._folder = tempfile.TemporaryDirectory(prefix="growth-")
        self.folder = Path(self._folder.name)
        self.port, *ports = [free_port() for _ in range(self._replicas + 1)]
        self._processes = [pinned(1, engine_command(ports, self._chunks, *self._engine_options), **QUIET)]
        config = gateway_config(
            self.folder, self.port, [f"http://127.0.0.1:{port}" for port in ports], **self._sections
        )
        command = [sys.executable, *self._command, "--config", str(config)]
        try:
            time.sleep(1)
            self._gateway = pinned(self._core, command, **QUIET)
            self._processes.append(self._gateway)
            wait_until_serving("the gateway", self.port, self._gateway, FIRST_BODY)
            idle_cpu_seconds(*self.explain_pids)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        terminate(self._processes)
        self._folder.cleanup()

    @property
    def gateway_pids(self) -> list[int]:
        """The gateway's processes but the one that explains."""
        return [pid for pid in tree(self._gateway.pid) if not _explains(pid)]

    @property
    def explain_pids(self) -> list[int]:
        """The process that explains."""
        return [pid for pid in tree(self._gateway.pid) if _explains(pid)]

    def memory_mib(self) -> tuple[float, float]:
        """Of the gateway's processes, and of the one that explains."""
        return memory_mib(*self.gateway_pids), memory_mib(*self.explain_pids)

    def idle_share(self, seconds: float) -> float:
        """Seconds of CPU time that all processes use per second without requests."""
        pids = tree(self._gateway.pid)
        before = cpu_seconds(*pids)
        time.sleep(seconds)
        return (cpu_seconds(*pids) - before) / seconds

    def write_bodies(self, name: str, bodies: list[str]) -> Path:
        """A file for ``cost``."""
        path = self.folder / f"{name}.jsonl"
        path.write_text("\n".join(bodies))
        return path

    def cost(
        self, bodies: Path, seconds: float, *, connections: int = 16, once: bool = False, idle_share: float = 0.0
    ) -> Cost:
        """Send requests, and measure them.

        Args:
            bodies: The file.
            seconds: For how long they are sent.
            connections: Closed loops.
            once: Whether each body is sent only once.
            idle_share: CPU time that is used without requests as well, and is not counted.
        """
        gateway, explain = self.gateway_pids, self.explain_pids
        gateway_before, explain_before = cpu_seconds(*gateway), cpu_seconds(*explain)
        result = run_load(self.port, bodies, connections, seconds, once=once)
        gateway_seconds = cpu_seconds(*gateway) - gateway_before - idle_share * result["seconds"]
        explain_seconds = idle_cpu_seconds(*explain) - explain_before
        if result["errors"] or not result["requests"]:
            raise SystemExit(f"{result['errors']} requests failed, {result['requests']} were answered")
        count = result["requests"]
        return Cost(
            count,
            1e3 * gateway_seconds / count,
            1e3 * explain_seconds / count,
            count / result["seconds"],
        )


def _explains(pid: int) -> bool:
    return _EXPLAINS in Path(f"/proc/{pid}/cmdline").read_bytes()
