import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from gateway.simulator.config import EngineConfig
from gateway.simulator.simulated_engine import SimulatedEngine


class _Jump(selectors.SelectSelector):
    """Never waits: where others would sleep, the clock jumps ahead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everything waits and no timer is set")
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jump = _Jump()
        super().__init__(self.jump)

    def time(self) -> float:
        return self.jump.now


@pytest.fixture
def virtual() -> Callable[[Callable[[], Awaitable[Any]]], Any]:
    """Runs an async function in a loop whose clock jumps, so that durations are exact and take no time."""

    def run(function: Callable[[], Awaitable[Any]]) -> Any:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(function())

    return run


@pytest.fixture
async def start():
    """Starts engines with the options given, fast by default; stops them at the end."""
    engines: list[SimulatedEngine] = []

    async def start(**options: Any) -> SimulatedEngine:
        engine = SimulatedEngine(EngineConfig(**{"prefill_rate": 1e6, "decode_ms": 0.0} | options))
        await engine.start()
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        await engine.stop()


@pytest.fixture
async def connect():
    """Opens a client for an engine."""
    clients: list[httpx.AsyncClient] = []

    def connect(engine: SimulatedEngine) -> httpx.AsyncClient:
        clients.append(httpx.AsyncClient(base_url=engine.url, timeout=60))
        return clients[-1]

    yield connect
    for client in clients:
        await client.aclose()
