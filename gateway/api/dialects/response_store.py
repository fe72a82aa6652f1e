"""Keeps responses under their tenant's key: for a time, within limits, in memory or in a store that gateways share."""

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from gateway.config.history_settings import ResponsesSettings
from gateway.core.errors import GatewayError, NotFound
from gateway.core.ports import SharedEntries

_MIB = 1024 * 1024
_OVERHEAD_BYTES = 400
"""Of a record, in addition to its values."""


class StoreFull(GatewayError):
    """Responses take as much memory as they may."""

    status = 503
    type = "service_unavailable"

    def __init__(self, setting: str, seconds: float) -> None:
        super().__init__(
            f"The stored responses take as much memory as they may (responses.{setting}). Send the request with `store:"
            " false` and all items in `input`, delete responses, or wait until old ones expire.",
            code="response_store_full",
        )
        self.retry_after_seconds = min(max(math.ceil(seconds), 1), 3600)


class Record(msgspec.Struct, array_like=True):
    """What is kept under an id.

    Attributes:
        response: JSON of the response without its output; empty for a conversation.
        output: JSON of the output's items.
        input: JSON of the items of the request's own ``input``.
        before: Ids of the responses that it continues, the oldest first; of a conversation its responses.
    """

    response: bytes = b""
    output: bytes = b"[]"
    input: bytes = b"[]"
    before: list[str] = []


class _Kept(NamedTuple):
    owner: str
    size: int
    expires_at: float
    value: bytes | None


_decode = msgspec.msgpack.Decoder(Record).decode


class ResponseStore:
    """Stored records.

    With a shared store the limits count what this gateway has written.

    Args:
        shared: The shared store; None to keep the records in memory.
        limits: How long, and how much.
        has_tenants: Whether tenants have a limit of their own.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        shared: SharedEntries | None,
        limits: ResponsesSettings,
        *,
        has_tenants: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shared = shared
        self._ttl_seconds = limits.ttl_seconds
        self._max_bytes = limits.max_mib * _MIB
        self._max_owner_bytes = (limits.max_tenant_mib if has_tenants else limits.max_mib) * _MIB
        self._clock = clock
        self._kept: dict[str, _Kept] = {}  # the next one to expire first
        self._sizes: dict[str, int] = {}  # by owner; of all under ""

    async def check(self, owner: str, size: int) -> None:
        """Check that so many bytes more could be kept now.

        Raises:
            StoreFull, StoreUnavailable: they could not.
        """
        if self._shared is not None and self._shared.failing:
            await self._shared.read([owner], self._ttl_seconds)
        self._check_room(owner, size)

    def _check_room(self, owner: str, size: int) -> None:
        now = self._clock()
        while self._kept and (first := next(iter(self._kept.items())))[1].expires_at <= now:
            self._forget(first[0])
        for whose, most, setting in (
            ("", self._max_bytes, "max_mib"),
            (owner, self._max_owner_bytes, "max_tenant_mib"),
        ):
            if self._sizes.get(whose, 0) + size > most:
                soonest = next((kept.expires_at for kept in self._kept.values() if whose in ("", kept.owner)), now)
                raise StoreFull(setting, soonest - now)

    async def keep(self, owner: str, id_: str, record: Record) -> None:
        """Keep a record, in place of an earlier one.

        Raises:
            StoreFull, StoreUnavailable: it is not kept.
        """
        name, value = f"{owner}/{id_}", msgspec.msgpack.encode(record)
        self._forget(name)
        size = len(value) + _OVERHEAD_BYTES
        self._check_room(owner, size)
        self._count(owner, size)
        value_here = value if self._shared is None else None
        self._kept[name] = _Kept(owner, size, self._clock() + self._ttl_seconds, value_here)
        if self._shared is not None:
            await self._shared.write(name, value, self._ttl_seconds)

    async def find(self, owner: str, ids: Sequence[str]) -> list[Record | None]:
        """The records of some ids; None for unknown ones. Their time begins anew.

        Raises:
            StoreUnavailable: they cannot be read now.
        """
        names = [f"{owner}/{id_}" for id_ in ids]
        now, values = self._clock(), []
        for name in names:
            kept = self._kept.pop(name, None)
            alive = kept is not None and kept.expires_at > now
            values.append(kept.value if kept is not None and alive else None)
            if kept is not None and alive:
                self._kept[name] = kept._replace(expires_at=now + self._ttl_seconds)
            elif kept is not None:
                self._count(kept.owner, -kept.size)
        if self._shared is not None and names:
            values = await self._shared.read(names, self._ttl_seconds)
        return [None if value is None else _decode(value) for value in values]

    async def one(self, owner: str, id_: str, param: str | None = None) -> Record:
        """The record of an id.

        Raises:
            NotFound: it is unknown: never given, expired, deleted, or another tenant's.
            StoreUnavailable: it cannot be read now.
        """
        (record,) = await self.find(owner, [id_])
        if record is None:
            raise unknown(id_, param)
        return record

    async def remove(self, owner: str, id_: str) -> None:
        """Remove a record.

        Raises:
            StoreUnavailable: it cannot be removed now.
        """
        name = f"{owner}/{id_}"
        if self._shared is not None:
            await self._shared.write(name, None, self._ttl_seconds)
        self._forget(name)

    def _forget(self, name: str) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._count(kept.owner, -kept.size)

    def _count(self, owner: str, size: int) -> None:
        for whose in (owner, ""):
            self._sizes[whose] = total = self._sizes.get(whose, 0) + size
            if not total:
                del self._sizes[whose]


def unknown(id_: str, param: str | None) -> NotFound:
    """The error for an id that is not known; the same for another tenant's."""
    shown = id_[:80] if id_.isascii() and id_.isprintable() else "of this form"
    return NotFound(
        f"The id {shown} is not known: it was not stored, has expired, was deleted, or belongs to another key.",
        param=param,
        code="not_found",
    )
