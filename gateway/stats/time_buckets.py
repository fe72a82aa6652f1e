"""Windows of time that can be asked for, and the rings of buckets that hold what they are made of.

Every figure is counted in all rings; the one that is fine enough for a window says where it begins. A window's first
bucket is the one that began less than a window ago, so a window is at most one step shorter than its name says. The
seconds it really covers are told with it. A series is read from that ring alone; a sum takes the buckets of coarser
rings wherever a whole one fits, and so has some dozens of buckets to add up instead of hundreds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

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
    """A stretch of time up to now.

    Attributes:
        name: As it is asked for.
        seconds: Its length.
        ring: Number of the finest ring it is read from, in ``COUNTS`` as in ``FINDINGS``.
    """

    name: str
    seconds: int
    ring: int


_MINUTE, _HOUR, _DAY = 60, 3600, 86400

_HALF_DAYS = Resolution(12 * _HOUR, 7 * _DAY)
"""No window begins with one of these; they make the sum of a week quick."""

COUNTS = (Resolution(10, _HOUR), Resolution(5 * _MINUTE, _DAY), Resolution(_HOUR, 7 * _DAY), _HALF_DAYS)
"""For counts, which series are drawn from. Each step is a whole number of those before."""
FINDINGS = (Resolution(_MINUTE, _HOUR), Resolution(15 * _MINUTE, _DAY), Resolution(2 * _HOUR, 7 * _DAY), _HALF_DAYS)
"""For findings, of which there are many, and no series. Likewise."""

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
    """Buckets of one resolution; a new one takes the place of the one that is too old.

    Args:
        resolution: Their length and how far back they go.
        empty: Makes a bucket.
    """

    def __init__(self, resolution: Resolution, empty: Callable[[], T]) -> None:
        self.step = resolution.step
        self._span = resolution.span
        self._empty = empty
        self._slots: list[tuple[int, T] | None] = [None] * (resolution.span // resolution.step)

    def bucket(self, at: float) -> T | None:
        """The bucket of a moment, made if need be; None for one so long past that a newer one has its place."""
        start, number = self.start_of(at), int(at // self.step) % len(self._slots)
        slot = self._slots[number]
        if slot is not None and slot[0] == start:
            return slot[1]
        # One that is newer by far is from a clock that was wrong, and must not be in the way for as long.
        if slot is not None and start < slot[0] < start + 2 * self._span:
            return None
        bucket = self._empty()
        self._slots[number] = (start, bucket)
        return bucket

    def kept(self, start: int) -> T | None:
        """The bucket that began then; None if nothing came in that time, or it is too long past."""
        slot = self._slots[start // self.step % len(self._slots)]
        return slot[1] if slot is not None and slot[0] == start else None

    def start_of(self, at: float) -> int:
        """When the bucket of a moment begins, in Unix seconds."""
        return int(at // self.step) * self.step

    def first_start(self, now: float, seconds: float) -> int:
        """When the first bucket of a window begins."""
        return self.start_of(now) - int(seconds) + self.step

    def all(self) -> Iterator[T]:
        """Every bucket that is kept."""
        yield from (slot[1] for slot in self._slots if slot is not None)

    def between(self, now: float, seconds: float) -> Iterator[tuple[int, T]]:
        """The buckets of a window and when they begin, oldest first."""
        for start in range(self.first_start(now, seconds), self.start_of(now) + 1, self.step):
            if (bucket := self.kept(start)) is not None:
                yield start, bucket


def fewest(rings: Sequence[TimeBuckets[T]], now: float, seconds: float) -> Iterator[T]:
    """The buckets that a window is the sum of, as few as possible, oldest first.

    Args:
        rings: The ring that says where the window begins, and coarser ones behind it.
        now: Where the window ends.
        seconds: Its length.
    """
    at, last = rings[0].first_start(now, seconds), rings[0].start_of(now)
    while at <= last:
        # The finest takes what no other does: every beginning is one of its own.
        ring = next(
            each
            for each in reversed(rings)
            if at % each.step == 0 and (at + each.step <= last + rings[0].step or at == each.start_of(now))
        )
        if (bucket := ring.kept(at)) is not None:
            yield bucket
        at += ring.step
