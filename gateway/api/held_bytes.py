"""The memory that request bodies take, bounded for each tenant and for the process.

A request holds its bytes from when they arrive, and what they become when they are parsed, until it is over or nothing
can need them any more. What would exceed a bound is refused; what is held already goes on.
"""

from gateway.core.errors import GatewayError, PayloadTooLarge
from gateway.core.ids import TenantId


class TenantMemoryFull(GatewayError):
    """A tenant's running requests hold as much memory as they may."""

    status = 429
    type = "rate_limit_error"
    retry_after_seconds = 1

    def __init__(self, tenant: TenantId, most_bytes: int) -> None:
        super().__init__(
            f"The running requests of tenant {tenant} hold as much memory as they may ({most_bytes} bytes,"
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
    """Bytes that requests hold.

    Args:
        most: Of all requests.
        most_of_tenant: Of the requests of one tenant.

    Attributes:
        total: Held now.
    """

    def __init__(self, most: int, most_of_tenant: int) -> None:
        self.total = 0
        self._most = most
        self._most_of_tenant = most_of_tenant
        self._by_tenant: dict[TenantId, int] = {}

    def of_tenant(self, tenant: TenantId) -> int:
        """Held now by the requests of a tenant."""
        return self._by_tenant.get(tenant, 0)

    def share(self, tenant: TenantId) -> "Share":
        """The share of a new request."""
        return Share(self, tenant)

    def _change(self, tenant: TenantId, size: int) -> None:
        self.total += size
        held = self._by_tenant.get(tenant, 0) + size
        if held:
            self._by_tenant[tenant] = held
        else:
            self._by_tenant.pop(tenant, None)

    def _check(self, tenant: TenantId, own: int, size: int) -> None:
        most = min(self._most, self._most_of_tenant)
        if own + size > most:
            raise PayloadTooLarge(
                f"The request takes more than {most} bytes of memory, more than all requests of a tenant may"
                " (server.max_held_tenant_mib). Send fewer values or a shorter text.",
                code="request_too_large",
            )
        if self._most_of_tenant < self._most and self.of_tenant(tenant) + size > self._most_of_tenant:
            raise TenantMemoryFull(tenant, self._most_of_tenant)
        if self.total + size > self._most:
            raise MemoryFull


class Share:
    """What one request holds. Made by ``HeldBytes.share``.

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
        """Hold so much less."""
        size = min(size, self.size)
        self._held._change(self._tenant, -size)
        self.size -= size

    def release(self) -> None:
        """Hold nothing any more. May be repeated."""
        self.drop(self.size)
