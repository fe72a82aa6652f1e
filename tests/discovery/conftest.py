import asyncio
import contextlib

import pytest
from discovery_fakes import FakeKubernetes, FakeNames
from patience import HANG_SECONDS

from gateway.discovery.discovered import SourceFailed


@pytest.fixture
async def names():
    server = await FakeNames().start()
    yield server
    server.stop()


@pytest.fixture
async def api():
    api = await FakeKubernetes().start()
    yield api
    await api.stop()


class SourceRecorder:
    """What a source has said: its answers, and the message of what it failed with, after which it is asked again."""

    def __init__(self, source):
        self.said = []
        self._new = asyncio.Event()
        self._task = asyncio.create_task(self._listen(source))

    async def _listen(self, source):
        while True:
            try:
                async for found in source.answers():
                    self._take(found)
            except SourceFailed as failure:
                self._take(str(failure))
            await asyncio.sleep(0.01)

    def _take(self, said):
        self.said.append(said)
        self._new.set()
        self._new = asyncio.Event()

    async def until(self, holds, seconds=HANG_SECONDS):
        """The first thing said from now on, or the last one before, for which something holds."""
        seen = max(len(self.said) - 1, 0)
        async with asyncio.timeout(seconds):
            while True:
                for said in self.said[seen:]:
                    if holds(said):
                        return said
                seen = len(self.said)
                await self._new.wait()

    async def stop(self):
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@pytest.fixture
async def listen_to():
    """Listens to a source."""
    received = []

    def listen(source):
        received.append(SourceRecorder(source))
        return received[-1]

    yield listen
    for each in received:
        await each.stop()
