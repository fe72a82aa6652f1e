"""One HTTP exchange on plain ASGI: reading the body, noticing a disconnect, sending the answer.

Routing and request objects of a framework cost more than everything the gateway does to a request, so the generation
endpoints speak ASGI themselves. Protocol: https://asgi.readthedocs.io/en/latest/specs/www.html

The memory of bodies is limited per tenant and for the process: a request holds the bytes of its body and of the parsed
objects until it is over or no later stage reads them. A request that would exceed a limit is refused; requests in
flight are not affected.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from gateway.core.errors import BadRequest, ClientGone, GatewayError, PayloadTooLarge
from gateway.core.ids import TenantId

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_LONGEST_LENGTH = 20
"""Digits of the largest 64-bit number."""


async def read_body(
    receive: Receive, declared_bytes: int | None, limit: int, hold: Callable[[int], None] | None = None
) -> bytes:
    """The whole body.

    Args:
        receive: ASGI's.
        declared_bytes: ``content-length``, or None.
        limit: Most bytes accepted.
        hold: Called with the size of each piece as it arrives. What it raises ends the reading.

    Raises:
        PayloadTooLarge: it is larger; the rest is not read.
        ClientGone: the client left before it was complete.
    """
    if declared_bytes is not None and declared_bytes > limit:
        raise _too_large(limit)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        first: bytes = message.get("body", b"")
        if len(first) > limit:
            raise _too_large(limit)
        if hold is not None:
            hold(len(first))
        return first
    pieces: list[bytes] = []
    size = 0
    while True:
        if message["type"] != "http.request":
            raise ClientGone
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        if hold is not None:
            hold(len(piece))
        pieces.append(piece)
        if not message.get("more_body"):
            return b"".join(pieces)
        message = await receive()


def declared_length(value: bytes) -> int | None:
    """The number in a ``content-length`` header; None for no header, or for something else.

    Raises:
        BadRequest: it has more digits than a length can have, leading zeros included.
    """
    if not value.isdigit():
        return None
    if len(value) > _LONGEST_LENGTH:
        raise BadRequest(
            f"`content-length` has more than {_LONGEST_LENGTH} digits. Send the body's size in bytes, without leading"
            " zeros.",
            param="content-length",
            code="invalid_header",
        )
    return int(value)


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The body is larger than {limit} bytes. Send a shorter prompt, or raise server.max_body_bytes.",
        code="request_too_large",
    )


class ClientSink:
    """A ``Sink`` over ASGI. While it is open, a disconnect of the client cancels the task that made it."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._gone = False
        self._finished = False
        self._interrupted = False
        self.started = False
        self._owner = asyncio.current_task()
        watch = asyncio.get_running_loop().create_task(self._wait_for_disconnect(), name="client-watch")
        self._watch: asyncio.Task[None] | None = watch

    @property
    def gone(self) -> bool:
        """See ``Sink``."""
        return self._gone

    @property
    def interrupted(self) -> bool:
        """See ``Sink``."""
        return self._interrupted

    def interrupt(self) -> None:
        """The gateway is shutting down: have the owner end the answer now. Idempotent."""
        if not self._finished and not self._interrupted and self._owner is not None:
            self._interrupted = True
            self._owner.cancel()

    async def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """See ``Sink``."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, *, more: bool) -> None:
        """See ``Sink``."""
        if not more:
            self._finished = True
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    def close(self) -> None:
        """End the exchange: a later disconnect cancels no task."""
        self._finished = True
        # A cancelled task refers to its frame, and so to this object: only the garbage collector could free both, and
        # the whole request with them.
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._finished and self._owner is not None:
            self._gone = True
            self._owner.cancel()


class TenantMemoryFull(GatewayError):
    """A tenant's running requests hold as much memory as they may."""

    status = 429
    type = "rate_limit_error"
    retry_after_seconds = 1

    def __init__(self, tenant: TenantId, max_bytes: int) -> None:
        super().__init__(
            f"The running requests of tenant {tenant} hold as much memory as they may ({max_bytes} bytes,"
            " server.max_held_tenant_mib). Try again when one of them is over, or send smaller ones.",
            code="tenant_memory_full",
        )


class MemoryFull(GatewayError):
    """All running requests hold as much memory as they may."""

    status = 503
    type = "service_unavailable"
    retry_after_seconds = 1

    def __init__(self) -> None:
        super().__init__(
            "The requests that the gateway works on hold as much memory as they may (server.max_held_mib). Try again"
            " in a moment.",
            code="memory_full",
        )


class HeldBytes:
    """Counts the bytes that requests hold.

    Args:
        max_bytes: Limit of all requests together.
        max_tenant_bytes: Limit of one tenant's requests together.

    Attributes:
        total: Bytes held now.
    """

    def __init__(self, max_bytes: int, max_tenant_bytes: int) -> None:
        self.total = 0
        self._max_bytes = max_bytes
        self._max_tenant_bytes = max_tenant_bytes
        self._by_tenant: dict[TenantId, int] = {}

    def of_tenant(self, tenant: TenantId) -> int:
        """Bytes held now by the requests of a tenant."""
        return self._by_tenant.get(tenant, 0)

    def share(self, tenant: TenantId) -> "Share":
        """The account of a new request."""
        return Share(self, tenant)

    def _change(self, tenant: TenantId, size: int) -> None:
        self.total += size
        held = self._by_tenant.get(tenant, 0) + size
        if held:
            self._by_tenant[tenant] = held
        else:
            self._by_tenant.pop(tenant, None)

    def _check(self, tenant: TenantId, own: int, size: int) -> None:
        limit = min(self._max_bytes, self._max_tenant_bytes)
        if own + size > limit:
            raise PayloadTooLarge(
                f"The request takes more than {limit} bytes of memory, more than all requests of a tenant may"
                " (server.max_held_tenant_mib). Send fewer values or a shorter text.",
                code="request_too_large",
            )
        if self._max_tenant_bytes < self._max_bytes and self.of_tenant(tenant) + size > self._max_tenant_bytes:
            raise TenantMemoryFull(tenant, self._max_tenant_bytes)
        if self.total + size > self._max_bytes:
            raise MemoryFull


class Share:
    """The bytes that one request holds. Made by ``HeldBytes.share``.

    Attributes:
        size: Bytes.
    """

    __slots__ = ("_held", "_tenant", "size")

    def __init__(self, held: HeldBytes, tenant: TenantId) -> None:
        self.size = 0
        self._held = held
        self._tenant = tenant

    def add(self, size: int) -> None:
        """Hold more.

        Raises:
            PayloadTooLarge: the request alone would exceed a bound.
            TenantMemoryFull, MemoryFull: the request would exceed a bound together with others; it holds no more than
                before.
        """
        self._held._check(self._tenant, self.size, size)
        self._held._change(self._tenant, size)
        self.size += size

    def drop(self, size: int) -> None:
        """Hold ``size`` bytes less."""
        size = min(size, self.size)
        self._held._change(self._tenant, -size)
        self.size -= size

    def release(self) -> None:
        """Hold nothing any more. Idempotent."""
        self.drop(self.size)
