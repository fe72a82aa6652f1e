"""Coding agents against the gateway: ``make test-agents``.

    python -m tests.agents.run [--record FOLDER] [CLIENT …]

Installs the clients from npm into ``$AGENTS_HOME`` (``build/agents`` by default; about 1.2 GB for all), and runs each
in an empty home, two turns in one session, against a gateway with two simulated engines. Where ``unshare`` is
permitted they run in a network namespace that has only the loopback.

A client passes if it ends with 0 and prints the engine's text, no request is sent twice or refused, and the second turn
finds the first one in the cache, as predicted. Prints a line for each request, and exits with 1 if a client fails.
"""

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.free_ports import free_port
from tests.agents.clients import CLIENTS, MODEL, VERSIONS, Client
from tests.agents.made_up import recording
from tests.agents.recorder import Exchange, Recorder
from tests.engine.gateway import PROGRAM
from tests.engine.replica import Process

ROOT = Path(__file__).parents[2]
HOME = Path(os.environ.get("AGENTS_HOME") or ROOT / "build" / "agents").resolve()

START_SECONDS = 120.0
TURN_SECONDS = 240.0
"""How long a client may take for a turn: some of them start slowly."""

_ALONE = "PREFIX_GATEWAY_AGENTS_ALONE"
"""Environment variable: set in the network namespace."""

_SET_FLAGS, _UP = 0x8914, 1
"""``SIOCSIFFLAGS`` and ``IFF_UP`` of Linux."""

_SHARE = 0.99
"""Of the first turn's prompt, what the second one has to find in the cache."""


def folder_of(package: str) -> Path:
    """Where a package is installed."""
    return HOME / package.rpartition("/")[2]


def install(packages: set[str]) -> None:
    """Install the packages that are not there in their version."""
    for package in sorted(packages):
        folder, version = folder_of(package), VERSIONS[package]
        found = folder / "node_modules" / package / "package.json"
        if found.is_file() and json.loads(found.read_text())["version"] == version:
            continue
        print(f"installing {package} {version} into {folder}", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}')
        command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", f"{package}@{version}"]
        subprocess.run(command, cwd=folder, check=True)


def go_alone() -> None:
    """Go on in a network namespace of one's own, where that is permitted."""
    if os.environ.get(_ALONE):
        with socket.socket() as any_socket:
            fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))
        return
    command = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--net", "--"]
    if shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
        os.environ[_ALONE] = "1"
        os.execvp(command[0], [*command, sys.executable, "-m", "tests.agents.run", *sys.argv[1:]])
    print("no network namespace: the clients run with their telemetry switched off", flush=True)


class Stage:
    """Two simulated engines, a gateway, and a recorder in front of it.

    Attributes:
        recorder: The recorder, which clients take for the gateway.
    """

    def __init__(self, folder: Path) -> None:
        ports = [free_port() for _ in range(4)]
        self._log = folder / "gateway.log"
        flags = ["--model", MODEL, "--max-model-len", "131072", "--blocks", "40000", "--prefill-rate", "200000"]
        self._processes = [
            Process([PROGRAM, "engine", "--port", str(port), *flags, "--decode-ms", "1"], port, folder / f"{port}.log")
            for port in ports[:2]
        ]
        replicas = [process.url for process in self._processes]
        settings = {
            "server": {"port": ports[2], "admin_port": ports[3], "drain_seconds": 0},
            "log": {"format": "json"},
            "models": [{"id": MODEL, "replicas": replicas}],
        }
        config = folder / "gateway.yaml"
        config.write_text(json.dumps(settings))  # JSON is YAML
        gateway = Process([PROGRAM, "serve", "--config", str(config)], ports[2], self._log)
        self._processes.insert(0, gateway)
        gateway.wait_ready("/readyz", START_SECONDS)
        self.recorder = Recorder(gateway.port)

    def settled(self, requests: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """The gateway's log lines of these answered requests, by request id."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
            found = {line["request_id"]: line for line in lines if line["event"] == "request_settled"}
            if found.keys() >= set(requests) or time.monotonic() > deadline:
                return found
            time.sleep(0.1)

    def close(self) -> None:
        """End all of it."""
        self.recorder.shutdown()
        for process in self._processes:
            process.stop()


def run_turns(client: Client, url: str, home: Path) -> Iterator[subprocess.CompletedProcess[str]]:
    """Run a client's two turns in an empty home."""
    project = home / "project"
    project.mkdir()
    (project / "hello.py").write_text('print("hello")\n')
    author = ("-c", "user.name=a", "-c", "user.email=a@example.invalid")
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=project, check=True)

    def filled(text: str) -> str:
        return text.replace("$URL", url).replace("$HOME", str(home))

    for name, text in client.files.items():
        file = home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(filled(text))
    plain = {"LANG": "C.UTF-8", "TERM": "dumb", "CI": "true", "NO_COLOR": "1", "DO_NOT_TRACK": "1"}
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "TMPDIR": tempfile.gettempdir(), **plain}
    environment |= {name: filled(text) for name, text in client.environment.items()}
    program = str(folder_of(client.package) / "node_modules" / ".bin" / client.program)
    for arguments in (client.first, client.second):
        command = ["timeout", str(TURN_SECONDS), program, *map(filled, arguments)]
        yield subprocess.run(
            command,
            cwd=project,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )


@dataclass
class Played:
    """What a client did.

    Attributes:
        turns: The requests of each turn that were sent to an API.
        main: Those whose answers it printed.
        problems: What was wrong.
    """

    turns: list[list[Exchange]] = field(default_factory=list)
    main: list[Exchange] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def play(client: Client, recorder: Recorder) -> Played:
    """Run a client, and look at what it prints and sends."""
    played = Played()
    with tempfile.TemporaryDirectory(prefix="agent-") as home:
        for number, ended in enumerate(run_turns(client, recorder.url, Path(home)), 1):
            # Others than POST ask what the gateway has: Codex tries a WebSocket first.
            turn = [each for each in recorder.taken() if each.method == "POST"]
            played.turns.append(turn)
            if ended.returncode:
                played.problems.append(f"turn {number} ends with {ended.returncode}: {ended.stderr.strip()[-500:]}")
            printed = " ".join(ended.stdout.split())
            found = [each for each in turn if printed and " ".join(each.text.split()) == printed]
            if not found:
                played.problems.append(f"turn {number} prints another text than an engine's: {printed[-500:]!r}")
            played.main += found[:1]
    sent = [each for turn in played.turns for each in turn]
    refused = [each for each in sent if each.status != 200]
    played.problems += [f"{each.path} is answered {each.status}: {each.answer[:300]!r}" for each in refused]
    counted = Counter((each.path, each.body) for each in sent)
    played.problems += [f"{path} gets a request {times} times" for (path, _), times in counted.items() if times > 1]
    return played


def compare(name: str, played: Played, stage: Stage) -> None:
    """Print the tokens of each request, and look for the first turn in what the second one found in the cache."""
    settled = stage.settled([each.request_id for turn in played.turns for each in turn])
    of_main = []
    for number, turn in enumerate(played.turns, 1):
        for each in turn:
            line = settled.get(each.request_id, {})
            prompt, predicted, cached = (line.get(f"{key}_tokens") for key in ("prompt", "predicted", "cached"))
            is_main = any(each is other for other in played.main)
            of_main += [(prompt or 0, predicted or 0)] if is_main else []
            kind = "main" if is_main else ""
            print(f"{name:<14} {number:>4} {each.path:<26} {kind:<5} {prompt!s:>10} {predicted!s:>10} {cached!s:>10}")
            if not line:
                played.problems.append(f"request {each.request_id} is not in the gateway's log")
            elif predicted != cached and line["ending"] == "complete":
                played.problems.append(f"{predicted} tokens are predicted, {cached} confirmed")
    if len(of_main) > 1 and of_main[1][1] < _SHARE * of_main[0][0]:
        played.problems.append("the second turn does not find the first one in the cache")


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Coding agents against the gateway.")
    parser.add_argument("client", nargs="*", help=f"{', '.join(CLIENTS)}; all by default")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="write what they send, without what is personal")
    options = parser.parse_args()
    if unknown := set(options.client) - CLIENTS.keys():
        parser.error(f"no such client: {', '.join(sorted(unknown))}; there are {', '.join(CLIENTS)}")
    chosen = {name: CLIENTS[name] for name in options.client or CLIENTS}
    if not os.environ.get(_ALONE):
        install({client.package for client in chosen.values()})
    go_alone()
    failed = False
    print(f"{'client':<14} turn {'path':<26} {'':<5} {'prompt':>10} {'predicted':>10} {'confirmed':>10}")
    for name, client in chosen.items():
        with tempfile.TemporaryDirectory(prefix="stage-") as folder, contextlib.closing(Stage(Path(folder))) as stage:
            played = play(client, stage.recorder)
            compare(name, played, stage)
        for problem in played.problems:
            print(f"{name:<14} FAILED: {problem}")
        failed = failed or bool(played.problems)
        sys.stdout.flush()
        if options.record and not played.problems:
            found = recording(f"{client.package} {VERSIONS[client.package]}", played.turns, played.main)
            options.record.mkdir(parents=True, exist_ok=True)
            file = options.record / f"{name}.json"
            file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
