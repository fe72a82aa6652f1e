"""Whose turn it is: fair between tenants by what their requests make replicas compute. No I/O, no clock.

Start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996) with tenants as flows. Every tenant has a start, in tokens
per share; the one with the least is next, and what it is served moves its start on. The virtual time is the start of
the latest that was served, and no start counts for less: who comes, or comes back, competes from there and has nothing
to claim for the time in which it did not ask, or in which it waited for a replica that was busy while others were not.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from operator import itemgetter

from gateway.core.ids import Target

SEQUENCE_TOKENS = 64
"""What a request counts beyond the tokens of its prompt that have to be computed: its answer is work, too, and one
whose prompt is cached would otherwise be free."""

_MOST_PAST = 4096


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """A request that waits.

    Attributes:
        tenant: Whose it is.
        share: The tenant's weight.
        target: Where it would go, as far as was known when it was placed last.
        tokens: Tokens of its prompt that would have to be computed there.
        again: Whether a replica failed it: it goes before the tenant's other ones, and is not counted twice.
        number: Its place by arrival.
    """

    tenant: str
    share: float
    target: Target
    tokens: int
    again: bool = False
    number: int = 0

    @property
    def cost(self) -> int:
        """What it counts."""
        return self.tokens + SEQUENCE_TOKENS


@dataclass(slots=True, eq=False)
class _Tenant:
    """What waits of one tenant, in order.

    Attributes:
        share: Its weight.
        start: When its next request's turn is, in virtual time.
        cost: Sum of what waits.
        at: Tokens that wait, by target.
        waiting: The requests, by their numbers.
    """

    share: float
    start: float
    cost: int = 0
    at: dict[Target, int] = field(default_factory=dict)
    waiting: dict[int, WaitingRequest] = field(default_factory=dict)


class FairOrder:
    """All that waits for one model."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._past: dict[str, float] = {}
        """Starts of tenants that were served lately and have nothing waiting now."""
        self._wanted: dict[Target, int] = {}
        """How many want each target."""
        self._time = 0.0
        self._numbers = 0
        self._length = 0

    def __len__(self) -> int:
        """Requests that wait."""
        return self._length

    def wanted(self) -> Collection[Target]:
        """Targets that anybody waits for."""
        return self._wanted.keys()

    def add(self, waiting: WaitingRequest) -> None:
        """One more, behind those of its tenant; in front of them if it comes again."""
        self._numbers += 1
        waiting.number = self._numbers
        tenant = self._tenants.get(waiting.tenant)
        if tenant is None:
            start = self._past.pop(waiting.tenant, self._time)
            tenant = self._tenants[waiting.tenant] = _Tenant(waiting.share, start)
        tenant.share = waiting.share
        if waiting.again:
            tenant.waiting = {waiting.number: waiting} | tenant.waiting
        else:
            tenant.waiting[waiting.number] = waiting
        self._length += 1
        self._count(tenant, waiting, 1)

    def remove(self, waiting: WaitingRequest) -> bool:
        """One less; returns whether it was there."""
        tenant = self._tenants.get(waiting.tenant)
        if tenant is None or tenant.waiting.pop(waiting.number, None) is None:
            return False
        self._length -= 1
        self._count(tenant, waiting, -1)
        if not tenant.waiting:
            del self._tenants[waiting.tenant]
            if tenant.start > self._time:
                self._past[waiting.tenant] = tenant.start
            if len(self._past) > _MOST_PAST:
                # Time does not move while all who come are new. Those go first that would wait least.
                self._past = dict(nlargest(_MOST_PAST // 2, self._past.items(), key=itemgetter(1)))
        return True

    def serve(self, waiting: WaitingRequest) -> None:
        """It is sent now: take it out, and count it."""
        tenant = self._tenants[waiting.tenant]
        self._time = max(tenant.start, self._time)
        tenant.start = self._time + (0 if waiting.again else waiting.cost / tenant.share)
        self.remove(waiting)

    def move(self, waiting: WaitingRequest, target: Target, tokens: int) -> None:
        """It was placed anew."""
        tenant = self._tenants[waiting.tenant]
        self._count(tenant, waiting, -1)
        waiting.target, waiting.tokens = target, tokens
        self._count(tenant, waiting, 1)

    def in_turn(
        self, wanted: Callable[[WaitingRequest], bool]
    ) -> Iterator[tuple[WaitingRequest, Mapping[Target, int]]]:
        """Requests in the order in which they should go, with the tokens that wait in front of each, by target.

        Those that come may be moved meanwhile, but once one was taken out, ask anew.

        Args:
            wanted: Which ones.
        """
        for tenant in sorted(self._tenants.values(), key=lambda tenant: (tenant.start, next(iter(tenant.waiting)))):
            before: dict[Target, int] = {}
            cost = 0
            for waiting in tenant.waiting.values():
                if wanted(waiting):
                    yield waiting, self._in_front(tenant, before, cost)
                before[waiting.target] = before.get(waiting.target, 0) + waiting.tokens
                cost += waiting.cost

    def ahead(self, tenant: str) -> Mapping[Target, int]:
        """Tokens that wait in front of a tenant's next request, by target."""
        own = self._tenants.get(tenant)
        return self._in_front(own, own.at, own.cost) if own is not None else {}

    def cost_ahead(self, waiting: WaitingRequest) -> float:
        """What should be served before the newest request of a tenant is done, all that waits of the tenant included.

        Args:
            waiting: Any of its requests; need not be in the queue.
        """
        own = self._tenants.get(waiting.tenant)
        per_share = own.cost / own.share if own is not None else waiting.cost / waiting.share
        return sum(min(tenant.cost, per_share * tenant.share) for tenant in self._tenants.values())

    def newest_of_heaviest(self) -> WaitingRequest:
        """Who is refused if somebody has to be: the newest request of the tenant with most waiting for its share."""
        heaviest = max(
            self._tenants.values(), key=lambda tenant: (tenant.cost / tenant.share, next(reversed(tenant.waiting)))
        )
        return next(reversed(heaviest.waiting.values()))

    def _in_front(self, tenant: _Tenant, before: Mapping[Target, int], cost: int) -> Mapping[Target, int]:
        """With ``before`` of its own in front of it, so much of the others' will be served before it, too."""
        others = [other for other in self._tenants.values() if other is not tenant]
        waiting = sum(other.cost for other in others)
        if not cost or not waiting:
            return dict(before)
        part = min(1.0, cost / tenant.share * sum(other.share for other in others) / waiting)
        found = dict(before)
        for other in others:
            for target, tokens in other.at.items():
                found[target] = found.get(target, 0) + round(part * tokens)
        return found

    def _count(self, tenant: _Tenant, waiting: WaitingRequest, sign: int) -> None:
        tenant.cost += sign * waiting.cost
        _add(tenant.at, waiting.target, sign * waiting.tokens)
        _add(self._wanted, waiting.target, sign)


def _add(counts: dict[Target, int], target: Target, count: int) -> None:
    """Add to one of the counts; there are none of 0."""
    left = counts.get(target, 0) + count
    if left:
        counts[target] = left
    else:
        counts.pop(target, None)
