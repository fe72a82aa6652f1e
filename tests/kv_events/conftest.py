import asyncio

import pytest
import uvloop
from patience import HANG_SECONDS


@pytest.fixture
def run():
    """Runs an async function to its end, in the event loop of production."""

    def run(function, *arguments):
        async def bounded():
            async with asyncio.timeout(HANG_SECONDS):
                return await function(*arguments)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(bounded())

    return run
