"""Tells other gateways which replicas an operator ordered to be drained, and obeys what they were ordered."""

import msgspec

from gateway.fleet.drains import DrainOrder, Drains

_decoder = msgspec.msgpack.Decoder(list[DrainOrder])


class ReplicatedDrains:
    """Implements ``ports.Shared``. What is told is always all there is, so nothing depends on what was lost before, and
    a gateway that starts hears of the orders that are in force.

    Args:
        drains: The orders.
    """

    def __init__(self, drains: Drains) -> None:
        self._drains = drains
        self._told: list[DrainOrder] = []

    def encode_changes(self, now: float, *, everything: bool) -> bytes | None:  # noqa: ARG002 - it takes no time
        """See ``Replicated``."""
        orders = list(self._drains.orders())
        if orders == self._told and not (everything and orders):
            return None
        self._told = orders
        return msgspec.msgpack.encode(orders)

    def receive(self, peer: str, told: bytes, now: float) -> None:  # noqa: ARG002
        """See ``Replicated``."""
        for order in _decoder.decode(told):
            self._drains.heard(order)

    def missed(self, peer: str, now: float) -> None:
        """See ``Replicated``. The next message tells all."""

    def gone(self, peer: str, now: float) -> None:
        """See ``Replicated``. What was ordered there holds."""
