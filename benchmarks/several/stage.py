"""The processes of one run: simulated engines, gateways, and Redis where they have one. All of them fresh."""

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import yaml

from benchmarks.chaos.machines import Gateway, Machine
from benchmarks.free_ports import free_port
from benchmarks.several.recording import MODEL
from gateway.core.api_keys import hash_key

_ADDRESS = "127.0.0.1"
_SECRET = "a secret that is used in this benchmark only"
_READY_SECONDS = 60.0
_EXPLAINED_SECONDS = 60.0


@dataclass(frozen=True)
class Engines:
    """What the engines are like.

    Attributes:
        count: How many.
        blocks: Blocks of each one's cache.
        prefill_rate: Prompt tokens that each computes in a second.
        decode_ms: Milliseconds for a token of an answer.
        events: Whether they publish KV events.
    """

    count: int
    blocks: int
    prefill_rate: float
    decode_ms: float
    events: bool


@dataclass
class Totals:
    """What gateways say of where the prompt tokens went, added up.

    Attributes:
        requests: How many were explained.
        skipped: Those of them that were only counted.
        prompt_tokens: Of all.
        rungs: Tokens up to each rung of the ladder.
        reasons: Missed tokens by reason.
    """

    requests: int = 0
    skipped: int = 0
    prompt_tokens: int = 0
    rungs: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, summary: Mapping[str, Any]) -> None:
        """Count what one gateway says."""
        self.requests += summary["requests"]
        self.skipped += summary["skipped"]
        self.prompt_tokens += summary["prompt_tokens"]
        self.rungs.update({rung["rung"]: rung["tokens"] for rung in summary["ladder"]})
        self.reasons.update({reason["code"]: reason["tokens"] for reason in summary["reasons"]})


class Stage:
    """A context manager; leaving it ends all processes.

    Args:
        folder: For configuration and logs.
        engines: What the engines are like.
        gateways: How many gateways.
        redis_server: The Redis they share; None for none.
        keys: API keys by tenant.
        saved_spaces: Copied for every gateway as the file of its prefix spaces; None to begin new ones.
    """

    def __init__(
        self,
        folder: Path,
        engines: Engines,
        gateways: int,
        redis_server: str | None,
        keys: Mapping[str, str],
        saved_spaces: bytes | None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._keys = keys
        self._saved_spaces = saved_spaces
        self._engines = engines
        self._redis = None if redis_server is None else self._redis_machine(redis_server)
        self._replicas = [self._replica(number, engines) for number in range(engines.count)]
        self.gateways = [self._gateway(number) for number in range(gateways)]
        self._http = httpx.AsyncClient(trust_env=False, timeout=30)
        self._all = [*([self._redis] if self._redis else []), *self._replicas, *self.gateways]

    async def __aenter__(self) -> "Stage":
        try:
            for machine in [*([self._redis] if self._redis else []), *self._replicas]:
                await machine.start()
            for first in range(0, len(self.gateways), 2):
                await asyncio.gather(*(gateway.start() for gateway in self.gateways[first : first + 2]))
            await self._settled()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.gather(*(gateway.finish() for gateway in self.gateways))
        for machine in reversed(self._all):
            await machine.finish()
        await self._http.aclose()

    def saved_spaces(self) -> bytes:
        """The saved prefix spaces, once the first gateway has ended."""
        return self._spaces_file(0).read_bytes()

    async def totals(self, requests: int) -> Totals:
        """What the gateways say of so many requests, once they have explained all of them."""
        for _ in range(int(_EXPLAINED_SECONDS / 0.5)):
            found = Totals()
            for gateway in self.gateways:
                found.add(await self.asked(gateway, "/admin/api/summary?window=1h"))
            if found.requests >= requests:
                break
            await asyncio.sleep(0.5)
        return found

    async def asked(self, gateway: Gateway, path: str) -> dict[str, Any]:
        """An answer of a gateway's admin port."""
        answer = await self._http.get(f"{gateway.admin}{path}")
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    async def _settled(self) -> None:
        """Wait until every gateway receives messages of the others, and the engines' events."""
        for _ in range(int(_READY_SECONDS / 0.2)):
            if all([await self._is_settled(gateway) for gateway in self.gateways]):
                return
            await asyncio.sleep(0.2)
        raise RuntimeError(f"the gateways do not receive messages of each other, or of the engines; see {self._folder}")

    async def _is_settled(self, gateway: Gateway) -> bool:
        replicas = (await self.asked(gateway, "/admin/api/replicas"))["replicas"]
        wanted = "events" if self._engines.events else "predicted"
        if any(row["state"] != "ready" or row["index"]["source"] != wanted for row in replicas):
            return False
        return self._redis is None or await self._peers(gateway) == len(self.gateways) - 1

    async def _peers(self, gateway: Gateway) -> int:
        text = (await self._http.get(f"{gateway.admin}/metrics")).text
        found = [line for line in text.splitlines() if line.startswith("gateway_peers ")]
        return int(float(found[0].split()[1])) if found else -1

    def _gateway(self, number: int) -> Gateway:
        port, admin, name = free_port(), free_port(), f"gateway-{number}"
        config = {
            "server": {"port": port, "admin_port": admin, "drain_seconds": 0, "shutdown_grace_seconds": 1},
            "models": [
                {
                    "id": MODEL,
                    "tokenizer": "builtin:demo",
                    # Names, because ties go by them: ports, which differ from run to run, would make for another luck.
                    "replicas": [{"id": replica.name, "url": replica.url} for replica in self._replicas],
                }
            ],
            "tenants": [{"id": tenant, "keys": [hash_key(key)]} for tenant, key in self._keys.items()],
            "spaces": {"isolation": "tenant", "secret": _SECRET, "file": str(self._spaces_file(number))},
            "log": {"level": "warning", "requests": False},
        }
        if self._saved_spaces is not None:
            self._spaces_file(number).write_bytes(self._saved_spaces)
        if self._redis is not None:
            config["state"] = f"redis://{_ADDRESS}:{self._redis.port}/0"
        file = self._folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
        return Gateway(name, command, "/readyz", port, self._folder / f"{name}.log", admin=f"http://{_ADDRESS}:{admin}")

    def _spaces_file(self, number: int) -> Path:
        return (self._folder / f"spaces-{number}.json").absolute()

    def _replica(self, number: int, engines: Engines) -> Machine:
        port, name = free_port(), f"engine-{number}"
        command = [sys.executable, "-m", "gateway", "engine", "--port", str(port), "--model", MODEL]
        command += ["--blocks", str(engines.blocks), "--slots", "64"]
        command += ["--prefill-rate", str(engines.prefill_rate), "--decode-ms", str(engines.decode_ms)]
        if engines.events:
            command += ["--events", f"tcp://*:{free_port()}", "--replay", f"tcp://*:{free_port()}"]
        return Machine(name, command, "/health", port, self._folder / f"{name}.log")

    def _redis_machine(self, server: str) -> Machine:
        port = free_port()
        command = [server, "--port", str(port), "--save", "", "--dir", str(self._folder)]
        return Machine("redis", command, "", port, self._folder / "redis.log")
