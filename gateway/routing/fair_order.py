"""Order and drain rate of a queue: fair between tenants by the tokens to prefill. No I/O, no clock.

Start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996) with tenants as flows. Every tenant has a start tag, in
tokens per share; the tenant with the smallest is next, and the cost of each served request is added to it. The virtual
time is the start tag of the last served request and a lower bound of all start tags: a tenant that arrives or returns
gets no credit for the time in which it sent nothing, or waited for a busy replica while others were not.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from operator import itemgetter

from gateway.core.ids import Target

_WINDOW_SECONDS = 10.0
_ENOUGH_SECONDS = 1.0
"""A shorter measurement is not used."""

_SEVERAL = 3
"""Requests in the window from which on a further one is bounded by their sum."""


class DrainRate:
    """Estimates how fast a queue drains, from the tokens that left it in the last seconds.

    Args:
        now: Start of the measurement, in monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        self._began = now
        self._left: deque[tuple[float, int]] = deque()
        self._tokens = 0

    def left(self, now: float, tokens: int) -> None:
        """A request of ``tokens`` left the queue to be computed.

        It counts at most as much as all before it in the window: one huge request does not represent the others.
        """
        self._forget(now)
        if len(self._left) >= _SEVERAL:
            tokens = min(tokens, self._tokens)
        self._left.append((now, tokens))
        self._tokens += tokens

    def seconds(self, now: float, tokens: float, expected: float) -> float:
        """Expected seconds until ``tokens`` have left.

        Args:
            now: Monotonic seconds.
            tokens: How many.
            expected: Tokens per second, used until a rate was measured; above 0.
        """
        self._forget(now)
        measured = min(now - self._began, _WINDOW_SECONDS)
        if self._tokens and measured >= _ENOUGH_SECONDS:
            return tokens * measured / self._tokens
        # A queue that has not moved for this long will not drain sooner.
        return max(tokens / expected, measured)

    def _forget(self, now: float) -> None:
        while self._left and self._left[0][0] <= now - _WINDOW_SECONDS:
            self._tokens -= self._left.popleft()[1]


SEQUENCE_TOKENS = 64
"""Cost of a request in addition to its uncached prompt tokens: decoding is work, too, and a request with a cached
prompt would otherwise cost nothing."""

_MAX_PAST = 4096


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """A waiting request.

    Attributes:
        tenant: Its tenant.
        share: The tenant's weight.
        target: Its target at the last placement.
        tokens: Uncached prompt tokens at that target.
        again: Whether it is a retry: it is served before the tenant's other requests and is not charged twice.
        number: Sequence number of its arrival.
    """

    tenant: str
    share: float
    target: Target
    tokens: int
    again: bool = False
    number: int = 0

    @property
    def cost(self) -> int:
        """Tokens charged for it."""
        return self.tokens + SEQUENCE_TOKENS


@dataclass(slots=True, eq=False)
class _Tenant:
    """The waiting requests of one tenant, in order.

    Attributes:
        share: Its weight.
        start: Start tag of its next request, in virtual time.
        cost: Sum of the costs of its waiting requests.
        at: Waiting tokens by target.
        waiting: The requests, by their numbers.
    """

    share: float
    start: float
    cost: int = 0
    at: dict[Target, int] = field(default_factory=dict)
    waiting: dict[int, WaitingRequest] = field(default_factory=dict)


class FairOrder:
    """All requests that wait for one model."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._past: dict[str, float] = {}
        """Start tags of tenants that were served recently and have no waiting request."""
        self._wanted: dict[Target, int] = {}
        """Waiting requests per target."""
        self._time = 0.0
        self._numbers = 0
        self._length = 0

    def __len__(self) -> int:
        """Number of waiting requests."""
        return self._length

    def wanted(self) -> Collection[Target]:
        """Targets that a request waits for."""
        return self._wanted.keys()

    def add(self, waiting: WaitingRequest) -> None:
        """Add a request, behind those of its tenant; a retry in front of them."""
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
        """Remove a request; returns whether it was waiting."""
        tenant = self._tenants.get(waiting.tenant)
        if tenant is None or tenant.waiting.pop(waiting.number, None) is None:
            return False
        self._length -= 1
        self._count(tenant, waiting, -1)
        if not tenant.waiting:
            del self._tenants[waiting.tenant]
            if tenant.start > self._time:
                self._past[waiting.tenant] = tenant.start
            if len(self._past) > _MAX_PAST:
                # Virtual time does not advance while all tenants are new. Drop the smallest start tags.
                self._past = dict(nlargest(_MAX_PAST // 2, self._past.items(), key=itemgetter(1)))
        return True

    def serve(self, waiting: WaitingRequest) -> None:
        """Remove a request that is sent now, and charge its tenant."""
        tenant = self._tenants[waiting.tenant]
        self._time = max(tenant.start, self._time)
        tenant.start = self._time + (0 if waiting.again else waiting.cost / tenant.share)
        self.remove(waiting)

    def move(self, waiting: WaitingRequest, target: Target, tokens: int) -> None:
        """Record a new placement of a request."""
        tenant = self._tenants[waiting.tenant]
        self._count(tenant, waiting, -1)
        waiting.target, waiting.tokens = target, tokens
        self._count(tenant, waiting, 1)

    def in_turn(
        self, wanted: Callable[[WaitingRequest], bool]
    ) -> Iterator[tuple[WaitingRequest, Mapping[Target, int]]]:
        """Requests in the order of service, with the tokens that wait in front of each, by target.

        Requests may be moved during the iteration; after one was removed, the iterator is invalid.

        Args:
            wanted: Selects the requests.
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
        """Tokens to be served until all waiting requests of a tenant are done, those of others included.

        Args:
            waiting: Any request of the tenant; need not be in the queue.
        """
        own = self._tenants.get(waiting.tenant)
        per_share = own.cost / own.share if own is not None else waiting.cost / waiting.share
        return sum(min(tenant.cost, per_share * tenant.share) for tenant in self._tenants.values())

    def newest_of_heaviest(self) -> WaitingRequest:
        """The request to reject when the queue is full: the newest of the tenant with the highest cost per share."""
        heaviest = max(
            self._tenants.values(), key=lambda tenant: (tenant.cost / tenant.share, next(reversed(tenant.waiting)))
        )
        return next(reversed(heaviest.waiting.values()))

    def _in_front(self, tenant: _Tenant, before: Mapping[Target, int], cost: int) -> Mapping[Target, int]:
        """Tokens in front of a request by target: ``before`` of its tenant, and those of others served earlier."""
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
    """Add to a count; counts of 0 are removed."""
    left = counts.get(target, 0) + count
    if left:
        counts[target] = left
    else:
        counts.pop(target, None)
