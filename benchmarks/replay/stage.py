"""The processes of one replay: simulated engines with KV events and one gateway. All of them fresh."""

import asyncio
import sys
from pathlib import Path
from types import TracebackType

import httpx
import yaml

from benchmarks.chaos.machines import Gateway, Machine
from benchmarks.free_ports import free_port
from gateway.config.routing_settings import QueueSettings
from gateway.evaluation.simulation import FleetShape

MODEL = "demo"
_ADDRESS = "127.0.0.1"
_READY_SECONDS = 60.0


class Stage:
    """A context manager; leaving it ends all processes.

    Args:
        folder: For configuration and logs.
        fleet: The engines.
        block_size: Tokens per block.
        policy: Placement policy of the gateway.
        miss_weight: Its weight.
        compress: How many times faster than the fleet's rates the engines are.
        queue: The gateway's queue, its times as in the trace; None: none waits there.
    """

    def __init__(
        self,
        folder: Path,
        fleet: FleetShape,
        block_size: int,
        policy: str,
        miss_weight: float,
        compress: float,
        queue: QueueSettings | None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._fleet = fleet
        self._block_size = block_size
        self._placement = {
            "policy": policy,
            "miss_weight": miss_weight,
            "slots": fleet.slots,
            "prefill_tokens_per_second": fleet.prefill_rate * compress,
            "decode_seconds_per_token": fleet.decode_seconds / compress,
        }
        self._compress = compress
        self._queue: dict[str, float] = {"max_seconds": 0}
        if queue is not None:
            self._queue = {
                "max_requests": queue.max_requests,
                "max_seconds": queue.max_seconds / compress,
                "busy_seconds": queue.busy_seconds / compress,
            }
        self._replicas = [self._replica(number) for number in range(fleet.replicas)]
        self.gateway = self._gateway()

    async def __aenter__(self) -> "Stage":
        try:
            for machine in [*self._replicas, self.gateway]:
                await machine.start()
            await self._settled()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for machine in [self.gateway, *self._replicas]:
            await machine.finish()

    async def _settled(self) -> None:
        """Wait until the gateway receives the events of all engines."""
        async with httpx.AsyncClient(base_url=self.gateway.admin, trust_env=False, timeout=30) as http:
            for _ in range(int(_READY_SECONDS / 0.2)):
                replicas = (await http.get("/admin/api/replicas")).json()["replicas"]
                if all(row["state"] == "ready" and row["index"]["source"] == "events" for row in replicas):
                    return
                await asyncio.sleep(0.2)
        raise RuntimeError(f"the gateway does not receive the engines' events; see {self._folder}")

    def _gateway(self) -> Gateway:
        port, admin = free_port(), free_port()
        config = {
            "server": {"port": port, "admin_port": admin, "drain_seconds": 0, "shutdown_grace_seconds": 1},
            "models": [
                {
                    "id": MODEL,
                    "tokenizer": "builtin:demo",
                    "replicas": [{"id": replica.name, "url": replica.url} for replica in self._replicas],
                }
            ],
            "placement": self._placement,
            "queue": self._queue,
            "relay": {"slow_start_seconds": 0, "health_timeout_seconds": 20, "first_byte_timeout_seconds": 3600},
            "spaces": {"isolation": "none"},
            "explain": {"enabled": False},
            "log": {"level": "warning", "requests": False},
        }
        file = self._folder / "gateway.yaml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
        log = self._folder / "gateway.log"
        return Gateway("gateway", command, "/readyz", port, log, admin=f"http://{_ADDRESS}:{admin}")

    def _replica(self, number: int) -> Machine:
        fleet, port, name = self._fleet, free_port(), f"replica-{number}"
        command = [sys.executable, "-m", "gateway", "engine", "--port", str(port), "--model", MODEL]
        # One block more: it is the engine's own.
        command += ["--blocks", str(fleet.blocks + 1), "--block-size", str(self._block_size)]
        command += ["--max-model-len", str(fleet.blocks * self._block_size), "--slots", str(fleet.slots)]
        command += ["--prefill-rate", str(fleet.prefill_rate * self._compress)]
        command += ["--decode-ms", str(fleet.decode_seconds * 1000 / self._compress)]
        command += ["--events", f"tcp://*:{free_port()}", "--replay", f"tcp://*:{free_port()}"]
        return Machine(name, command, "/health", port, self._folder / f"{name}.log")
