"""Named values shared by gateways, stored in one Redis hash."""

from collections.abc import Callable, Mapping
from copy import copy
from inspect import isawaitable
from typing import Any

import msgspec
from pydantic import SecretStr

from gateway.cluster.connect import BACKEND, RedisConnections, RedisHealth
from gateway.cluster.seal import Seal
from gateway.config.state_settings import read_address

_THERE = "there"
"""Field that exists as long as the hash was not deleted."""

_MAX_AT_ONCE = 256

_Entry = tuple[str, bytes]
_decoder = msgspec.msgpack.Decoder(_Entry)


class RedisRecords:
    """Implements ``ports.Records``. Failures are counted and logged here.

    Args:
        url: Address of Redis, validated by the settings.
        secret: Shared secret of all gateways; values are encrypted with it.
        name: Name of the hash.
        on_error: Called with the backend's name on every failure.
        ttl_seconds: The hash expires after this time without a write; None for never.
    """

    def __init__(
        self,
        url: SecretStr,
        secret: SecretStr,
        name: str,
        on_error: Callable[[str], None],
        ttl_seconds: float | None = None,
    ) -> None:
        self._ttl_milliseconds = None if ttl_seconds is None else int(ttl_seconds * 1000)
        self._connections = RedisConnections(read_address(url.get_secret_value()), most=2)
        self._seal = Seal(secret, f"records of {name}")
        self._key = f"pgw:{name}:{self._seal.name(b'key').hex()}"
        self._on_error = on_error
        self._reading = RedisHealth(f"read {name}", on_error)
        self._writing = RedisHealth(f"write {name}", on_error)

    def of(self, name: str) -> "RedisRecords":
        """The records of another hash, over the same connections."""
        other = copy(self)
        other._key = f"{self._key}:{self._seal.name(name.encode()).hex()}"
        return other

    async def read(self) -> Mapping[str, bytes]:
        """See ``SharedRecords``. A value that cannot be decrypted is left out."""
        try:
            found: dict[bytes, bytes] = await _result(self._connections.client.hgetall(self._key))
        except Exception as error:
            self._reading.failed(error)
            raise
        self._reading.worked()
        values = {}
        for field, value in found.items():
            if field != _THERE.encode():
                entry = self._opened(field, value)
                if entry is None:
                    self._on_error(BACKEND)
                else:
                    values[entry[0]] = entry[1]
        return values

    async def write(self, changes: Mapping[str, bytes | None]) -> bool:
        """See ``SharedRecords``."""
        entries = [(self._field(name), name, value) for name, value in changes.items()]
        there = True
        try:
            for start in range(0, max(len(entries), 1), _MAX_AT_ONCE):
                there &= await self._write(entries[start : start + _MAX_AT_ONCE])
        except Exception as error:
            self._writing.failed(error)
            raise
        self._writing.worked()
        return there

    async def take(self, name: str) -> bytes | None:
        """See ``SharedRecords``."""
        field = self._field(name)
        try:
            async with self._connections.client.pipeline(transaction=True) as pipeline:
                pipeline.hget(self._key, field)
                pipeline.hdel(self._key, field)
                value, _ = await pipeline.execute()
        except Exception as error:
            self._writing.failed(error)
            raise
        entry = None if value is None else self._opened(field.encode(), value)
        return None if entry is None else entry[1]

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.close()

    async def _write(self, entries: list[tuple[str, str, bytes | None]]) -> bool:
        async with self._connections.client.pipeline(transaction=False) as pipeline:
            pipeline.hsetnx(self._key, _THERE, b"1")
            for field, name, value in entries:
                if value is None:
                    pipeline.hdel(self._key, field)
                else:
                    entry = msgspec.msgpack.encode((name, value))
                    pipeline.hset(self._key, field, self._seal.closed_bytes(field.encode(), entry))
            if self._ttl_milliseconds is not None:
                pipeline.pexpire(self._key, self._ttl_milliseconds)
            results = await pipeline.execute()
        return not results[0]

    def _field(self, name: str) -> str:
        return self._seal.name(name.encode()).hex()

    def _opened(self, field: bytes, value: bytes) -> _Entry | None:
        opened = self._seal.opened_bytes(field, value)
        try:
            return None if opened is None else _decoder.decode(opened)
        except msgspec.MsgspecError:
            return None


async def _result(answer: Any) -> Any:
    """The result of a command: redis-py types it as either awaitable or immediate."""
    return await answer if isawaitable(answer) else answer
