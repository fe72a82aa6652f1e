"""Misconfigured simulated engines, and an examination of them."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from gateway.config.settings import Settings
from gateway.evaluation.doctor.doctor_finding import Diagnosis, DoctorFinding
from gateway.evaluation.doctor.examination import ExaminationOptions, examine
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


def settings_for(*engines: Any, model: dict[str, Any] | None = None, **sections: Any) -> Settings:
    """One model, ``demo``, on these engines or URLs, which are called r0, r1 and so on."""
    replicas = [
        {"url": engine if isinstance(engine, str) else engine.url, "id": f"r{number}"}
        for number, engine in enumerate(engines)
    ]
    served = {"id": "demo", "tokenizer": "builtin:demo", "replicas": replicas} | (model or {})
    ports = {"port": 0, "admin_port": 0} | sections.pop("server", {})
    return Settings.model_validate({"server": ports, "models": [served], **sections})


async def examined(settings: Settings, **options: Any) -> Diagnosis:
    """The result of an examination whose limits are generous for a busy machine."""
    diagnosis, _ = await examine(settings, ExaminationOptions(**{"timeout_seconds": 20.0} | options))
    return diagnosis


def names(diagnosis: Diagnosis) -> list[str]:
    return [finding.name for finding in diagnosis.ordered()]


def only(diagnosis: Diagnosis) -> DoctorFinding:
    """The one finding there is."""
    assert len(diagnosis.findings) == 1, names(diagnosis)
    return diagnosis.findings[0]
