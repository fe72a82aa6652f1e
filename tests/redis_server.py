"""A real Redis on a free port, in a folder of its own."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from pathlib import Path

import redis
from external import program
from patience import HANG_SECONDS
from pydantic import SecretStr

from gateway.cluster.redis_context import name_of
from gateway.cluster.seal import Seal

_BUS = 10_000
"""What a cluster's servers add to their port for what they say to each other."""
_PORTS = 10_240, 10_240 + _BUS
_given: set[int] = set()
"""A server is started some time after it has got its port, and nothing else may have it meanwhile."""

PATIENT = 20.0
"""A deadline for tests that are not about it: this machine may be busy."""


SECRET = SecretStr("what all gateways have in common")
SEAL = Seal(SECRET)


def redis_name(key: bytes) -> str:
    """Where a block stands in Redis."""
    return name_of(SEAL.name(key))


def read(key: bytes, value: bytes | None) -> str | None:
    """A value of Redis, as a gateway reads it."""
    return None if value is None else SEAL.opened(SEAL.name(key), value)


class RedisServer:
    """Started with some options besides those that keep it to itself.

    With ``config`` it is a sentinel; with ``cluster``, its port and the one that its bus takes beside it are free; with
    ``tls``, a folder with ``cert.pem`` and ``key.pem``, it takes encrypted connections alone.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        config: Path | None = None,
        cluster: bool = False,
        tls: Path | None = None,
    ) -> None:
        self._program = program("redis-server")
        self._folder = folder
        self._options = options
        self._config = config
        self._tls = tls
        self.port = _free_port(with_bus=cluster)
        self.url = f"redis://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        own = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        if self._tls is not None:
            cert, key = str(self._tls / "cert.pem"), str(self._tls / "key.pem")
            own[1:2] = ["0", "--tls-port", str(self.port), "--tls-cert-file", cert, "--tls-key-file", key]
            own += ["--tls-ca-cert-file", cert, "--tls-auth-clients", "no", "--tls-replication", "yes"]
        if self._config is None:
            own += ["--save", ""]
        else:
            own = [str(self._config), "--sentinel", *own]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, *own, *self._options], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        end = time.monotonic() + HANG_SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "redis.log").read_text()
            assert time.monotonic() < end, (self._folder / "redis.log").read_text()
            time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(HANG_SECONDS)
            self._process = None

    def info(self, section: str) -> dict[str, str]:
        with self.client() as client:
            return client.info(section)

    def hang(self) -> None:
        """It stays connected and says nothing more."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal(signal.SIGCONT)

    def client(self) -> "redis.Redis":
        tls = {"ssl": True, "ssl_ca_certs": str(self._tls / "cert.pem")} if self._tls is not None else {}
        return redis.Redis(
            host="127.0.0.1", port=self.port, password=self._password, socket_timeout=HANG_SECONDS, **tls
        )

    @property
    def _password(self) -> str | None:
        options = list(self._options)
        return options[options.index("--requirepass") + 1] if "--requirepass" in options else None

    def _answers(self) -> bool:
        with self.client() as client:
            try:
                return self._process is not None and client.info("server")["process_id"] == self._process.pid
            except redis.RedisError:
                return False

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


def _free_port(*, with_bus: bool) -> int:
    """One that is unused, and not given out when any is asked for: neither a connection nor another test's server."""
    while True:
        port = random.SystemRandom().randrange(*_PORTS)
        if port in _given:
            continue
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for wanted in (port, port + _BUS) if with_bus else (port,):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", wanted))
            _given.add(port)
            return port
