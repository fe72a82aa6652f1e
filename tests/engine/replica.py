"""Real vLLM processes on the loopback: replicas that generate, and a render server that only tokenizes.

The flags are what a user of the gateway would set; what is special is only that all of it fits a small machine: one
thread, float32, four sequences at a time, and a cache of 8,192 tokens, so small that it has to evict.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import httpx

from benchmarks.free_ports import free_port

MODEL = "smollm2"
BLOCK_SIZE = 32
SLOTS = 4
BLOCKS = 256
START_SECONDS = 420.0

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
HOME = Path(os.environ.get("PREFIX_GATEWAY_ENGINE_HOME") or CACHE / "prefix-gateway" / "engine")
MODEL_FOLDER = HOME / "smollm2-135m"

ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
}

TOOL_FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
REPLICA_FLAGS = (
    *("--dtype", "float32", "--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", str(SLOTS)),
    *("--block-size", str(BLOCK_SIZE), "--num-gpu-blocks-override", str(BLOCKS), "--enable-prefix-caching"),
    *("--enable-prompt-tokens-details", "--enable-scale-out", "--sse-keep-alive-interval", "1"),
    *TOOL_FLAGS,
)
RENDER_FLAGS = ("--dtype", "float32", "--max-model-len", "4096", "--trust-request-chat-template", *TOOL_FLAGS)


class Ports(NamedTuple):
    """Where a replica listens: HTTP, its events' publisher, and their replay."""

    http: int
    events: int
    replay: int

    @classmethod
    def free(cls) -> "Ports":
        """Ports reserved for one replica."""
        return cls(free_port(), free_port(), free_port())


class Process:
    """A server process of ours, in a process group of its own, its output in a file."""

    def __init__(self, command: list[str], port: int, log: Path, environment: dict[str, str] | None = None) -> None:
        self.name = log.stem
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        self._command = command
        self._environment = environment or {}
        self._process = self._started("wb")

    def start_again(self) -> None:
        """After ``kill``: another process on the same port; its output goes on in the same file."""
        self._process = self._started("ab")

    def _started(self, mode: str) -> subprocess.Popen[bytes]:
        with self.log.open(mode) as output:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | self._environment,
                start_new_session=True,
            )

    def wait_ready(self, path: str, seconds: float) -> None:
        """Wait until ``path`` answers 200; raises RuntimeError with the end of the log if that does not happen."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with code {self._process.returncode}:\n{self._tail()}")
            try:
                if httpx.get(self.url + path, timeout=5.0).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        raise RuntimeError(f"{self.name} was not ready within {seconds:.0f} s:\n{self._tail()}")

    def kill(self) -> None:
        """SIGKILL to the whole group, as a machine that dies: nothing is closed in order."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End it in order, or by force if it does not want to."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])


def event_flags(events: int | str, replay: int | str) -> list[str]:
    """The flags that make an engine publish what its cache holds."""
    settings = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{events}",
        "replay_endpoint": f"tcp://*:{replay}",
        "topic": "kv-events",
    }
    return ["--kv-events-config", json.dumps(settings)]


def start_replica(folder: Path, name: str, chat_template: Path, ports: Ports, more: Sequence[str] = ()) -> Process:
    """A replica that generates and publishes events. Ready when ``/health`` answers, after about a minute.

    Args:
        folder: Where its log goes.
        name: Its name.
        chat_template: The file with its chat template.
        ports: Where it listens; those of one that was killed make it that one's successor.
        more: Flags that count more than the usual ones.
    """
    flags = [*REPLICA_FLAGS, "--chat-template", str(chat_template), *event_flags(ports.events, ports.replay), *more]
    return _vllm(["serve"], folder, name, flags, ports.http)


def start_renderer(folder: Path, name: str, tokenizer: Path | None = None) -> Process:
    """vLLM's server without an engine: it renders and tokenizes as the engine does, with any template a request brings.

    Args:
        folder: Where its log goes.
        name: Its name.
        tokenizer: Another tokenizer than the model's.
    """
    other = ["--tokenizer", str(tokenizer)] if tokenizer else []
    return _vllm(["launch", "render"], folder, name, [*RENDER_FLAGS, *other], free_port())


def _vllm(command: list[str], folder: Path, name: str, flags: list[str], port: int) -> Process:
    address = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL]
    program = str(HOME / "venv" / "bin" / "vllm")
    return Process([program, *command, str(MODEL_FOLDER), *address, *flags], port, folder / f"{name}.log", ENVIRONMENT)


def running_requests(replica: Process) -> int:
    """``vllm:num_requests_running`` plus ``…_waiting`` of a replica, now."""
    page = httpx.get(f"{replica.url}/metrics", timeout=30.0).text
    names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in page.splitlines() if line.startswith(names))
