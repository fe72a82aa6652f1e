"""Time windows of queries, and the rings of time buckets they are read from.

Every value is counted in all rings. The ring of a window's resolution defines where the window begins: with the first
bucket that began less than a window ago, so a window is at most one step shorter than its name; the seconds it covers
are part of each answer. A series reads that ring only. A sum uses buckets of coarser rings where a whole one fits, so
it adds up dozens of buckets instead of hundreds.

``CostBuckets`` holds costs by cause in such a ring; each of its buckets keeps its largest causes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Any, Generic, Protocol, Self, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resolution:
    """Buckets of one length.

    Attributes:
        step: Seconds of a bucket.
        span: Seconds that are kept.
    """

    step: int
    span: int


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A time window that ends now.

    Attributes:
        name: Value of the query parameter.
        seconds: Length.
        ring: Index of the finest ring it is read from, in ``COUNTS`` and in ``FINDINGS``.
    """

    name: str
    seconds: int
    ring: int


_MINUTE, _HOUR, _DAY = 60, 3600, 86400

_HALF_DAYS = Resolution(12 * _HOUR, 7 * _DAY)
"""No window begins with one of these; they speed up the sum of a week."""

COUNTS = (Resolution(10, _HOUR), Resolution(5 * _MINUTE, _DAY), Resolution(_HOUR, 7 * _DAY), _HALF_DAYS)
"""Rings of counts, which series are read from. Each step is a multiple of the finer ones."""

FINDINGS = (Resolution(_MINUTE, _HOUR), Resolution(15 * _MINUTE, _DAY), Resolution(2 * _HOUR, 7 * _DAY), _HALF_DAYS)
"""Rings of findings: coarser, because there are many findings and no series of them."""

WINDOWS = {
    window.name: window
    for window in (
        TimeWindow("15m", 15 * _MINUTE, 0),
        TimeWindow("1h", _HOUR, 0),
        TimeWindow("24h", _DAY, 1),
        TimeWindow("7d", 7 * _DAY, 2),
    )
}
DEFAULT_WINDOW = "15m"


class TimeBuckets(Generic[T]):
    """A ring of buckets of one resolution; a new bucket overwrites the one that is too old.

    Args:
        resolution: Length of a bucket, and the time kept.
        empty: Makes an empty bucket.
    """

    def __init__(self, resolution: Resolution, empty: Callable[[], T]) -> None:
        self.step = resolution.step
        self._span = resolution.span
        self._empty = empty
        self._slots: list[tuple[int, T] | None] = [None] * (resolution.span // resolution.step)

    def bucket(self, at: float) -> T | None:
        """The bucket of a time, created if missing; None if a newer bucket has overwritten it."""
        start, number = self.start_of(at), int(at // self.step) % len(self._slots)
        slot = self._slots[number]
        if slot is not None and slot[0] == start:
            return slot[1]
        # A bucket far in the future comes from a wrong clock and is overwritten.
        if slot is not None and start < slot[0] < start + 2 * self._span:
            return None
        bucket = self._empty()
        self._slots[number] = (start, bucket)
        return bucket

    def kept(self, start: int) -> T | None:
        """The bucket that begins at ``start``; None if it is empty or overwritten."""
        slot = self._slots[start // self.step % len(self._slots)]
        return slot[1] if slot is not None and slot[0] == start else None

    def start_of(self, at: float) -> int:
        """Start of the bucket of a time, in Unix seconds."""
        return int(at // self.step) * self.step

    def first_start(self, now: float, seconds: float) -> int:
        """Start of a window's first bucket."""
        return self.start_of(now) - int(seconds) + self.step

    def all(self) -> Iterator[T]:
        """All buckets."""
        yield from (slot[1] for slot in self._slots if slot is not None)

    def started(self) -> Iterator[tuple[int, T]]:
        """Start and bucket of all buckets, in no order."""
        yield from (slot for slot in self._slots if slot is not None)

    def between(self, now: float, seconds: float) -> Iterator[tuple[int, T]]:
        """Start and bucket of each bucket in a window, oldest first."""
        for start in range(self.first_start(now, seconds), self.start_of(now) + 1, self.step):
            if (bucket := self.kept(start)) is not None:
                yield start, bucket


def covering_buckets(rings: Sequence[TimeBuckets[T]], now: float, seconds: float) -> Iterator[T]:
    """The smallest set of buckets that covers a window, oldest first.

    Args:
        rings: The ring of the window's resolution, followed by coarser ones.
        now: End of the window.
        seconds: Its length.
    """
    at, last = rings[0].first_start(now, seconds), rings[0].start_of(now)
    while at <= last:
        # The finest ring always matches: every start is one of its own.
        ring = next(
            each
            for each in reversed(rings)
            if at % each.step == 0 and (at + each.step <= last + rings[0].step or at == each.start_of(now))
        )
        if (bucket := ring.kept(at)) is not None:
            yield bucket
        at += ring.step


_OPEN_FACTOR = 4
"""An open bucket holds this many times its final number of causes: the largest are known only when it closes."""


class AddableCost(Protocol):
    """A cost that can be added to another."""

    def add(self, other: Self) -> None:
        """Add a newer cost."""
        ...


_Cause = TypeVar("_Cause")
_Cost = TypeVar("_Cost", bound=AddableCost)


class CostPacking(Generic[_Cause, _Cost]):
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
        unpack: Callable[[bytes], Sequence[tuple[_Cause, _Cost]]],
        empty: Callable[[], _Cost],
        size: Callable[[_Cost], Any],
    ) -> None:
        self.pack = pack
        self.unpack = unpack
        self.empty = empty
        self.size = size

    def largest(self, costs: Iterable[tuple[_Cause, _Cost]], limit: int) -> list[tuple[_Cause, _Cost]]:
        """The largest costs, at most ``limit``."""
        return nlargest(limit, costs, key=lambda each: self.size(each[1]))


class CostBucket(Generic[_Cause, _Cost]):
    """The costs of one time bucket; encoded unless the bucket is open."""

    def __init__(self, packing: CostPacking[_Cause, _Cost]) -> None:
        self._packing = packing
        self._open: dict[_Cause, _Cost] = {}
        self._packed = b""

    def add(self, cause: _Cause, cost: _Cost, limit: int) -> None:
        """Add a cost; a new cause is dropped once ``limit`` times ``_OPEN_FACTOR`` are held."""
        if self._packed:
            self._open, self._packed = dict(self._packing.unpack(self._packed)), b""
        held = self._open.get(cause)
        if held is None:
            if len(self._open) >= limit * _OPEN_FACTOR:
                return
            held = self._open[cause] = self._packing.empty()
        held.add(cost)

    def close(self, limit: int) -> None:
        """Encode the ``limit`` largest causes and drop the others."""
        if self._open:
            self._packed, self._open = self._packing.pack(self._packing.largest(self._open.items(), limit)), {}

    def items(self) -> Iterable[tuple[_Cause, _Cost]]:
        """Causes and their costs."""
        return self._packing.unpack(self._packed) if self._packed else self._open.items()


class CostBuckets(Generic[_Cause, _Cost]):
    """A ring of cost buckets of one resolution. The bucket written last is open.

    Args:
        resolution: Length and number of the buckets.
        packing: How costs are encoded and ranked.

    Attributes:
        ring: The buckets.
    """

    def __init__(self, resolution: Resolution, packing: CostPacking[_Cause, _Cost]) -> None:
        self.ring: TimeBuckets[CostBucket[_Cause, _Cost]] = TimeBuckets(resolution, lambda: CostBucket(packing))
        self._open: CostBucket[_Cause, _Cost] = CostBucket(packing)
        self._open_start: int | None = None

    def add(self, cause: _Cause, at: float, cost: _Cost, limit: int) -> None:
        """Add a cost to the bucket of its time."""
        start = self.ring.start_of(at)
        if start != self._open_start:
            bucket = self.ring.bucket(at)
            if bucket is None:
                return
            self._open.close(limit)
            self._open, self._open_start = bucket, start
        self._open.add(cause, cost, limit)
