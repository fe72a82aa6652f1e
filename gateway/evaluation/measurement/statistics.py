"""Estimates with confidence intervals: quantiles, means, shares, ratios, and differences of them. Closed forms only.

Every function takes independent samples. Requests that wait for each other in a queue are not independent, and real
intervals are then wider than these. No distribution is assumed for quantiles; means, ratios and differences rely on
the samples being many enough (some ten) for the normal approximation.

Sources:
    Quantiles: order statistics, interpolated as by T. P. Hettmansperger, S. J. Sheather, "Confidence intervals based on
    interpolated order statistics", Statistics & Probability Letters 4 (1986), and J. Nyblom, "Note on interpolated
    order statistics", same journal 14 (1992).
    Shares: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    Ratios: the jackknife of J. W. Tukey, "Bias and confidence in not-quite large samples", Ann. Math. Statist. 29
    (1958).
    Differences: G. Y. Zou, A. Donner, "Construction of confidence limits about effect measures: a general approach",
    Statistics in Medicine 27 (2008), of which R. G. Newcombe's interval for shares (1998, method 10) is a case.
    Correlation of quantiles: R. R. Bahadur, "A note on quantiles in large samples", Ann. Math. Statist. 37 (1966).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
"""Confidence of all intervals unless another one is passed."""

MOST_NEEDED = 1_000_000
"""A larger number of samples is not computed: no measurement would be that long."""

Samples = Sequence[float] | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its confidence interval.

    Attributes:
        value: The estimate; NaN without samples.
        low: Lower end of the interval; ``-inf`` if the samples are too few for one.
        high: Upper end; ``inf`` if the samples are too few for one.
        samples: Number of samples; of a difference the smaller of both.
    """

    value: float
    low: float
    high: float
    samples: int

    @property
    def known(self) -> bool:
        """Whether the interval is bounded on both sides."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def is_noise(self) -> bool:
        """Of a difference: whether its interval contains 0, so that the samples do not show one."""
        return not (self.low > 0 or self.high < 0)

    def scaled(self, factor: float) -> "Estimate":
        """The same in another unit; ``factor`` is positive."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor, self.samples)

    @classmethod
    def unknown(cls, samples: int = 0) -> "Estimate":
        """No estimate."""
        return cls(math.nan, -math.inf, math.inf, samples)


def quantile(samples: Samples, p: float, confidence: float = CONFIDENCE) -> Estimate:
    """The quantile ``p`` with an interval between two interpolated order statistics.

    For every distribution, the number of samples below its quantile is binomial (n, p). This gives the probability
    that the r-th smallest sample is above the quantile; between neighbours it is interpolated. The value is the
    median-unbiased one (R. J. Hyndman, Y. Fan, "Sample quantiles in statistical packages", 1996, type 8).

    Args:
        samples: In any unit; the result has the same.
        p: Between 0 and 1, both excluded.
        confidence: Of the interval.
    """
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    if not ordered.size:
        return Estimate.unknown()
    tail = (1 - confidence) / 2
    low = _lower_bound(ordered, p, tail)
    high = -_lower_bound(-ordered[::-1], 1 - p, tail)
    value = float(np.quantile(ordered, p, method="median_unbiased"))
    return Estimate(min(max(value, low), high), low, high, ordered.size)


def least_samples(p: float, confidence: float = CONFIDENCE) -> int:
    """The number of samples from which on the interval of the quantile ``p`` is bounded on both sides."""
    return math.ceil(math.log((1 - confidence) / 2) / math.log(max(p, 1 - p)))


def mean(samples: Samples, confidence: float = CONFIDENCE) -> Estimate:
    """The mean with Student's interval."""
    values = np.asarray(samples, dtype=np.float64)
    n = values.size
    if n < 2:
        return Estimate.unknown(n) if not n else Estimate(float(values[0]), -math.inf, math.inf, n)
    value = float(values.mean())
    reach = _student(confidence, n - 1) * float(values.std(ddof=1)) / math.sqrt(n)
    return Estimate(value, value - reach, value + reach, n)


def ratio(parts: Samples, wholes: Samples, confidence: float = CONFIDENCE) -> Estimate:
    """The sum of ``parts`` over the sum of ``wholes``, where both belong to the same requests, as in a hit rate.

    Args:
        parts: One for each request, such as its cached tokens.
        wholes: The same requests' totals, such as their prompt tokens.
        confidence: Of the interval.
    """
    x, y = np.asarray(parts, dtype=np.float64), np.asarray(wholes, dtype=np.float64)
    n, total = y.size, float(y.sum())
    if not total:
        return Estimate.unknown(n)
    value, others = float(x.sum()) / total, total - y
    if n < 2 or not others.all():
        return Estimate(value, -math.inf, math.inf, n)
    without = (float(x.sum()) - x) / others
    reach = _student(confidence, n - 1) * float(without.std()) * math.sqrt(n - 1)
    is_share = bool((x >= 0).all() and (x <= y).all())
    low, high = (0.0, 1.0) if is_share else (-math.inf, math.inf)
    return Estimate(value, max(low, value - reach), min(high, value + reach), n)


def share(hits: int, samples: int, confidence: float = CONFIDENCE) -> Estimate:
    """A share such as an error rate, with Wilson's interval, which is never empty, also for no hit at all."""
    if not samples:
        return Estimate.unknown()
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    value = hits / samples
    middle = (value + z * z / (2 * samples)) / (1 + z * z / samples)
    reach = z / (1 + z * z / samples) * math.sqrt(value * (1 - value) / samples + z * z / (4 * samples * samples))
    # Rounding must not leave the value outside.
    return Estimate(value, max(0.0, min(middle - reach, value)), min(1.0, max(middle + reach, value)), samples)


def difference(first: Estimate, second: Estimate, correlation: float = 0.0) -> Estimate:
    """First minus second, from both intervals.

    Args:
        first: The minuend.
        second: The subtrahend, in the same unit and with the same confidence.
        correlation: Of the two estimates; 0 for independent samples.
    """
    value = first.value - second.value

    def reach(one: float, other: float) -> float:
        if not (math.isfinite(one) and math.isfinite(other)):
            return math.inf
        return math.sqrt(max(0.0, one * one + other * other - 2 * correlation * one * other))

    below = reach(first.value - first.low, second.high - second.value)
    above = reach(first.high - first.value, second.value - second.low)
    return Estimate(value, value - below, value + above, min(first.samples, second.samples))


def quantile_difference(
    first: Samples, second: Samples, p: float, *, paired: bool = False, confidence: float = CONFIDENCE
) -> Estimate:
    """The quantile of one sample minus that of another.

    Args:
        first: The minuend's.
        second: The subtrahend's.
        p: As for ``quantile``.
        paired: Whether both have the same length and the i-th values belong together, such as the same prompt twice.
            What both share then does not widen the interval: two quantiles of pairs are correlated as the events are
            that each value lies below its quantile.
        confidence: Of the interval.
    """
    one, two = quantile(first, p, confidence), quantile(second, p, confidence)
    correlation = 0.0
    if paired and one.samples and _same_length(first, second):
        below = np.asarray(first) <= one.value, np.asarray(second) <= two.value
        shares = [float(each.mean()) for each in below]
        spread = math.sqrt(math.prod(each * (1 - each) for each in shares))
        if spread:
            both = float((below[0] & below[1]).mean())
            correlation = (both - shares[0] * shares[1]) / spread
    return difference(one, two, correlation)


def mean_difference(
    first: Samples, second: Samples, *, paired: bool = False, confidence: float = CONFIDENCE
) -> Estimate:
    """The mean of one sample minus that of another; arguments as for ``quantile_difference``."""
    if paired and _same_length(first, second):
        return mean(np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64), confidence)
    return difference(mean(first, confidence), mean(second, confidence))


def samples_needed(found: Estimate, p: float = 0.5, confidence: float = CONFIDENCE) -> int | None:
    """How many samples a difference would need to be more than noise, if it is as large as it looks.

    An interval becomes narrower with the square root of the number of samples.

    Args:
        found: The difference of a quantile.
        p: The quantile.
        confidence: As of the interval.

    Returns:
        The number of samples of each group, those there are included; None if it is above ``MOST_NEEDED``, as it is
        if the difference is about 0.
    """
    least = least_samples(p, confidence)
    if not found.is_noise:
        return found.samples
    if not found.known:
        return max(least, found.samples + 1)
    reach = found.value - found.low if found.value > 0 else found.high - found.value
    if abs(found.value) * math.sqrt(MOST_NEEDED / max(found.samples, 1)) <= reach:
        return None
    return max(least, found.samples + 1, math.ceil(found.samples * (reach / found.value) ** 2))


def slope(x: Samples, y: Samples, confidence: float = CONFIDENCE) -> Estimate:
    """By how much ``y`` grows with ``x``: least squares, for a spread that may depend on ``x``.

    The variance is the one of H. White, "A heteroskedasticity-consistent covariance matrix estimator", Econometrica 48
    (1980), with the correction n / (n - 2).
    """
    across, up = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    n = across.size
    spread = across - across.mean() if n else across
    squares = float((spread * spread).sum())
    if n < 3 or not squares:
        return Estimate.unknown(n)
    value = float((spread * up).sum()) / squares
    errors = up - up.mean() - value * spread
    variance = float((spread * spread * errors * errors).sum()) / squares**2 * n / (n - 2)
    reach = _student(confidence, n - 2) * math.sqrt(variance)
    return Estimate(value, value - reach, value + reach, n)


def _same_length(first: Samples, second: Samples) -> bool:
    if len(first) != len(second):
        raise ValueError(f"pairs need as many values on both sides, not {len(first)} and {len(second)}")
    return True


def _lower_bound(ordered: npt.NDArray[np.float64], p: float, tail: float) -> float:
    """The value that is above the quantile ``p`` with probability ``tail``; ``-inf`` if there are too few samples.

    With B, the number of samples below the quantile, the r-th smallest sample is above it with probability P(B < r).
    Between it and the next one it is a matter of B = r: the distances of both from the quantile are then about
    exponential with the rates r / p and (n - r) / (1 - p) in units of probability, so that the point at ``part`` of the
    way is above it with probability 1 / (1 + (n - r) p (1 - part) / (r (1 - p) part)).
    """
    n = ordered.size
    below = _binomial_cumulated(n, p)
    r = int(np.searchsorted(below, tail, side="right"))  # the number of r >= 1 with P(B < r) <= tail
    if not r:
        return -math.inf
    if r >= n:
        return float(ordered[n - 1])
    before = below[r - 1]
    wanted = (tail - before) / (below[r] - before)
    if wanted <= 0:
        return float(ordered[r - 1])
    part = 1 / (1 + r * (1 - p) / ((n - r) * p) * (1 - wanted) / wanted)
    return float((1 - part) * ordered[r - 1] + part * ordered[r])


def _binomial_cumulated(n: int, p: float) -> npt.NDArray[np.float64]:
    """P(B <= k) for k from 0 to n."""
    k = np.arange(n, dtype=np.float64)
    steps = np.log(n - k) - np.log(k + 1) + math.log(p) - math.log1p(-p)
    logs = n * math.log1p(-p) + np.concatenate(([0.0], np.cumsum(steps)))
    return np.cumsum(np.exp(logs))


def _student(confidence: float, degrees: int) -> float:
    """The two-sided quantile of Student's distribution.

    Exact for one and two degrees; from three on the expansion 26.7.5 of M. Abramowitz, I. A. Stegun, "Handbook of
    Mathematical Functions", with an error below 0.5 %.
    """
    if degrees == 1:
        return math.tan(math.pi * confidence / 2)
    if degrees == 2:
        return confidence * math.sqrt(2 / (1 - confidence * confidence))
    x = NormalDist().inv_cdf((1 + confidence) / 2)
    terms = (
        x,
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return math.fsum(term / math.pow(degrees, power) for power, term in enumerate(terms))
