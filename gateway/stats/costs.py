"""Tolls by cause, over time: of each stretch of time the largest stay."""

from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest
from typing import Any, Generic, Protocol, Self, TypeVar

from gateway.stats.time_buckets import Resolution, TimeBuckets

_OPEN_FACTOR = 4
"""How many times as many are told apart while a bucket is open: the large ones are known only at its end."""


class AddableCost(Protocol):
    """A toll."""

    def add(self, other: Self) -> None:
        """Count another one, which is newer."""
        ...


C = TypeVar("C")
T = TypeVar("T", bound=AddableCost)


class CostPacking(Generic[C, T]):
    """How tolls are kept.

    Args:
        pack: Packs a bucket's.
        unpack: Unpacks them.
        empty: Makes a toll that counts nothing.
        size: By what they are large.
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

    def largest(self, tolls: Iterable[tuple[C, T]], most: int) -> list[tuple[C, T]]:
        """The largest of some."""
        return nlargest(most, tolls, key=lambda each: self.size(each[1]))


class CostBucket(Generic[C, T]):
    """The tolls of one stretch of time; packed while nothing is added."""

    def __init__(self, packing: CostPacking[C, T]) -> None:
        self._packing = packing
        self._open: dict[C, T] = {}
        self._packed = b""

    def add(self, cause: C, toll: T, most: int) -> None:
        """Count a toll."""
        if self._packed:
            self._open, self._packed = dict(self._packing.unpack(self._packed)), b""
        if cause in self._open or len(self._open) < most * _OPEN_FACTOR:
            self._open.setdefault(cause, self._packing.empty()).add(toll)

    def close(self, most: int) -> None:
        """Pack the largest, and forget the others."""
        if self._open:
            self._packed, self._open = self._packing.pack(self._packing.largest(self._open.items(), most)), {}

    def items(self) -> Iterable[tuple[C, T]]:
        """What is in it."""
        return self._packing.unpack(self._packed) if self._packed else self._open.items()


class CostBuckets(Generic[C, T]):
    """One resolution. The bucket that was written last is open.

    Args:
        resolution: Its buckets.
        packing: How tolls are kept.

    Attributes:
        ring: The buckets.
    """

    def __init__(self, resolution: Resolution, packing: CostPacking[C, T]) -> None:
        self.ring: TimeBuckets[CostBucket[C, T]] = TimeBuckets(resolution, lambda: CostBucket(packing))
        self._open: CostBucket[C, T] = CostBucket(packing)

    def add(self, cause: C, at: float, toll: T, most: int) -> None:
        """Count a toll at its time."""
        bucket = self.ring.bucket(at)
        if bucket is None:
            return
        if bucket is not self._open:
            self._open.close(most)
            self._open = bucket
        bucket.add(cause, toll, most)
