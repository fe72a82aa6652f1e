"""Keeps responses under their tenant's key: for a time, and within limits."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from gateway.config.history_settings import ResponsesSettings
from gateway.core.errors import GatewayError, NotFound

_MIB = 1024 * 1024
_OVERHEAD_BYTES = 400
"""Of a record, in addition to its values."""


class StoreUnavailable(GatewayError):
    """The store is full, or does not answer."""

    status = 503
    type = "service_unavailable"
    retry_after_seconds = 1


class Record(msgspec.Struct, array_like=True):
    """What is kept under an id.

    Attributes:
        head: JSON of the response's members that its request decides; null for a conversation.
        state: Its other members, without the output.
        output: JSON of the output's items.
        input: JSON of the items of the request's own ``input``.
        before: Ids of the responses that it continues, the oldest first; of a conversation its responses.
    """

    head: msgspec.Raw = msgspec.Raw(b"null")
    state: dict[str, Any] = {}
    output: msgspec.Raw = msgspec.Raw(b"[]")
    input: msgspec.Raw = msgspec.Raw(b"[]")
    before: list[str] = []


class _StoredRecord(NamedTuple):
    owner: str
    size: int
    expires_at: float
    value: bytes | None


_decode = msgspec.json.Decoder(Record).decode


class ResponseStore:
    """Records in memory. All methods raise ``StoreUnavailable``.

    Args:
        limits: How long, and how much.
        has_tenants: Whether tenants have a limit of their own.
        clock: Monotonic seconds.
    """

    keeps_values = True

    def __init__(
        self, limits: ResponsesSettings, *, has_tenants: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.ttl_seconds = limits.ttl_seconds
        self._most = {
            True: limits.max_mib * _MIB,
            False: (limits.max_tenant_mib if has_tenants else limits.max_mib) * _MIB,
        }
        self._clock = clock
        # The next one to expire first; a dict would be searched for it past all that have expired.
        self._kept: OrderedDict[str, _StoredRecord] = OrderedDict()
        self._sizes: dict[str, int] = {}  # by owner; of all under ""

    async def check(self, owner: str, size: int) -> None:
        """Check that so many bytes more could be kept now."""
        now = self._clock()
        while self._kept and (first := next(iter(self._kept.items())))[1].expires_at <= now:
            self._forget(first[0])
        for whose in ("", owner):
            if self._sizes.get(whose, 0) + size > self._most[not whose]:
                setting = "responses.max_tenant_mib" if whose else "responses.max_mib"
                problem = f"The stored responses take as much memory as they may ({setting}). Send all items in `input`"
                full = StoreUnavailable(f"{problem} with `store: false`, or delete some.", code="response_store_full")
                soonest = next((kept.expires_at for kept in self._kept.values() if whose in ("", kept.owner)), now)
                full.retry_after_seconds = min(int(soonest - now) + 1, 3600)
                raise full

    async def keep(self, owner: str, id_: str, record: Record) -> None:
        """Keep a record, in place of an earlier one."""
        name, value = f"{owner}/{id_}", msgspec.json.encode(record)
        size = len(value) + _OVERHEAD_BYTES
        before = self._kept.get(name)
        await self.check(owner, size - (0 if before is None else before.size))
        self._forget(name)
        here = value if self.keeps_values else None
        self._kept[name] = _StoredRecord(owner, size, self._clock() + self.ttl_seconds, here)
        self._count(owner, size)
        await self.write(name, value)

    async def find(self, owner: str, ids: Sequence[str]) -> list[Record | None]:
        """The records of some ids; None for unknown ones. Their time begins anew."""
        values = await self.read([f"{owner}/{id_}" for id_ in ids]) if ids else []
        return [None if value is None else _decode(value) for value in values]

    async def append(self, owner: str, conversation: str, id_: str, number: int) -> None:  # noqa: ARG002
        """Append a response to a conversation, behind a number of others. More may be appended at the same time."""
        turns = await self.turns(owner, conversation)
        await self.keep(owner, conversation, Record(before=[*turns, id_]))

    async def turns(self, owner: str, conversation: str) -> list[str]:
        """The ids of a conversation's responses, the oldest first."""
        (found,) = await self.find(owner, [conversation])
        return [] if found is None else found.before

    async def one(self, owner: str, id_: str, param: str | None = None) -> Record:
        """The record of an id.

        Raises:
            NotFound: it is unknown.
        """
        (record,) = await self.find(owner, [id_])
        if record is None:
            raise unknown(id_, param)
        return record

    async def remove(self, owner: str, id_: str) -> None:
        """Remove a record."""
        await self.write(f"{owner}/{id_}", None)
        self._forget(f"{owner}/{id_}")

    async def read(self, names: Sequence[str]) -> list[bytes | None]:
        """Values; None for missing ones. Their time begins anew."""
        values, now = [], self._clock()
        for name in names:
            if (kept := self._kept.get(name)) is not None and kept.expires_at > now:
                del self._kept[name]
                self._kept[name] = kept = kept._replace(expires_at=now + self.ttl_seconds)
            else:
                kept = None
            values.append(None if kept is None else kept.value)
        return values

    async def write(self, name: str, value: bytes | None) -> None:
        """Write a value to where it is kept, if that is not here, or remove it."""

    def _forget(self, name: str) -> None:
        if (kept := self._kept.pop(name, None)) is not None:
            self._count(kept.owner, -kept.size)

    def _count(self, owner: str, size: int) -> None:
        for whose in (owner, ""):
            self._sizes[whose] = total = self._sizes.get(whose, 0) + size
            if not total:
                del self._sizes[whose]


def unknown(id_: str, param: str | None) -> NotFound:
    """The error for an id that was never given, has expired, was deleted, or is another tenant's."""
    shown = f" {id_}" if id_ and id_.isascii() and id_.isprintable() and len(id_) < 80 else ""
    problem = f"The id{shown} is not known: it was not stored, has expired, was deleted, or belongs to another key."
    return NotFound(problem, param=param, code="not_found")
