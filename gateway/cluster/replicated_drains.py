"""Replicates operators' drain orders between gateways."""

import msgspec

from gateway.fleet.drains import DrainOrder, Drains

_decoder = msgspec.msgpack.Decoder(list[DrainOrder])


class ReplicatedDrains:
    """Implements ``Replicated``. Every message contains all orders, so lost messages do not matter.

    Args:
        drains: The orders.
    """

    def __init__(self, drains: Drains) -> None:
        self._drains = drains
        self._last_sent: list[DrainOrder] = []

    def encode_changes(self, now: float, *, everything: bool) -> bytes | None:  # noqa: ARG002 - no clock needed
        """See ``Replicated``."""
        orders = list(self._drains.orders())
        if orders == self._last_sent and not (everything and orders):
            return None
        self._last_sent = orders
        return msgspec.msgpack.encode(orders)

    def receive(self, peer: str, message: bytes, now: float) -> None:  # noqa: ARG002
        """See ``Replicated``."""
        for order in _decoder.decode(message):
            self._drains.apply_order(order)

    def missed(self, peer: str, now: float) -> None:
        """See ``Replicated``. The next message contains everything."""

    def gone(self, peer: str, now: float) -> None:
        """See ``Replicated``. Its orders stay in force."""
