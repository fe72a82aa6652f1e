"""Two real replicas with small caches that can be emptied, killed and replaced while requests are under way."""

import asyncio
from pathlib import Path

import httpx

from tests.engine.client import TIMEOUT
from tests.engine.places import DEMO_TEMPLATE
from tests.engine.replica import BLOCK_SIZE, START_SECONDS, Ports, Process, start_replica

BLOCKS = 128
TOKENS = (BLOCKS - 1) * BLOCK_SIZE
"""What one cache holds."""

SMALL_FLAGS = ("--num-gpu-blocks-override", str(BLOCKS), "--max-model-len", "2048")


class SmallFleet:
    """The replicas.

    Args:
        folder: Where their logs go.

    Attributes:
        replicas: Their present processes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = [Ports.free(), Ports.free()]
        self.replicas = [self._start(number) for number in range(2)]

    def wait_ready(self) -> None:
        """Wait until both serve."""
        for replica in self.replicas:
            replica.wait_ready("/health", START_SECONDS)

    async def reset(self, number: int) -> None:
        """Empty a replica's cache at once; requests that run there begin again."""
        async with httpx.AsyncClient(base_url=self.replicas[number].url, timeout=TIMEOUT) as client:
            answer = await client.post("/reset_prefix_cache", params={"reset_running_requests": True})
        if answer.status_code != 200 or answer.json() != {"success": True}:
            raise RuntimeError(f"reset: {answer.status_code} {answer.text}")

    async def replace(self, number: int) -> None:
        """Kill a replica and start another one in its place, under the same addresses."""
        self.replicas[number].kill()
        self.replicas[number].log.rename(self._folder / f"small-{number}-killed.log")
        self.replicas[number] = self._start(number)
        await asyncio.to_thread(self.replicas[number].wait_ready, "/health", START_SECONDS)

    def stop(self) -> None:
        """End both."""
        for replica in self.replicas:
            replica.stop()

    def _start(self, number: int) -> Process:
        return start_replica(self._folder, f"small-{number}", DEMO_TEMPLATE, self._ports[number], SMALL_FLAGS)
