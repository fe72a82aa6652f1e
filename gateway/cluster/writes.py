"""Writes to Redis, behind the requests' backs."""

import asyncio
from collections.abc import Sequence

from gateway.cluster.connect import Client
from gateway.cluster.redis_health import PAUSE_SECONDS, RedisHealth, is_ending
from gateway.cluster.waiting import PendingWrites

_MOST_AT_ONCE = 256


class BackgroundWrites:
    """Writes what waits; what cannot be written waits on. ``run`` has to be running.

    Args:
        client: The connection.
        waiting: What is to be written.
        health: Told how it goes.
        ttl_seconds: How long Redis keeps it.
    """

    def __init__(self, client: Client, waiting: PendingWrites, health: RedisHealth, ttl_seconds: float) -> None:
        self.ttl_seconds = ttl_seconds
        self._client = client
        self._waiting = waiting
        self._health = health
        self._came = asyncio.Event()
        self._done = asyncio.Event()

    def wake(self) -> None:
        """Something is to be written."""
        self._came.set()

    async def drained(self) -> None:
        """Wait until all is written, or something failed."""
        if self._waiting and not self._health.failing:
            self._done.clear()
            await self._done.wait()

    async def run(self) -> None:
        """Write, until cancelled."""
        while not is_ending():
            if not self._waiting:
                self._done.set()
                self._came.clear()
                await self._came.wait()
            self._done.clear()
            if not await self._write(self._waiting.first(_MOST_AT_ONCE)):
                self._done.set()
                await asyncio.sleep(PAUSE_SECONDS)

    async def _write(self, entries: Sequence[tuple[bytes, bytes | None]]) -> bool:
        """Whether all could be written."""
        milliseconds = round(self.ttl_seconds * 1000)
        try:
            async with self._client.pipeline(transaction=False) as pipeline:
                for key, block in entries:
                    if block is None:
                        pipeline.pexpire(name_of(key), milliseconds)
                    else:
                        pipeline.set(name_of(key), block, px=milliseconds)
                results = await pipeline.execute(raise_on_error=False)
        except Exception as error:  # noqa: BLE001 - whatever it is, requests go on and it is tried again
            self._health.failed(error)
            return False
        refused = [result for result in results if isinstance(result, Exception)]
        self._waiting.done(
            [entry for entry, result in zip(entries, results, strict=True) if not isinstance(result, Exception)]
        )
        if refused:
            self._health.failed(refused[0])
            return False
        self._health.worked()
        return True


def name_of(key: bytes) -> str:
    """A block's key in Redis."""
    return f"pgw:ctx:{key.hex()}"
