"""Gateways, simulated engines and the demo as processes of their own: a test may kill them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from fork_server import launch
from patience import HANG_SECONDS


class Child:
    """A command of ``prefix-gateway``, with what it prints as it comes.

    Args:
        folder: Where its output and its temporary files go.
        arguments: As on the command line.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._printed = folder / "printed"
        with self._printed.open("wb") as out:
            self.process = launch(
                [sys.executable, "-m", "gateway", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(folder)},
                start_new_session=True,
            )

    @property
    def printed(self) -> str:
        return self._printed.read_text(errors="replace")

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until it prints something."""
        end = time.monotonic() + HANG_SECONDS
        while (found := re.search(pattern, self.printed)) is None:
            assert self.process.poll() is None, f"ended before it said {pattern!r}: {self.printed}"
            assert time.monotonic() < end, f"never said {pattern!r}: {self.printed}"
            time.sleep(0.05)
        return found

    def kill(self) -> None:
        """As the machine does it that loses its power: it cannot say anything any more."""
        self._send(signal.SIGKILL)

    def end(self) -> None:
        """Ask it to end; kill it if it does not."""
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(HANG_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Engine(Child):
    """One simulated engine.

    Attributes:
        port: It can be started there again.
        url: What is sent to the gateway.
    """

    def __init__(self, folder: Path, *options: str, port: int = 0) -> None:
        super().__init__(folder, "engine", "--port", str(port), "--model", "demo", *options)

    def ready(self) -> "Engine":
        self.url = self.wait_for(r"on (http://[\d.:]+)")[1]
        self.port = int(self.url.rpartition(":")[2])
        return self


class Gateway(Child):
    """One gateway.

    Attributes:
        public: URL of the public port.
        admin: URL of the admin port.
    """

    def __init__(self, folder: Path, configuration: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "gateway.yaml"
        file.write_text(yaml.safe_dump(dict(configuration)))
        super().__init__(folder, "serve", "--config", str(file))

    def ready(self) -> "Gateway":
        reported = json.loads(self.wait_for(r'(?m)^\{.*"gateway_ready".*\}$')[0])
        self.public, self.admin = reported["public"], reported["admin"]
        return self


class Demo(Child):
    """``prefix-gateway demo`` as a user runs it.

    Attributes:
        public: URL of the public port.
        admin: URL of the admin port.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "demo", "--port", "0", "--admin-port", "0")

    def ready(self) -> "Demo":
        self.public = self.wait_for(r"gateway +(http://[\d.:]+)")[1]
        self.admin = self.wait_for(r"admin +(http://[\d.:]+)/metrics")[1]
        return self

    def pause(self) -> None:
        """No more traffic, which takes most of a core: its gateways and engines stay as they are."""
        self.process.send_signal(signal.SIGSTOP)

    def __enter__(self) -> "Demo":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.end()
