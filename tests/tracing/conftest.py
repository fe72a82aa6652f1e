import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

# The gateway, the engines and the tenants are started as in the gateway's own tests.
sys.path.append(str(Path(__file__).parent.parent / "gateway"))

from otlp_collector import OtlpCollector
from running_gateway import RunningGateway, settings_for
from scripted_engine import ScriptedEngine

from gateway.simulator.config import EngineConfig
from gateway.simulator.simulated_engine import SimulatedEngine
from gateway.telemetry.tracing import export


@pytest.fixture
async def closing() -> AsyncIterator[contextlib.AsyncExitStack]:
    async with contextlib.AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def collector(closing, monkeypatch) -> OtlpCollector:
    """A collector to which spans are sent soon."""
    monkeypatch.setattr(export, "_DELAY_SECONDS", 0.05)
    collector = OtlpCollector()
    await collector.start()
    closing.push_async_callback(collector.stop)
    return collector


@pytest.fixture
async def engine(closing) -> SimulatedEngine:
    engine = SimulatedEngine(EngineConfig(prefill_rate=1e6, decode_ms=0.0, record_requests=200))
    await engine.start()
    closing.push_async_callback(engine.kill)
    return engine


@pytest.fixture
async def scripted(closing) -> ScriptedEngine:
    engine = ScriptedEngine()
    await engine.start()
    closing.push_async_callback(engine.stop)
    return engine


@pytest.fixture
def start(closing, collector) -> Callable[..., Awaitable[RunningGateway]]:
    """Starts a gateway that traces every request by default; ``tracing=None`` leaves it off."""

    async def start(*engines: Any, tracing: dict[str, Any] | None = {}, **sections: Any) -> RunningGateway:  # noqa: B006
        if tracing is not None:
            reported = {"enabled": True, "endpoint": collector.url, "sample_ratio": 1.0}
            sections["tracing"] = reported | tracing
        running = RunningGateway(settings_for(engines, **sections))
        await running.start()
        closing.push_async_callback(running.stop)
        return running

    return start


def pytest_asyncio_loop_factories(config, item):
    """The event loop of production."""
    return {"uvloop": uvloop.new_event_loop}
