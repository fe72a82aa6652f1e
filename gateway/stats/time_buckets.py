"""Time windows of queries, and the time buckets they are read from.

Every value is counted in buckets of several lengths, each of them a ring. The finest ring of a window defines where the
window begins: with the first bucket that began less than a window ago, so a window is at most one step shorter than its
name; the seconds it covers are part of each answer. A series reads that ring only. A sum uses buckets of coarser rings
where a whole one fits, so it adds up dozens of buckets instead of hundreds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar


@dataclass(frozen=True, slots=True)
class Resolution:
    """Buckets of one length.

    Attributes:
        step: Seconds of a bucket.
        span: Seconds that are kept.
    """

    step: int
    span: int

    def start_of(self, at: float) -> int:
        """Start of the bucket of a time, in Unix seconds."""
        return int(at // self.step) * self.step

    def slot_of(self, start: int) -> int:
        """Where the bucket that begins at ``start`` is kept."""
        return start // self.step % (self.span // self.step)


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


_Bucket = TypeVar("_Bucket", bound=Any)
"""A bucket. ``close`` is called when another one begins, and again if values came since."""


class TimeBuckets(Generic[_Bucket]):
    """Rings of buckets; a new bucket overwrites the one that is too old.

    Args:
        rings: Their resolutions, finest first. Each step is a multiple of the finer ones.
        empty: Makes an empty bucket.
    """

    def __init__(self, rings: Sequence[Resolution], empty: Callable[[], _Bucket]) -> None:
        self._rings = rings
        self._empty = empty
        self._slots: list[dict[int, tuple[int, _Bucket]]] = [{} for _ in rings]
        self._open: list[list[_Bucket]] = [[] for _ in rings]

    def opened(self, at: float, first: int = 0) -> Iterator[_Bucket]:
        """The bucket of a time in each ring from the ``first`` on, to be written to, unless a newer one has overwritten
        it."""
        for ring, slots, open_buckets in [*zip(self._rings, self._slots, self._open, strict=True)][first:]:
            start = ring.start_of(at)
            slot = ring.slot_of(start)
            known, bucket = slots.get(slot, (None, None))
            if bucket is None or known != start:
                # A bucket far in the future comes from a wrong clock and is overwritten.
                if known is not None and start < known < start + 2 * ring.span:
                    continue
                for each in open_buckets:
                    each.close()
                open_buckets.clear()
                bucket = self._empty()
                slots[slot] = start, bucket
            if bucket not in open_buckets:
                open_buckets.append(bucket)
            yield bucket

    def kept(self, ring: int, start: int) -> _Bucket | None:
        """The bucket of a ring that begins at ``start``; None if it is empty or overwritten."""
        known, bucket = self._slots[ring].get(self._rings[ring].slot_of(start), (None, None))
        return bucket if known == start else None

    def all(self, ring: int) -> Iterator[tuple[int, _Bucket]]:
        """Start and bucket of all buckets of a ring, in no order."""
        yield from self._slots[ring].values()

    def covering(self, finest: int, starts: range, coarse: int = 0, since: float = 0) -> Iterator[_Bucket]:
        """The smallest set of buckets that covers those of the ring ``finest`` with these starts, oldest first. Buckets
        of the ring ``coarse`` and coarser ones that begin before ``since`` are not used in place of finer ones."""
        at = starts[0]
        while at <= starts[-1]:
            # The finest ring always matches: every start is one of its own.
            number, ring = next(
                (number, ring)
                for number, ring in reversed([*enumerate(self._rings)][finest:])
                if at % ring.step == 0
                and (at + ring.step <= starts.stop or at == ring.start_of(starts[-1]))
                and (at >= since or number < coarse or finest >= coarse)
            )
            if (bucket := self.kept(number, at)) is not None:
                yield bucket
            at += ring.step
