"""Named values in Redis, each with an end of its own."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import SecretStr

from gateway.cluster.connect import RedisConnections, RedisHealth
from gateway.cluster.seal import Seal
from gateway.config.state_settings import read_address
from gateway.core.errors import StoreUnavailable
from gateway.tasks import TaskGroupOwner

_AT_ONCE = 4
"""Commands under way; each has a connection."""


class RedisEntries:
    """``SharedEntries`` in Redis. Failures are counted and logged here.

    Args:
        url: Address of Redis, validated by the settings.
        secret: Shared secret of all gateways; names and values are encrypted with it.
        name: What they are, for keys and logs.
        on_error: Called with the backend's name on every failure.
    """

    def __init__(self, url: SecretStr, secret: SecretStr, name: str, on_error: Callable[[str], None]) -> None:
        self._connections = RedisConnections(read_address(url.get_secret_value()), most=_AT_ONCE)
        self._seal = Seal(secret, name)
        self._prefix = f"pgw:{name}:"
        self._health = RedisHealth(f"use {name}", on_error)
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._tasks = TaskGroupOwner()

    @property
    def failing(self) -> bool:
        """See ``SharedEntries``."""
        return self._health.failing

    async def read(self, names: Sequence[str], ttl_seconds: float) -> list[bytes | None]:
        """See ``SharedEntries``. A value that cannot be decrypted is missing."""
        keys = [self._seal.name(name.encode()) for name in names]

        def ask(pipeline: Any) -> None:
            for key in keys:
                pipeline.get(self._prefix + key.hex())
                pipeline.pexpire(self._prefix + key.hex(), round(ttl_seconds * 1000))

        values = (await self._done(ask))[::2]
        return [
            None if value is None else self._seal.opened_bytes(key, value)
            for key, value in zip(keys, values, strict=True)
        ]

    async def write(self, name: str, value: bytes | None, ttl_seconds: float) -> None:
        """See ``SharedEntries``."""
        key = self._seal.name(name.encode())
        stored = self._prefix + key.hex()
        if value is None:
            await self._done(lambda pipeline: pipeline.delete(stored))
        else:
            closed, end = self._seal.closed_bytes(key, value), round(ttl_seconds * 1000)
            await self._done(lambda pipeline: pipeline.set(stored, closed, px=end))

    async def close(self) -> None:
        """Close the connections."""
        await self._tasks.cancel()
        await self._connections.close()

    async def _done(self, add: Callable[[Any], Any]) -> list[Any]:
        # In a task of its own: the caller may be in none, which redis-py's timeouts need.
        results: list[Any] = await self._tasks.spawn(self._run(add), name="shared-entries")
        return results

    async def _run(self, add: Callable[[Any], Any]) -> list[Any]:
        async with self._free:
            if not self._health.may_try():
                raise StoreUnavailable
            try:
                async with self._connections.client.pipeline(transaction=False) as pipeline:
                    add(pipeline)
                    results: list[Any] = await pipeline.execute()
            except Exception as error:  # noqa: BLE001 - reported as a kind of its own
                self._health.failed(error)
                raise StoreUnavailable from None
            self._health.worked()
            return results
