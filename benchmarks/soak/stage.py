"""The processes: a gateway, simulated engines with events, a Redis if there is one; and the gateway's configuration.

Some bounds of the gateway are lower than their defaults, which would take hours or days to fill. What is bounded by a
number in the code (the memory of masked lines, of tokens and block hashes in the explaining process, of personal data)
is full within the first quarter of half an hour: the load sees to that.
"""

import os
import random
import shutil
import signal
import socket
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from benchmarks.chaos.machines import Gateway, Machine
from gateway.core.api_keys import hash_key, new_key

MODEL = "demo"
TENANTS = 20
REPLICAS = 3
LIMITED = "limited"
"""The tenant whose requests are refused for the most part."""

_ADDRESS = "127.0.0.1"
_PORTS = range(20_000, 32_000)
"""Below those that Linux gives to outgoing connections: one that is free while an engine is dead stays free."""
_SECRET = "soak" * 8

_LOWER_BOUNDS: dict[str, Any] = {
    # An hour's requests and prompts by default, so that nothing would ever go during the run; a million blocks would
    # take as long.
    "explain": {
        "journal_requests": 500,
        "journal_ttl_seconds": 300,
        "reference_mib": 8,
        "reference_ttl_seconds": 300,
        "seen_blocks": 20_000,
        "max_waiting_mib": 8,
    },
    # A day's context blocks by default.
    "canon": {
        "memory_mib": 2,
        "memory_ttl_seconds": 300,
        "rules": dict.fromkeys(
            ("unicode", "whitespace", "role-order", "tool-order", "json-keys", "dynamic-suffix"), "apply"
        ),
    },
    # Spaces end after an hour without a request and after a day by default. Fewer than there are tenants and scopes,
    # so that some are evicted.
    "spaces": {"idle_ttl_seconds": 60, "max_age_seconds": 240, "max_spaces": 30},
    # A file of the audit log is renamed at 100 MiB by default.
    "audit": {"max_bytes": 1024 * 1024, "keep": 2},
}


class RunningGateway(Gateway):
    """A gateway whose process can be looked at."""

    @property
    def pid(self) -> int:
        """Number of its process."""
        assert self._process is not None
        return self._process.pid

    def reload(self) -> None:
        """Have it read its configuration again."""
        os.kill(self.pid, signal.SIGHUP)


class Stage:
    """All of it. Leaving the context ends all.

    Args:
        folder: For configuration and logs.

    Attributes:
        keys: API key by tenant.
        gateway: The one that is looked at.
        peer: Another one with the same shared state; not started by itself.
        replicas: The engines.
        redis: None if no Redis is installed.
    """

    def __init__(self, folder: Path) -> None:
        self.keys = {name: new_key() for name in (*(f"tenant-{number}" for number in range(TENANTS)), LIMITED)}
        self.redis = self._redis(folder)
        self.replicas = [_replica(number, folder) for number in range(REPLICAS)]
        self._folder = folder
        self._names = [replica.name for replica in self.replicas]
        self._renamed = 0
        self.list_replicas()
        self.gateway = self.new_gateway("gateway")
        self.peer = self.new_gateway("peer")

    async def __aenter__(self) -> "Stage":
        if self.redis is not None:
            await self.redis.start()
        for replica in self.replicas:
            await replica.start()
        await self.gateway.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for machine in (self.peer, self.gateway, *self.replicas, self.redis):
            if machine is not None:
                await machine.finish()

    def new_gateway(self, name: str) -> RunningGateway:
        """One more in front of the engines; not started."""
        port, admin = _free_port(), _free_port()
        gateway = RunningGateway(
            name,
            [sys.executable, "-m", "gateway", "serve", "--config", str(self._config(name))],
            "/readyz",
            port,
            self._folder / f"{name}.log",
            admin=f"http://{_ADDRESS}:{admin}",
        )
        self.configure(gateway, 0)
        return gateway

    def configure(self, gateway: RunningGateway, version: int, *, spoiled: bool = False) -> None:
        """Write a gateway's configuration.

        Args:
            gateway: Whose.
            version: Another one differs a little: in a tenant's limit, every third in the label of the template.
            spoiled: Whether it has a mistake.
        """
        settings = self._settings(gateway, version)
        if spoiled:
            settings["relay"]["retries"] = "many"
        config = self._config(gateway.name)
        written = config.with_suffix(".new")
        written.write_text(yaml.safe_dump(settings), encoding="utf-8")
        written.replace(config)

    def list_replicas(self) -> None:
        """Write down which engines there are, for discovery."""
        listed = self._folder / "replicas.yaml"
        written = listed.with_suffix(".new")
        rows = [{"id": name, "url": replica.url} for name, replica in zip(self._names, self.replicas, strict=True)]
        written.write_text(yaml.safe_dump(rows), encoding="utf-8")
        written.replace(listed)

    def rename(self, number: int) -> None:
        """An engine comes back under another name, as a pod does that was replaced."""
        self._renamed += 1
        self._names[number] = f"replica-{number}-{self._renamed}"
        self.list_replicas()

    def name_of(self, number: int) -> str:
        """The name by which the gateways know an engine at present."""
        return self._names[number]

    def _settings(self, gateway: RunningGateway, version: int) -> dict[str, Any]:
        audit = {**_LOWER_BOUNDS["audit"], "file": str(self._folder / f"{gateway.name}.audit.jsonl")}
        return {
            "server": {
                "port": gateway.port,
                "admin_port": int(gateway.admin.rpartition(":")[2]),
                "drain_seconds": 0,
                "shutdown_grace_seconds": 5,
            },
            "models": [
                {
                    "id": MODEL,
                    "tokenizer": "builtin:demo",
                    "template_version": f"v{version // 3}",
                    "discover": {"file": {"path": str(self._folder / "replicas.yaml")}},
                }
            ],
            "tenants": [self._tenant(name, version) for name in self.keys],
            "state": f"redis://{_ADDRESS}:{self.redis.port}/0" if self.redis is not None else "memory",
            "queue": {"busy_seconds": 0.2},
            "relay": {"resume": True, "health_interval_seconds": 1, "health_timeout_seconds": 5, "retries": 4},
            "log": {"level": "warning", "requests": False},
            **_LOWER_BOUNDS,
            "spaces": {**_LOWER_BOUNDS["spaces"], "isolation": "tenant", "secret": _SECRET},
            "audit": audit,
        }

    def _tenant(self, name: str, version: int) -> dict[str, Any]:
        key = {"hash": hash_key(self.keys[name]), "scopes": ["*"]}
        limits: dict[str, Any] = {"concurrent": 200 + version % 2, "prompt_tokens_per_minute": 10_000_000}
        if name == LIMITED:
            limits = {"requests_per_second": 1}
        return {"id": name, "keys": [key], **limits}

    def _config(self, name: str) -> Path:
        return self._folder / f"{name}.yaml"

    @staticmethod
    def _redis(folder: Path) -> Machine | None:
        server = shutil.which("redis-server")
        if server is None:
            return None
        port = _free_port()
        return Machine(
            "redis", [server, "--port", str(port), "--save", "", "--dir", str(folder)], "", port, folder / "redis.log"
        )


def _replica(number: int, folder: Path) -> Machine:
    port, events, replay = _free_port(), _free_port(), _free_port()
    command = [sys.executable, "-m", "gateway", "engine", "--port", str(port), "--slots", "64", "--blocks", "4096"]
    command += ["--events", f"tcp://*:{events}", "--replay", f"tcp://*:{replay}"]
    command += ["--prefill-rate", "40000", "--decode-ms", "5"]
    name = f"replica-{number}"
    return Machine(name, command, "/health", port, folder / f"{name}.log")


def _free_port() -> int:
    """A port that nothing listens on."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as sock:
            try:
                sock.bind((_ADDRESS, port))
            except OSError:
                continue
        return port
