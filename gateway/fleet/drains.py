"""Replicas that are to get no more requests: by the configuration, or by order of an operator."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from gateway.core.errors import NotFound
from gateway.core.ids import ReplicaId
from gateway.core.replica_state import DrainCause
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica import Replica

_SHOWN_CHARS = 100

_LATER = 0.001
"""Seconds by which an order is later than the one before it, also where the clock of whoever gave that was ahead."""


class DrainOrder(NamedTuple):
    """What an operator ordered last for one replica.

    Attributes:
        replica: Its id.
        on: Whether it is to get no more requests.
        at: Unix time; of two orders for one replica the later one holds.
    """

    replica: str
    on: bool
    at: float


class Drains:
    """Implements ``FleetDesk``.

    Configuration and orders count side by side: a replica drains as long as one of them says so. An order is forgotten
    when the gateway ends, and so is one for a replica that leaves the fleet.

    Args:
        fleet: The replicas.
        on_change: Told of every replica that begins to drain, or goes on as before.
        everywhere: Whether other gateways hear of orders.
        clock: Unix time.
    """

    def __init__(
        self,
        fleet: Fleet,
        on_change: Callable[[Replica], None],
        *,
        everywhere: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._fleet = fleet
        self._on_change = on_change
        self._everywhere = everywhere
        self._clock = clock

    def drain(self, replica: str, *, on: bool) -> Mapping[str, object]:
        """See ``FleetDesk``."""
        known = self._fleet.find(ReplicaId(replica))
        if known is None:
            names = ", ".join(each.id for each in self._fleet.replicas)
            raise NotFound(
                f"There is no replica {replica[:_SHOWN_CHARS]!r}. There is: {names}.",
                param="replica",
                code="unknown_replica",
            )
        now, before = self._clock(), known.drain_ordered_at
        self._obey(known, on=on, at=now if before is None else max(now, before + _LATER))
        return {
            "replica": known.id,
            "draining": known.draining,
            "because": sorted(known.drain_causes),
            "requests": known.requests,
            "everywhere": self._everywhere,
        }

    def heard(self, order: DrainOrder) -> None:
        """An order was given elsewhere, or before this gateway was there; one for another replica is passed over."""
        known = self._fleet.find(ReplicaId(order.replica))
        if known is None:
            return
        before = known.drain_ordered_at
        # Of two at the same moment one has to be the later one, and the same everywhere.
        if before is None or (order.at, order.on) > (before, _is_ordered(known)):
            self._obey(known, on=order.on, at=order.at)

    def orders(self) -> Iterator[DrainOrder]:
        """The last order for every replica for which there was one."""
        for each in self._fleet.replicas:
            if each.drain_ordered_at is not None:
                yield DrainOrder(each.id, _is_ordered(each), each.drain_ordered_at)

    def set(self, replica: Replica, cause: DrainCause, *, on: bool) -> None:
        """Begin to drain a replica for a cause, or end that."""
        if replica.drain(cause, on=on):
            self._on_change(replica)

    def _obey(self, replica: Replica, *, on: bool, at: float) -> None:
        replica.drain_ordered_at = at
        self.set(replica, DrainCause.OPERATOR, on=on)


def _is_ordered(replica: Replica) -> bool:
    return DrainCause.OPERATOR in replica.drain_causes
