"""Durations counted by magnitude, so that percentiles of many of them take little memory and can be added up."""

from collections.abc import Iterator, Mapping
from math import ceil, exp2, log2

_PER_DOUBLING = 8
_SMALLEST_SECONDS = 1e-4
_LARGEST = 8 * 28
"""Bins up to 2^28 times the smallest: seven hours."""

BINS = _LARGEST + 1
"""How many bins there are."""

Bins = Mapping[int, int]
"""How many durations are in each bin. A bin is 9 % wide, so a percentile is right within 4.5 %."""


def bin_of(seconds: float) -> int:
    """The bin of a duration."""
    if seconds <= _SMALLEST_SECONDS:
        return 0
    return min(ceil(log2(seconds / _SMALLEST_SECONDS) * _PER_DOUBLING), _LARGEST)


def percentiles(bins: Bins, shares: tuple[float, ...]) -> Iterator[float | None]:
    """The durations, in seconds, below which the given shares of all are; None if there are none at all."""
    total = sum(bins.values())
    for share in shares:
        wanted, seen = share * total, 0
        found = None
        for number in sorted(bins):
            seen += bins[number]
            found = number
            if seen >= wanted:
                break
        yield None if found is None else round(_SMALLEST_SECONDS * exp2((found - 0.5) / _PER_DOUBLING), 6)
