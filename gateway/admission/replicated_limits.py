"""Limits that hold at several gateways together.

Every gateway tells what each tenant has taken there, and counts what it hears as taken at that moment. So nobody waits
for anybody: a gateway lets through no more than the limit and what was taken elsewhere since it was told last.
"""

import msgspec

from gateway.admission.all_limits import AllLimits
from gateway.admission.tenant_limits import Taken


class _LimitsMessage(msgspec.Struct, array_like=True):
    """One message.

    Attributes:
        complete: Whether tenants that are not in it have taken nothing.
        tenants: Name, requests, tokens, and requests running.
    """

    complete: bool
    tenants: list[tuple[str, int, int, int]]


_decoder = msgspec.msgpack.Decoder(_LimitsMessage)


class ReplicatedLimits:
    """Implements ``ports.Shared``.

    Args:
        limits: What tenants have taken.
    """

    def __init__(self, limits: AllLimits) -> None:
        self._limits = limits
        self._told: dict[str, Taken] = {}
        self._complete: set[str] = set()

    def encode_changes(self, now: float, *, everything: bool) -> bytes | None:  # noqa: ARG002 - it is no longer than it takes
        """See ``Replicated``."""
        touched = self._limits.touched or {}
        states = self._limits.known() if everything else iter(touched.items())
        found = ((name, state.taken) for name, state in states if state.limited)
        told = {name: taken for name, taken in found if taken != (Taken() if everything else self._told.get(name))}
        # Those with requests running take more without being touched: their prompts' tokens.
        self._limits.touched = {name: state for name, state in touched.items() if state.running}
        self._told = {name: taken for name, taken in (self._told | told).items() if name in self._limits.touched}
        if not told and not everything:
            return None
        return msgspec.msgpack.encode(_LimitsMessage(everything, [(name, *taken) for name, taken in told.items()]))

    def receive(self, peer: str, told: bytes, now: float) -> None:
        """See ``Replicated``."""
        message = _decoder.decode(told)
        for name, *numbers in message.tenants:
            state = self._limits.find(name)
            if state is not None and state.limited:
                state.take_elsewhere(peer, Taken(*numbers), now, counts=peer in self._complete)
        if message.complete:
            self._complete.add(peer)

    def missed(self, peer: str, now: float) -> None:
        """See ``Replicated``. The next message says how much it is all together."""

    def gone(self, peer: str, now: float) -> None:  # noqa: ARG002
        """See ``Replicated``. What it has taken stays taken; what runs there is taken to be over."""
        self._complete.discard(peer)
        for _, state in self._limits.known():
            state.forget_elsewhere(peer)
