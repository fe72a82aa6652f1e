"""Fixtures of modules whose tests share one gateway, because they change nothing there: ``from one_gateway import *``
and ``pytestmark = SHARED``.

A test gets the same names as elsewhere: ``gateway`` in front of ``engine``, ``behind`` in front of ``scripted``. What
these engines have recorded is of this test. Metrics add up over the tests of the module.
"""

import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from running_gateway import RunningGateway
from scripted_engine import ScriptedEngine

from gateway.simulator.simulated_engine import SimulatedEngine

__all__ = ["SHARED", "behind", "closing", "engine", "gateway", "scripted"]

SHARED = pytest.mark.asyncio(loop_scope="module")
"""Mark of these modules' coroutines, which run in one event loop."""


@pytest_asyncio.fixture(loop_scope="module")
async def closing() -> AsyncIterator[contextlib.AsyncExitStack]:
    """What a test opened, closed in reverse order."""
    async with contextlib.AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def engine(shared: tuple[RunningGateway, SimulatedEngine]) -> SimulatedEngine:
    shared[1]._app.requests.clear()
    return shared[1]


@pytest.fixture
def gateway(shared: tuple[RunningGateway, SimulatedEngine]) -> RunningGateway:
    return shared[0]


@pytest.fixture
def scripted(shared_behind: tuple[RunningGateway, ScriptedEngine]) -> ScriptedEngine:
    engine = shared_behind[1]
    engine.received.clear()
    engine.answer = engine.reply
    return engine


@pytest.fixture
def behind(shared_behind: tuple[RunningGateway, ScriptedEngine]) -> RunningGateway:
    return shared_behind[0]
