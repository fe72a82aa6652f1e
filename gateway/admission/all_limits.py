"""The limits of all tenants: those in the configuration, and a bounded number of those that are not."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping

from gateway.admission.tenant_limits import Limits, TenantLimits

MOST_UNLISTED = 10_000
"""Tenants without an entry of their own whose use of their limits is remembered while they have no request running."""


class AllLimits:
    """From a tenant's name to what it has taken.

    Args:
        listed: Limits of each tenant that has an entry.
        unlisted: Limits of each tenant that has none; None if there are no such tenants.
        most_unlisted: How many of those are remembered, beyond the ones with requests running. The one that was here
            longest ago is forgotten first, and begins anew.

    Attributes:
        touched: Tenants that may have taken something since somebody emptied this; None where nobody does. Bounded: it
            may lack some.
    """

    def __init__(
        self, listed: Mapping[str, Limits], unlisted: Limits | None, most_unlisted: int = MOST_UNLISTED
    ) -> None:
        self._most_unlisted = most_unlisted
        self._listed = {name: TenantLimits(name, limits) for name, limits in listed.items()}
        self._unlisted = unlisted
        self._busy: dict[str, TenantLimits] = {}
        self._gone: dict[str, TenantLimits] = {}
        self._idle: OrderedDict[str, TenantLimits] = OrderedDict()
        self.touched: dict[str, TenantLimits] | None = None

    def replace(self, listed: Mapping[str, Limits], unlisted: Limits | None) -> None:
        """Other tenants, other limits. A tenant that stays keeps what it has taken, with its own entry or without."""
        former = {**self._gone, **self._idle, **self._busy, **self._listed}
        self._unlisted = unlisted
        self._listed = {name: _changed(former.pop(name, None), name, limits) for name, limits in listed.items()}
        self._busy, self._idle, self._gone = {}, OrderedDict(), {}
        if unlisted is None:
            # Should they come back before their requests are over, these still count.
            self._gone = {name: state for name, state in former.items() if state.running}
            return
        for name, state in former.items():
            state.change(unlisted)
            if state.running:
                self._busy[name] = state
            else:
                self._rest(name, state)

    def admit(self, name: str, now: float) -> TenantLimits:
        """Count one more request of a tenant. Returns what it has taken.

        Raises:
            RateLimited: It has none left; nothing was counted.
        """
        state = self._listed.get(name) or self._busy.get(name)
        if state is not None:
            state.admit(now)
            self._touch(name, state)
            return state
        state = self._idle.pop(name, None) or TenantLimits(name, self._unlisted or Limits())
        try:
            state.admit(now)
        except BaseException:
            self._rest(name, state)
            raise
        self._busy[name] = state
        self._touch(name, state)
        return state

    def known(self) -> Iterator[tuple[str, TenantLimits]]:
        """All tenants that are remembered, and what they have taken."""
        for states in (self._listed, self._busy, self._idle):
            yield from states.items()

    def find(self, name: str) -> TenantLimits | None:
        """What a tenant has taken; None if there is no such tenant."""
        state = self._listed.get(name) or self._busy.get(name) or self._idle.get(name)
        if state is None and self._unlisted is not None:
            state = TenantLimits(name, self._unlisted)
            self._rest(name, state)
        return state

    def release(self, name: str, state: TenantLimits) -> None:
        """A request that was admitted is over."""
        state.running -= 1
        self._touch(name, state)
        if not state.running and self._busy.get(name) is state:
            del self._busy[name]
            self._rest(name, state)

    def _touch(self, name: str, state: TenantLimits) -> None:
        touched = self.touched
        if touched is not None and state.limited and len(touched) < self._most_unlisted + len(self._listed):
            touched[name] = state

    def _rest(self, name: str, state: TenantLimits) -> None:
        self._idle[name] = state
        if len(self._idle) > self._most_unlisted:
            self._idle.popitem(last=False)


def _changed(state: TenantLimits | None, name: str, limits: Limits) -> TenantLimits:
    if state is None:
        return TenantLimits(name, limits)
    state.change(limits)
    return state
