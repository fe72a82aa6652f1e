"""The processes of the benchmark: the gateway with two tenants, its engine, and a control that serves nothing else."""

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.free_ports import free_port
from benchmarks.isolation import wait_for
from gateway.config.personal_data_settings import BUILT_IN_KINDS
from gateway.core.api_keys import hash_key, new_key
from gateway.core.canonical import RuleName

_MIB = 2**20
_SECRET = "a secret that is used in this benchmark only"
_RULES = tuple(rule.value for rule in RuleName)
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STOP_SECONDS, _RESTART_SECONDS = 40.0, 3.0


class Processes:
    """The process of a command, and all that it starts."""

    def __init__(self, command: Sequence[str], errors: Path) -> None:
        with errors.open("ab") as file:
            self._process = subprocess.Popen(command, start_new_session=True, stdout=file, stderr=file)

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether the process that was started is gone."""
        return self._process.poll() is not None

    def pids(self) -> list[int]:
        """The process and its descendants."""
        found, new = [], [self.pid]
        while new:
            pid = new.pop()
            found.append(pid)
            try:
                for task in os.listdir(f"/proc/{pid}/task"):
                    new += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
            except OSError:
                continue
        return found

    def memory(self) -> float:
        """Resident memory of all of them in MiB."""
        return sum(_numbers(pid, "statm")[1] for pid in self.pids()) * _PAGE / _MIB

    def running_threads(self) -> list[int]:
        """Threads of all of them that compute, or wait for a core to do so."""
        found = []
        for pid in self.pids():
            try:
                threads = os.listdir(f"/proc/{pid}/task")
            except OSError:
                continue
            found += [int(each) for each in threads if _state(pid, each) == "R"]
        return found

    def main_cpu_seconds(self) -> float:
        """CPU time of the process that was started."""
        return sum(_numbers(self.pid, "stat")[10:12]) / _TICKS

    def end(self, patience: float = _STOP_SECONDS) -> None:
        """Terminate the group; kill it if it does not end in so many seconds."""
        for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 10.0)):
            try:
                os.killpg(self.pid, number)
                self._process.wait(seconds)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue
            return


def _numbers(pid: int, name: str) -> list[int]:
    """Numbers of a file in ``/proc``; of ``stat`` those behind the process's name and state."""
    try:
        text = Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return [0] * 40
    return [int(each) for each in (text.rpartition(")")[2].split()[1:] if name == "stat" else text.split())]


def _state(pid: int, thread: str) -> str:
    try:
        return Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


class Stage:
    """A gateway with an engine and a control. A context manager.

    Args:
        receive_seconds: The gateway's ``server.receive_seconds``.
        personal_data: The gateway's ``personal_data.mode``.

    Attributes:
        gateway: Its processes.
        port: The gateway's public port.
        admin_port: The gateway's other port.
        control_port: Of a process that serves the probes of the control and nothing else.
        keys: API key by tenant, ``attacker`` and ``normal``.
        log: File with the gateway's log.
    """

    def __init__(self, receive_seconds: float, personal_data: str) -> None:
        self.keys = {name: new_key() for name in ("attacker", "normal")}
        self._receive_seconds = receive_seconds
        self._personal_data = personal_data
        self._others: list[Processes] = []

    def __enter__(self) -> "Stage":
        self._folder = tempfile.TemporaryDirectory(prefix="hostile-")
        folder = Path(self._folder.name)
        self.log = folder / "gateway.log"
        self._config = folder / "gateway.yaml"
        self._engine_port, self.control_port = self._engine(folder), self._engine(folder)
        self.port, self.admin_port = free_port(), free_port()
        self._config.write_text(json.dumps(self._settings()))
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for processes in (*([self.gateway] if hasattr(self, "gateway") else []), *self._others):
            processes.end()
        self._folder.cleanup()

    def restart(self) -> None:
        """A new gateway on the same ports, also where the old one hangs."""
        self.gateway.end(_RESTART_SECONDS)
        self._start()

    def calls(self) -> Counter[str]:
        """Requests that the engine got so far: ``attack``, ``normal`` and ``other``."""
        connection = http.client.HTTPConnection("127.0.0.1", self._engine_port, timeout=30)
        connection.request("GET", "/calls")
        found = Counter[str](json.loads(connection.getresponse().read()))
        connection.close()
        return found

    def problems(self) -> Counter[str]:
        """Events that the gateway has logged as warnings or errors so far."""
        events: Counter[str] = Counter()
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                event = json.loads(line)
                events[str(event["event"]).partition("\n")[0][:60]] += 1
            except (ValueError, KeyError, TypeError):
                events["not a log line"] += 1
        return events

    def _engine(self, folder: Path) -> int:
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.hostile.engine", str(port)]
        self._others.append(Processes(command, folder / "engine.log"))
        wait_for(f"http://127.0.0.1:{port}/health")
        return port

    def _start(self) -> None:
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(self._config)]
        self.gateway = Processes(command, self.log)
        wait_for(f"http://127.0.0.1:{self.port}/readyz")
        time.sleep(3)  # until the explaining process has loaded its tokenizer

    def _settings(self) -> dict[str, object]:
        return {
            "server": {"port": self.port, "admin_port": self.admin_port, "receive_seconds": self._receive_seconds},
            "log": {"requests": False, "level": "warning", "format": "json"},
            "models": [{"id": "m", "tokenizer": "builtin:demo", "replicas": [f"http://127.0.0.1:{self._engine_port}"]}],
            "relay": {"chunk_timeout_seconds": 5},
            "spaces": {"isolation": "tenant", "secret": _SECRET},
            "tenants": [{"id": name, "keys": [hash_key(key)]} for name, key in self.keys.items()],
            "canon": {"rules": dict.fromkeys(_RULES, "apply")},
            "personal_data": {"mode": self._personal_data, "kinds": sorted(BUILT_IN_KINDS)},
        }
