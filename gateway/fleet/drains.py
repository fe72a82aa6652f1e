"""Draining of replicas: by the configuration, or by order of an operator."""

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
"""Least seconds between two orders, so that a new order is later even if the clock of the previous one was ahead."""


class DrainOrder(NamedTuple):
    """The last order of an operator for one replica.

    Attributes:
        replica: Its id.
        on: Whether it is to be drained.
        at: Unix time; of two orders for one replica the later one is valid.
    """

    replica: str
    on: bool
    at: float


class Drains:
    """Drains replicas, by orders of operators.

    A replica drains while the configuration or an order says so. Orders are lost when the gateway ends, and when their
    replica leaves the fleet.

    Args:
        fleet: The replicas.
        on_change: Called with every replica that starts or stops draining.
        everywhere: Whether orders are replicated to other gateways.
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
        """Begin or end the drain of a replica; returns its new state, JSON-ready.

        Args:
            replica: Its id.
            on: Whether to drain it.

        Raises:
            NotFound: there is no such replica.
        """
        known = self._fleet.find(ReplicaId(replica))
        if known is None:
            names = ", ".join(each.id for each in self._fleet.replicas)
            raise NotFound(
                f"There is no replica {replica[:_SHOWN_CHARS]!r}. There is: {names}.",
                param="replica",
                code="unknown_replica",
            )
        now, before = self._clock(), known.drain_ordered_at
        self._apply(known, on=on, at=now if before is None else max(now, before + _LATER))
        return {
            "replica": known.id,
            "draining": known.draining,
            "because": sorted(known.drain_causes),
            "requests": known.requests,
            "everywhere": self._everywhere,
        }

    def apply_order(self, order: DrainOrder) -> None:
        """Apply an order that was given at another gateway; one for an unknown replica is ignored."""
        known = self._fleet.find(ReplicaId(order.replica))
        if known is None:
            return
        before = known.drain_ordered_at
        # Of two orders with the same time, every gateway has to choose the same.
        if before is None or (order.at, order.on) > (before, _is_ordered(known)):
            self._apply(known, on=order.on, at=order.at)

    def orders(self) -> Iterator[DrainOrder]:
        """The last order of every replica that has one."""
        for each in self._fleet.replicas:
            if each.drain_ordered_at is not None:
                yield DrainOrder(each.id, _is_ordered(each), each.drain_ordered_at)

    def set(self, replica: Replica, cause: DrainCause, *, on: bool) -> None:
        """Start or stop draining a replica for a cause."""
        if replica.drain(cause, on=on):
            self._on_change(replica)

    def _apply(self, replica: Replica, *, on: bool, at: float) -> None:
        replica.drain_ordered_at = at
        self.set(replica, DrainCause.OPERATOR, on=on)


def _is_ordered(replica: Replica) -> bool:
    return DrainCause.OPERATOR in replica.drain_causes
