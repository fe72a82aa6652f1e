"""A real Redis on a free port, in a folder of its own."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import redis
from external import program
from pydantic import SecretStr

from gateway.state.seal import Seal
from gateway.state.writes import name_of

_START_SECONDS = 30


SECRET = SecretStr("what all gateways have in common")
SEAL = Seal(SECRET)


def redis_name(key: bytes) -> str:
    """Where a block stands in Redis."""
    return name_of(SEAL.name(key))


def read(key: bytes, value: bytes | None) -> str | None:
    """A value of Redis, as a gateway reads it."""
    return None if value is None else SEAL.opened(SEAL.name(key), value)


class RedisServer:
    """Started with some options besides those that keep it to itself."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._program = program("redis-server")
        self._folder = folder
        self._options = options
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        own = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", ""]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, *own, *self._options], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        end = time.monotonic() + _START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "redis.log").read_text()
            assert time.monotonic() < end, (self._folder / "redis.log").read_text()
            time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def hang(self) -> None:
        """It stays connected and says nothing more."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal(signal.SIGCONT)

    def client(self) -> "redis.Redis":
        return redis.Redis(port=self.port, password=self._password, socket_timeout=10)

    @property
    def _password(self) -> str | None:
        options = list(self._options)
        return options[options.index("--requirepass") + 1] if "--requirepass" in options else None

    def _answers(self) -> bool:
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)
