import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop

# The gateway and the engines are started as in the gateway's own tests.
sys.path.append(str(Path(__file__).parent.parent / "gateway"))


@pytest.fixture
async def closing() -> AsyncIterator[contextlib.AsyncExitStack]:
    """What a test opened, closed in reverse order."""
    async with contextlib.AsyncExitStack() as stack:
        yield stack


def pytest_asyncio_loop_factories(config, item):
    """The event loop of production."""
    return {"uvloop": uvloop.new_event_loop}
