"""Costs by cause in time buckets; each bucket keeps its largest causes."""

from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest
from typing import Any, Generic, Protocol, Self, TypeVar

from gateway.stats.time_buckets import Resolution, TimeBuckets

_OPEN_FACTOR = 4
"""An open bucket holds this many times its final number of causes: the largest are known only when it closes."""


class AddableCost(Protocol):
    """A cost that can be added to another."""

    def add(self, other: Self) -> None:
        """Add a newer cost."""
        ...


C = TypeVar("C")
T = TypeVar("T", bound=AddableCost)


class CostPacking(Generic[C, T]):
    """How the costs of a bucket are encoded and ranked.

    Args:
        pack: Encodes the costs of a bucket.
        unpack: Decodes them.
        empty: Makes a cost of zero.
        size: Sort key; the largest are kept.
    """

    def __init__(
        self,
        pack: Callable[[Any], bytes],
        unpack: Callable[[bytes], Sequence[tuple[C, T]]],
        empty: Callable[[], T],
        size: Callable[[T], Any],
    ) -> None:
        self.pack = pack
        self.unpack = unpack
        self.empty = empty
        self.size = size

    def largest(self, costs: Iterable[tuple[C, T]], limit: int) -> list[tuple[C, T]]:
        """The largest costs, at most ``limit``."""
        return nlargest(limit, costs, key=lambda each: self.size(each[1]))


class CostBucket(Generic[C, T]):
    """The costs of one time bucket; encoded unless the bucket is open."""

    def __init__(self, packing: CostPacking[C, T]) -> None:
        self._packing = packing
        self._open: dict[C, T] = {}
        self._packed = b""

    def add(self, cause: C, cost: T, limit: int) -> None:
        """Add a cost; a new cause is dropped once ``limit`` times ``_OPEN_FACTOR`` are held."""
        if self._packed:
            self._open, self._packed = dict(self._packing.unpack(self._packed)), b""
        if cause in self._open or len(self._open) < limit * _OPEN_FACTOR:
            self._open.setdefault(cause, self._packing.empty()).add(cost)

    def close(self, limit: int) -> None:
        """Encode the ``limit`` largest causes and drop the others."""
        if self._open:
            self._packed, self._open = self._packing.pack(self._packing.largest(self._open.items(), limit)), {}

    def items(self) -> Iterable[tuple[C, T]]:
        """Causes and their costs."""
        return self._packing.unpack(self._packed) if self._packed else self._open.items()


class CostBuckets(Generic[C, T]):
    """A ring of cost buckets of one resolution. The bucket written last is open.

    Args:
        resolution: Length and number of the buckets.
        packing: How costs are encoded and ranked.

    Attributes:
        ring: The buckets.
    """

    def __init__(self, resolution: Resolution, packing: CostPacking[C, T]) -> None:
        self.ring: TimeBuckets[CostBucket[C, T]] = TimeBuckets(resolution, lambda: CostBucket(packing))
        self._open: CostBucket[C, T] = CostBucket(packing)

    def add(self, cause: C, at: float, cost: T, limit: int) -> None:
        """Add a cost to the bucket of its time."""
        bucket = self.ring.bucket(at)
        if bucket is None:
            return
        if bucket is not self._open:
            self._open.close(limit)
            self._open = bucket
        bucket.add(cause, cost, limit)
