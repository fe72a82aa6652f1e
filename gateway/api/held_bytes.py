"""Counts the memory that requests hold, per tenant and for the process.

A request holds the bytes of its body and of the parsed objects until it is over or no later stage reads them. A request
that would exceed a limit is refused; requests in flight are not affected.
"""

from gateway.core.errors import GatewayError, PayloadTooLarge
from gateway.core.ids import TenantId


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
