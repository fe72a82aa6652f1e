"""Replicates state of the fleet between gateways: in-flight loads of the ranks, and operators' drain orders.

Both implement ``Replicated``. Every message contains everything, so lost messages do not matter.
"""

from collections.abc import Callable, Iterator

from gateway.cluster.messages import DrainsMessage, LoadsMessage
from gateway.core.ids import ModelId
from gateway.fleet.drains import DrainOrder, Drains
from gateway.fleet.fleet import Fleet
from gateway.fleet.rank_load import NO_LOAD, PeerLoad


class ReplicatedLoads:
    """The in-flight load of each rank.

    Args:
        fleet: The replicas; loads of unknown replicas are ignored.
        freed: Called with the model whenever the load of one of its replicas decreased.
    """

    def __init__(self, fleet: Fleet, freed: Callable[[ModelId], None]) -> None:
        self._fleet = fleet
        self._freed = freed
        self._last_sent = LoadsMessage([])

    def changes(self, now: float, *, everything: bool) -> LoadsMessage | None:  # noqa: ARG002 - no clock needed
        """See ``Replicated``."""
        message = LoadsMessage(list(self._own()))
        if message == self._last_sent and not everything:
            return None
        self._last_sent = message
        return message

    def receive(self, peer: str, message: LoadsMessage, now: float) -> None:  # noqa: ARG002
        """See ``Replicated``."""
        loads = {(name, rank): PeerLoad(*load) for name, rank, *load in message.loads}
        freed = set()
        for replica in self._fleet.replicas:
            for rank, load in replica.loads.items():
                if load.take_peer(peer, loads.get((replica.id, rank), NO_LOAD)):
                    freed.add(replica.model)
        for model in freed:
            self._freed(model)

    def missed(self, peer: str, now: float) -> None:
        """See ``Replicated``. The next message contains everything."""

    def gone(self, peer: str, now: float) -> None:  # noqa: ARG002
        """See ``Replicated``. Its requests still count in the engines' metrics, as foreign load."""
        for replica in self._fleet.replicas:
            for load in replica.loads.values():
                load.forget_peer(peer)

    def _own(self) -> Iterator[tuple[str, int, int, int, int]]:
        for replica in self._fleet.replicas:
            for rank, load in replica.loads.items():
                tokens = load.prefills.tokens
                if load.sequences or tokens:
                    yield replica.id, rank, tokens, load.sequences, load.prefilling


class ReplicatedDrains:
    """Operators' drain orders.

    Args:
        drains: The orders.
    """

    def __init__(self, drains: Drains) -> None:
        self._drains = drains
        self._last_sent: list[DrainOrder] = []

    def changes(self, now: float, *, everything: bool) -> DrainsMessage | None:  # noqa: ARG002 - no clock needed
        """See ``Replicated``."""
        orders = list(self._drains.orders())
        if orders == self._last_sent and not (everything and orders):
            return None
        self._last_sent = orders
        return DrainsMessage(orders)

    def receive(self, peer: str, message: DrainsMessage, now: float) -> None:  # noqa: ARG002
        """See ``Replicated``."""
        for order in message.orders:
            self._drains.apply_order(order)

    def missed(self, peer: str, now: float) -> None:
        """See ``Replicated``. The next message contains everything."""

    def gone(self, peer: str, now: float) -> None:
        """See ``Replicated``. Its orders stay in force."""
