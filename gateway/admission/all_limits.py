"""Limits of all tenants: those in the configuration, and a bounded number of others."""

from collections.abc import Iterator, Mapping

from gateway.admission.tenant_limits import Limits, TenantLimits
from gateway.core.bounded_cache import BoundedCache

MAX_UNLISTED = 10_000
"""Maximum number of idle tenants without a configuration entry whose counts are kept."""


class AllLimits:
    """Usage of the limits by tenant name.

    Args:
        listed: Limits of each tenant with a configuration entry.
        unlisted: Limits of each other tenant; None if there are no other tenants.
        max_unlisted: Number of idle other tenants to keep; the least recently used one is evicted, and its counts
            start at 0 again.

    Attributes:
        touched: Tenants whose usage may have changed since the dictionary was last replaced; None if no replication
            reads it. Bounded, so it may be incomplete.
    """

    def __init__(self, listed: Mapping[str, Limits], unlisted: Limits | None, max_unlisted: int = MAX_UNLISTED) -> None:
        self._max_unlisted = max_unlisted
        self._listed = {name: TenantLimits(name, limits) for name, limits in listed.items()}
        self._unlisted = unlisted
        self._busy: dict[str, TenantLimits] = {}
        self._gone: dict[str, TenantLimits] = {}
        self._idle: BoundedCache[str, TenantLimits] = BoundedCache(max_unlisted)
        self.touched: dict[str, TenantLimits] | None = None

    def replace(self, listed: Mapping[str, Limits], unlisted: Limits | None) -> None:
        """Replace tenants and limits. A remaining tenant keeps its usage, with or without an entry."""
        former = {**self._gone, **dict(self._idle.items()), **self._busy, **self._listed}
        self._unlisted = unlisted
        self._listed = {name: _changed(former.pop(name, None), name, limits) for name, limits in listed.items()}
        self._busy, self._gone = {}, {}
        self._idle.clear()
        if unlisted is None:
            # If such a tenant is configured again, its running requests still count.
            self._gone = {name: state for name, state in former.items() if state.running}
            return
        for name, state in former.items():
            state.change(unlisted)
            if state.running:
                self._busy[name] = state
            else:
                self._idle.put(name, state)

    def admit(self, name: str, now: float) -> TenantLimits:
        """Count a request of a tenant. Returns the tenant's usage.

        Raises:
            RateLimited: a limit is reached; nothing was counted.
        """
        state = self._listed.get(name) or self._busy.get(name)
        if state is not None:
            state.admit(now)
            self._touch(name, state)
            return state
        state = self._idle.pop(name) or TenantLimits(name, self._unlisted or Limits())
        try:
            state.admit(now)
        except BaseException:
            self._idle.put(name, state)
            raise
        self._busy[name] = state
        self._touch(name, state)
        return state

    def known(self) -> Iterator[tuple[str, TenantLimits]]:
        """All known tenants with their usage."""
        for states in (self._listed, self._busy, self._idle):
            yield from states.items()

    def find(self, name: str) -> TenantLimits | None:
        """Usage of a tenant; None if there is no such tenant."""
        state = self._listed.get(name) or self._busy.get(name) or self._idle.peek(name)
        if state is None and self._unlisted is not None:
            state = TenantLimits(name, self._unlisted)
            self._idle.put(name, state)
        return state

    def release(self, name: str, state: TenantLimits) -> None:
        """End an admitted request."""
        state.running -= 1
        self._touch(name, state)
        if not state.running and self._busy.get(name) is state:
            del self._busy[name]
            self._idle.put(name, state)

    def _touch(self, name: str, state: TenantLimits) -> None:
        touched = self.touched
        if touched is not None and state.limited and len(touched) < self._max_unlisted + len(self._listed):
            touched[name] = state


def _changed(state: TenantLimits | None, name: str, limits: Limits) -> TenantLimits:
    if state is None:
        return TenantLimits(name, limits)
    state.change(limits)
    return state
