"""Misconfigured simulated engines."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from gateway.simulator.config import EngineConfig
from gateway.simulator.simulated_engine import SimulatedEngine

StartEngine = Callable[..., Awaitable[SimulatedEngine]]

RIGHT = {"prefill_rate": 1e6, "decode_ms": 0.0, "events": "tcp://*:0", "replay": "tcp://*:0", "record_requests": 50}
"""An engine that nothing is wrong with."""


@pytest.fixture
async def closing() -> AsyncIterator[contextlib.AsyncExitStack]:
    """What a test opened, closed in reverse order."""
    async with contextlib.AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def start_engine(closing: contextlib.AsyncExitStack) -> StartEngine:
    """Starts an engine that is set up correctly but for the given options."""

    async def start(**options: Any) -> SimulatedEngine:
        engine = SimulatedEngine(EngineConfig(**RIGHT | options))
        await engine.start()
        closing.push_async_callback(engine.kill)
        return engine

    return start
