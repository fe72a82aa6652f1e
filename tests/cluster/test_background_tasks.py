"""Background tasks end when their owner says so."""

import asyncio

import pytest
from patience import HANG_SECONDS

from gateway import tasks
from gateway.tasks import TaskGroupOwner


async def test_all_end_also_those_that_swallow_a_cancellation(monkeypatch):
    monkeypatch.setattr(tasks, "_CANCEL_AGAIN_SECONDS", 0.01)
    swallowed = []

    async def unstoppable() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if len(swallowed) == 2:
                    raise
                swallowed.append(1)

    async def broken() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise ValueError("broken")

    owner = TaskGroupOwner()
    running = [owner.spawn(unstoppable(), name="unstoppable"), owner.spawn(broken(), name="broken")]
    await asyncio.sleep(0)
    async with asyncio.timeout(HANG_SECONDS):
        await owner.cancel()
    assert running[0].cancelled()
    with pytest.raises(ValueError, match="broken"):
        running[1].result()


async def test_no_request_to_cancel():
    await TaskGroupOwner().cancel()
