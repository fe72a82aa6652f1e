"""Replicates the usage of rate limits between gateways.

Every gateway publishes the usage of its tenants, and counts received usage at the time of receipt. No request waits for
another gateway: a gateway may exceed a limit by what was used elsewhere since the last message.
"""

import msgspec

from gateway.admission.tenant_limits import AllLimits, LimitUsage


class LimitsMessage(msgspec.Struct, array_like=True):
    """Usage of tenants at the sending gateway.

    Attributes:
        complete: Whether the usage of all other tenants is 0.
        tenants: Name, requests, tokens, and running requests.
    """

    complete: bool
    tenants: list[tuple[str, int, int, int]]


class ReplicatedLimits:
    """Implements ``Replicated``.

    Args:
        limits: Usage of the tenants.
    """

    def __init__(self, limits: AllLimits) -> None:
        self._limits = limits
        self._sent: dict[str, LimitUsage] = {}
        self._complete: set[str] = set()

    def changes(self, now: float, *, everything: bool) -> LimitsMessage | None:  # noqa: ARG002 - no deadline
        """See ``Replicated``."""
        touched = self._limits.touched or {}
        states = self._limits.known() if everything else iter(touched.items())
        found = ((name, state.taken) for name, state in states if state.limited)
        changed = {
            name: taken for name, taken in found if taken != (LimitUsage() if everything else self._sent.get(name))
        }
        # Running requests may still be charged for tokens without touching the tenant again.
        self._limits.touched = {name: state for name, state in touched.items() if state.running}
        self._sent = {name: taken for name, taken in (self._sent | changed).items() if name in self._limits.touched}
        if not changed and not everything:
            return None
        return LimitsMessage(everything, [(name, *taken) for name, taken in changed.items()])

    def receive(self, peer: str, message: LimitsMessage, now: float) -> None:
        """See ``Replicated``."""
        for name, *numbers in message.tenants:
            state = self._limits.find(name)
            if state is not None and state.limited:
                state.count_elsewhere(peer, LimitUsage(*numbers), now, counts=peer in self._complete)
        if message.complete:
            self._complete.add(peer)

    def missed(self, peer: str, now: float) -> None:
        """See ``Replicated``. Nothing to do: messages contain totals."""

    def gone(self, peer: str, now: float) -> None:  # noqa: ARG002
        """See ``Replicated``. Its usage stays counted; its running requests count as ended."""
        self._complete.discard(peer)
        for _, state in self._limits.known():
            state.drop_elsewhere(peer)
