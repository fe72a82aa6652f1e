"""Stored responses in Redis."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from pydantic import SecretStr

from gateway.api.dialects.response_store import ResponseStore, StoreUnavailable
from gateway.cluster.records import RedisRecords
from gateway.cluster.redis_context import RedisContextStore
from gateway.config.history_settings import ResponsesSettings

T = TypeVar("T")

_DEADLINE_SECONDS = 1.0
"""How long a request waits for what it continues. It cannot do without it, other than without context blocks."""


class RedisResponses(ResponseStore):
    """A ``ResponseStore`` whose records are kept as context blocks are; its limits count what this gateway has written.

    Args:
        url, secret, on_error: See ``RedisContextStore``.
        limits, has_tenants: See ``ResponseStore``.
    """

    def __init__(
        self,
        url: SecretStr,
        secret: SecretStr,
        limits: ResponsesSettings,
        *,
        has_tenants: bool,
        on_error: Callable[[str], None],
    ) -> None:
        super().__init__(limits, has_tenants=has_tenants)
        self.shared = RedisContextStore(
            url,
            secret,
            ttl_seconds=limits.ttl_seconds,
            on_error=on_error,
            deadline_seconds=_DEADLINE_SECONDS,
            waiting_bytes=(limits.max_mib + 1) * 1024 * 1024,
            purpose="responses",
        )

        self.conversations = RedisRecords(url, secret, "conversations", on_error, limits.ttl_seconds)
        self._connections = asyncio.Semaphore(2)

    keeps_values = False

    async def check(self, owner: str, size: int) -> None:
        """See ``ResponseStore``."""
        if self.shared.writing.failing:
            raise _unavailable()
        await super().check(owner, size)

    async def read(self, names: Sequence[str]) -> list[bytes | None]:
        """See ``ResponseStore``."""
        await super().read(names)
        found = await self.shared.fetch([name.encode() for name in names])
        if self.shared.reading.failing:
            raise _unavailable()
        return [found.get(name.encode(), "").encode() or None for name in names]

    async def write(self, name: str, value: bytes | None) -> None:
        """See ``ResponseStore``. What was removed is empty until its time is over."""
        self.shared.keep({name.encode(): (value or b"").decode()})
        await self.shared.written(name.encode())
        if self.shared.writing.failing:
            raise _unavailable()

    async def append(self, owner: str, conversation: str, id_: str, number: int) -> None:
        """See ``ResponseStore``."""
        records = self.conversations.of(f"{owner}/{conversation}")
        await self._done(records.write({id_: b"%d" % number}))

    async def turns(self, owner: str, conversation: str) -> list[str]:
        """See ``ResponseStore``."""
        await self.check(owner, 0)  # none waits for a Redis that fails
        found = await self._done(self.conversations.of(f"{owner}/{conversation}").read())
        return sorted(found, key=lambda id_: (int(found[id_]), id_))

    async def _done(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work on a conversation, over one of the two connections. Redis' client wants a task for it."""
        try:
            async with self._connections:
                return await asyncio.create_task(work)
        except Exception:  # noqa: BLE001 - counted and logged where it came from
            raise _unavailable() from None


def _unavailable() -> StoreUnavailable:
    problem = "The store of responses cannot be reached. Send all items in `input`, or try again in a moment."
    return StoreUnavailable(problem, code="response_store_unavailable")
