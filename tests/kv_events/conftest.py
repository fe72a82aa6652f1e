import asyncio

import pytest
import uvloop


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    """Runs an async function to its end, in the loop of the standard library and in the one of the gateway."""

    def run(function, *arguments):
        async def bounded():
            async with asyncio.timeout(30):
                return await function(*arguments)

        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(bounded())

    return run
