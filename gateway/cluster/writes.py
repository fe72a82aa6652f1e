"""Background writes of context blocks to Redis, and the blocks that wait for them."""

import asyncio
from collections.abc import Sequence

from gateway.cluster.connect import Client
from gateway.cluster.redis_health import PAUSE_SECONDS, RedisHealth, is_ending

_ENTRY_BYTES = 200
"""Overhead of an entry in addition to its key and block."""


class PendingWrites:
    """Entries to be written, each key once; the oldest are dropped beyond the limit.

    Args:
        max_bytes: Memory limit.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: dict[bytes, bytes | None] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: bytes, block: bytes | None) -> int:
        """Add an entry, replacing an earlier one of the same key.

        Args:
            key: Its key.
            block: The value; None to renew the TTL of the stored one.

        Returns:
            Number of dropped entries.
        """
        if block is None and key in self._entries:
            return 0
        self._take(key)
        self._entries[key] = block
        self._bytes += _size(key, block)
        dropped = 0
        while self._bytes > self._max_bytes:
            self._take(next(iter(self._entries)))
            dropped += 1
        return dropped

    def first(self, most: int) -> list[tuple[bytes, bytes | None]]:
        """The oldest entries. They stay until ``done``."""
        return [entry for entry, _ in zip(self._entries.items(), range(most), strict=False)]

    def done(self, entries: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Remove written entries, except those replaced meanwhile."""
        for key, block in entries:
            if key in self._entries and self._entries[key] is block:
                self._take(key)

    def _take(self, key: bytes) -> None:
        if key in self._entries:
            self._bytes -= _size(key, self._entries.pop(key))


def _size(key: bytes, block: bytes | None) -> int:
    return len(key) + len(block or b"") + _ENTRY_BYTES


_MAX_AT_ONCE = 256


class BackgroundWrites:
    """Writes the waiting entries, and retries those that failed. ``run`` has to be running.

    Args:
        client: The connection.
        waiting: The entries to write.
        health: Records failures and successes.
        ttl_seconds: TTL of blocks in Redis.
    """

    def __init__(self, client: Client, waiting: PendingWrites, health: RedisHealth, ttl_seconds: float) -> None:
        self.ttl_seconds = ttl_seconds
        self._client = client
        self._waiting = waiting
        self._health = health
        self._came = asyncio.Event()
        self._done = asyncio.Event()

    def wake(self) -> None:
        """Entries were added."""
        self._came.set()

    async def drained(self) -> None:
        """Wait until all entries are written or a write failed."""
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
            if not await self._write(self._waiting.first(_MAX_AT_ONCE)):
                self._done.set()
                await asyncio.sleep(PAUSE_SECONDS)

    async def _write(self, entries: Sequence[tuple[bytes, bytes | None]]) -> bool:
        """Write entries; returns whether all were written."""
        milliseconds = round(self.ttl_seconds * 1000)
        try:
            async with self._client.pipeline(transaction=False) as pipeline:
                for key, block in entries:
                    if block is None:
                        pipeline.pexpire(name_of(key), milliseconds)
                    else:
                        pipeline.set(name_of(key), block, px=milliseconds)
                results = await pipeline.execute(raise_on_error=False)
        except Exception as error:  # noqa: BLE001 - requests continue, and the write is retried
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
