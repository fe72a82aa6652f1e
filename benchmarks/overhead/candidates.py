"""The candidates of a benchmark: the floor, the gateway and its peers, each pinned to the first core."""

import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.free_ports import free_port
from benchmarks.overhead.processes import QUIET, gateway_config, pinned, wait_until_serving

Commands = list[tuple[str, Callable[[int], list[str]]]]
"""Names, and for each the command that serves at a port."""


@dataclass
class Candidate:
    name: str
    port: int
    process: subprocess.Popen
    began: float = field(default_factory=time.monotonic)
    figures: dict[str, list[float]] = field(default_factory=dict)
    first_response: float = 0.0


def start(commands: Commands, engines: list[str], folder: Path, processes: list[subprocess.Popen]) -> list[Candidate]:
    """Start candidates one after the other, and wait until each serves; ``processes`` gets each to be ended."""
    body = (folder / "chat.jsonl").read_bytes().split(b"\n")[0]
    candidates = []
    for name, command in commands:
        port = free_port()
        words = [word.format(port=port, a=engines[0], b=engines[1]) for word in command(port)]
        candidate = Candidate(name, port, pinned(0, words, **QUIET))
        processes.append(candidate.process)
        candidates.append(candidate)
        wait_until_serving(name, port, candidate.process, body)
        candidate.first_response = time.monotonic() - candidate.began
    return candidates


def commands(peers: list[str], folder: Path, engines: list[str], *, off: bool = False) -> Commands:
    """Names of the candidates, and for each the command that serves at a port."""
    python = [sys.executable, "-m"]

    def gateway(port: int, **sections: Any) -> list[str]:
        # Responses are kept so briefly that the store never gets full.
        config = gateway_config(folder, port, engines, responses={"ttl_seconds": 1}, **sections)
        return [*python, "gateway", "serve", "--config", str(config)]

    found: Commands = [
        ("floor", lambda port: [*python, "benchmarks.overhead.floor", str(port), *engines]),
        ("gateway", gateway),
    ]
    if off:
        found.append(("off", lambda port: gateway(port, explain={"enabled": False})))
        found.append(("unlimited", lambda port: gateway(port, explain={"max_cpu_share": None})))
    for peer in peers:
        name, _, text = peer.partition("=")
        found.append((name, lambda _, text=text: shlex.split(text)))
    return found
