"""Confidence intervals of statistics over requests that belong to sessions.

Requests of one session resemble each other, so they count for less than as many independent ones. Whole sessions are
drawn with replacement (the cluster bootstrap; Davison and Hinkley, *Bootstrap Methods and their Application*, 1997,
section 3.8), and an interval is read off the statistics of the draws. A percentile interval is a little too narrow with
few sessions; it is widened around the estimate by the factor ``t / z * sqrt(n / (n - 1))`` for ``n`` sessions
(Hesterberg, *What Teachers Should Know About the Bootstrap*, 2015, section 4.3).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
"""Confidence level of all intervals."""

_Z = 1.959964
_SEED = 20_100_217
"""Fixed, so that the same requests give the same intervals."""

Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """An estimate with its confidence interval.

    Attributes:
        value: The estimate.
        low: Lower bound.
        high: Upper bound.
    """

    value: float
    low: float
    high: float


class Draws:
    """Draws of sessions, as a weight of every request in every draw.

    Args:
        sessions: The session of each request.
        draws: Number of draws.
        stream: Number of the random stream; groups that are compared need different ones.
    """

    def __init__(self, sessions: Sequence[int], draws: int, stream: int = 0) -> None:
        _, places = np.unique(np.array(sessions, np.uint64), return_inverse=True)
        self.sessions = int(places.max()) + 1 if places.size else 0
        random = np.random.default_rng([_SEED, stream])
        shares = np.full(max(self.sessions, 1), 1 / max(self.sessions, 1))
        drawn = random.multinomial(self.sessions, shares, draws)
        # The first row is the sample itself.
        whole = np.concatenate([np.ones((1, len(shares)), np.int64), drawn])
        self.weights: Floats = whole.astype(np.float64)[:, places]

    def ratio(self, above: Floats, below: Floats) -> Floats:
        """The sum of one value divided by the sum of another; of shape (1 + draws), the estimate first."""
        sums = self.weights @ below
        found: Floats = np.divide(self.weights @ above, sums, out=np.full(sums.shape, math.nan), where=sums > 0)
        return found

    def mean(self, values: Floats) -> Floats:
        """The mean of a value, as ``ratio``; requests without a value (NaN) are left out."""
        known = ~np.isnan(values)
        return self.ratio(np.where(known, values, 0.0), known.astype(np.float64))

    def quantiles(self, values: Floats, shares: Sequence[float]) -> list[Floats]:
        """For each share, the smallest value that at least this share of the requests do not exceed; as ``mean``."""
        places = np.flatnonzero(~np.isnan(values))
        if not places.size:
            return [np.full(len(self.weights), math.nan) for _ in shares]
        ordered = places[np.argsort(values[places], kind="stable")]
        sums = np.cumsum(self.weights[:, ordered], axis=1)
        total = sums[:, -1:]
        found = [(sums >= total * share).argmax(axis=1) for share in shares]
        return [np.where(total[:, 0] > 0, values[ordered[each]], math.nan) for each in found]


def interval(statistics: Floats, sessions: int) -> Interval | None:
    """The interval of a statistic; None if it cannot be computed.

    Args:
        statistics: The estimate and those of the draws.
        sessions: Number of sessions, of the smaller group where two are compared.
    """
    value, drawn = float(statistics[0]), statistics[1:]
    drawn = drawn[~np.isnan(drawn)]
    if math.isnan(value) or sessions < 2 or not drawn.size:
        return None
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    widened = _t(sessions - 1) / _Z * math.sqrt(sessions / (sessions - 1))
    return Interval(value, value - (value - float(low)) * widened, value + (float(high) - value) * widened)


def wilson(share: float, count: int) -> Interval:
    """The score interval of a share (Wilson, *Journal of the American Statistical Association* 22, 1927).

    Args:
        share: The share that was found.
        count: Number of independent cases; at least 1.
    """
    square = _Z * _Z / count
    middle = (share + square / 2) / (1 + square)
    half = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return Interval(share, max(middle - half, 0.0), min(middle + half, 1.0))


def _t(freedom: int) -> float:
    """The 0.975 quantile of Student's t distribution, by the expansion of Cornish and Fisher (Abramowitz and Stegun,
    *Handbook of Mathematical Functions*, 26.7.5); exact to 0.01 from four degrees of freedom on."""
    z, n = _Z, freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )
