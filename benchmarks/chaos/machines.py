"""The processes that are troubled: simulated replicas, gateways, Redis. Each keeps its port through its deaths."""

import asyncio
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path
from types import TracebackType

import httpx
import yaml

from benchmarks.free_ports import free_port

MODEL = "demo"
BLOCK_SIZE = 16
"""Tokens in a block of the engines' caches."""
_START_SECONDS = 60.0
_ADDRESS = "127.0.0.1"


class Machine:
    """One process that can be killed, stopped, and started again.

    Args:
        name: For messages, and for its log file.
        command: What to run.
        ready: Address that answers 200 once it is there; empty if connecting to its port is enough.
        port: Its port.
        log: Where what it says goes.

    Attributes:
        starts: How many times it was started.
        out: Whether it is dead or stopped at the moment.
    """

    def __init__(self, name: str, command: list[str], ready: str, port: int, log: Path) -> None:
        self.name = name
        self.port = port
        self.starts = 0
        self.out = True
        self._command = command
        self._ready = ready
        self._log = log
        self._process: Process | None = None

    async def start(self) -> None:
        """Start it, and wait until it is there."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.starts += 1
        await self._wait_until_ready()
        self.out = False

    async def kill(self) -> None:
        """SIGKILL."""
        self.out = True
        await self._end(signal.SIGKILL)

    async def finish(self) -> None:
        """SIGTERM, and SIGKILL if that does not help."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGCONT)
        try:
            async with asyncio.timeout(20):
                await self._end(signal.SIGTERM)
        except TimeoutError:
            await self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGSTOP: the sockets stay open, and nothing answers."""
        assert self._process is not None
        self.out = True
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self.out = False

    @property
    def died(self) -> bool:
        """Whether it ended though it was not killed."""
        return not self.out and self._process is not None and self._process.returncode is not None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{_ADDRESS}:{self.port}"

    async def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
        await self._process.wait()

    async def _wait_until_ready(self) -> None:
        assert self._process is not None
        async with httpx.AsyncClient(trust_env=False, timeout=2) as http:
            for _ in range(int(_START_SECONDS / 0.1)):
                if self._process.returncode is not None:
                    raise RuntimeError(f"{self.name} ended with {self._process.returncode}; see {self._log}")
                if await self._is_ready(http):
                    return
                await asyncio.sleep(0.1)
        raise RuntimeError(f"{self.name} was not ready within {_START_SECONDS:.0f} s; see {self._log}")

    async def _is_ready(self, http: httpx.AsyncClient) -> bool:
        try:
            if self._ready:
                return (await http.get(f"{self.url}{self._ready}")).status_code == 200
            _, writer = await asyncio.open_connection(_ADDRESS, self.port)
            writer.close()
        except (httpx.HTTPError, OSError):
            return False
        return True


class Gateway(Machine):
    """One gateway.

    Attributes:
        admin: URL of its admin port.
    """

    def __init__(self, name: str, command: list[str], ready: str, port: int, log: Path, *, admin: str) -> None:
        super().__init__(name, command, ready, port, log)
        self.admin = admin


class Machines:
    """All of them. Leaving the context ends all.

    Args:
        folder: For configuration and logs.
        replicas: How many simulated engines.
        gateways: How many gateways.
        redis_server: The Redis to run.
        blocks: Blocks of each engine's cache.
    """

    def __init__(self, folder: Path, *, replicas: int, gateways: int, redis_server: str, blocks: int) -> None:
        self.folder = folder
        self.redis = self._redis(redis_server)
        self.replicas = [self._replica(number, blocks) for number in range(replicas)]
        self.gateways = [self.gateway(f"gateway-{number}") for number in range(gateways)]
        self.all: list[Machine] = [self.redis, *self.replicas, *self.gateways]

    async def __aenter__(self) -> "Machines":
        await self.redis.start()
        await asyncio.gather(*(replica.start() for replica in self.replicas))
        for gateway in self.gateways:
            await gateway.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for machine in reversed(self.all):
            await machine.finish()

    def gateway(self, name: str) -> "Gateway":
        """One more gateway in front of the replicas; not started."""
        port, admin = free_port(), free_port()
        config = self.folder / f"{name}.yaml"
        config.write_text(yaml.safe_dump(self._settings(port, admin)), encoding="utf-8")
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(config)]
        log = self.folder / f"{name}.log"
        return Gateway(name, command, "/readyz", port, log, admin=f"http://{_ADDRESS}:{admin}")

    def _settings(self, port: int, admin: int) -> dict[str, object]:
        return {
            "server": {"port": port, "admin_port": admin},
            "models": [
                {"id": MODEL, "tokenizer": "builtin:demo", "replicas": [replica.url for replica in self.replicas]}
            ],
            "spaces": {"isolation": "none", "secret": "chaos" * 8},
            "state": f"redis://{_ADDRESS}:{self.redis.port}/0",
            "relay": {"resume": True, "health_interval_seconds": 0.5, "health_timeout_seconds": 1, "retries": 4},
            "log": {"level": "warning", "requests": False},
        }

    def _replica(self, number: int, blocks: int) -> Machine:
        port, events, replay = free_port(), free_port(), free_port()
        command = [sys.executable, "-m", "gateway", "engine", "--port", str(port), "--blocks", str(blocks)]
        command += ["--block-size", str(BLOCK_SIZE)]
        command += ["--events", f"tcp://*:{events}", "--replay", f"tcp://*:{replay}", "--slots", "64"]
        command += ["--prefill-rate", "20000", "--decode-ms", "4"]
        return Machine(f"replica-{number}", command, "/health", port, self.folder / f"replica-{number}.log")

    def _redis(self, server: str) -> Machine:
        port = free_port()
        command = [server, "--port", str(port), "--save", "", "--dir", str(self.folder)]
        return Machine("redis", command, "", port, self.folder / "redis.log")
