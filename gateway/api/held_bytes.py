"""Counts the memory that requests hold, per tenant and for the process.

A request holds the bytes of its body and of the parsed objects until it is over or no later stage reads them. A request
that would exceed a limit is refused; requests in flight are not affected.
"""

import msgspec

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
        by_tenant: Bytes held now by the requests of each tenant.
        max_bytes: The same.
        max_tenant_bytes: The same, at most ``max_bytes``.
    """

    def __init__(self, max_bytes: int, max_tenant_bytes: int) -> None:
        self.total = 0
        self.by_tenant: dict[TenantId, int] = {}
        self.max_bytes = max_bytes
        self.max_tenant_bytes = min(max_bytes, max_tenant_bytes)

    def refusal(self, tenant: TenantId, own: int, of_tenant: int) -> GatewayError:
        """The error for a request that exceeds a limit.

        Args:
            tenant: Its tenant.
            own: Bytes that it would hold.
            of_tenant: Bytes that all requests of its tenant would hold.
        """
        limit = self.max_tenant_bytes
        if own > limit:
            return PayloadTooLarge(
                f"The request takes more than {limit} bytes of memory, more than all requests of a tenant may"
                " (server.max_held_tenant_mib). Send fewer values or a shorter text.",
                code="request_too_large",
            )
        if of_tenant > limit and limit < self.max_bytes:
            return TenantMemoryFull(tenant, limit)
        return MemoryFull()


class Share(msgspec.Struct, eq=False):
    """The bytes that one request holds.

    Attributes:
        held: Counts those of all requests.
        tenant: The request's tenant.
        size: Bytes.
    """

    held: HeldBytes
    tenant: TenantId
    size: int = 0

    def add(self, size: int) -> None:
        """Hold more.

        Raises:
            PayloadTooLarge: the request alone would exceed a bound.
            TenantMemoryFull, MemoryFull: the request would exceed a bound together with others; it holds no more than
                before.
        """
        held, tenant = self.held, self.tenant
        total = held.total + size
        of_tenant = held.by_tenant.get(tenant, 0) + size
        if total > held.max_bytes or of_tenant > held.max_tenant_bytes:
            raise held.refusal(tenant, self.size + size, of_tenant)
        held.total = total
        held.by_tenant[tenant] = of_tenant
        self.size += size

    def drop(self, size: int) -> None:
        """Hold ``size`` bytes less, or nothing any more if it holds less than that."""
        held, tenant = self.held, self.tenant
        size = min(size, self.size)
        self.size -= size
        held.total -= size
        of_tenant = held.by_tenant.get(tenant, 0) - size
        if of_tenant:
            held.by_tenant[tenant] = of_tenant
        else:
            held.by_tenant.pop(tenant, None)
