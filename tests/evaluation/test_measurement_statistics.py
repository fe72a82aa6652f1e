"""Confidence intervals: how often they contain what was planted, and when a difference is noise."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from levels import slow_except

from gateway.evaluation.measurement.statistics import (
    Estimate,
    difference,
    least_samples,
    mean,
    mean_difference,
    quantile,
    quantile_difference,
    ratio,
    samples_needed,
    share,
)

RUNS = 400
NORMAL = {0.5: 0.0, 0.95: 1.6448536, 0.99: 2.3263479}
"""Quantiles of the standard normal distribution."""


def covered(planted: float, estimate: Callable[[np.random.Generator], Estimate]) -> float:
    """The share of seeded runs whose interval contains the planted value."""
    runs = [estimate(np.random.default_rng(seed)) for seed in range(RUNS)]
    return sum(run.low <= planted <= run.high for run in runs) / RUNS


def latencies(random: np.random.Generator, n: int) -> np.ndarray:
    """Skewed, as latencies are: log-normal."""
    return np.exp(random.normal(size=n))


@pytest.mark.parametrize(
    ("p", "n"),
    slow_except(
        [(0.5, 6), (0.5, 10), (0.5, 40), (0.5, 400), (0.95, 80), (0.95, 400), (0.99, 400), (0.99, 1000)],
        [(0.5, 10), (0.95, 80), (0.99, 400)],
    ),
)
def test_quantile_is_in_its_interval_in_about_95_of_100_runs(p, n):
    share_covered = covered(math.exp(NORMAL[p]), lambda random: quantile(latencies(random, n), p))
    assert 0.925 <= share_covered <= 0.975


@pytest.mark.parametrize("paired", [True, False], ids=["paired", "unpaired"])
@pytest.mark.parametrize(
    ("p", "n"), slow_except([(0.5, 12), (0.5, 100), (0.95, 100), (0.99, 400)], [(0.5, 12), (0.95, 100)])
)
def test_difference_of_quantiles_is_in_its_interval_in_about_95_of_100_runs(p, n, paired):
    def estimate(random: np.random.Generator) -> Estimate:
        first, second = latencies(random, n), latencies(random, n)
        if paired:
            prompt = random.normal(size=n)
            first, second = (np.exp(0.9 * prompt + 0.436 * np.log(each)) for each in (first, second))
        return quantile_difference(first + 3.0, second, p, paired=paired)

    # The rule for differences is a little wider than needed where the distribution is skewed.
    assert 0.935 <= covered(3.0, estimate) <= 0.998


def test_mean_ratio_and_share_are_in_their_intervals_in_about_95_of_100_runs():
    def hit_rate(random: np.random.Generator) -> Estimate:
        prompts = random.exponential(1000.0, size=150) + 200
        return ratio(prompts * random.uniform(0, 1, size=150), prompts)

    assert 0.925 <= covered(5.0, lambda random: mean(random.normal(5.0, 2.0, size=10))) <= 0.975
    assert 0.92 <= covered(0.5, hit_rate) <= 0.975
    assert 0.92 <= covered(0.1, lambda random: share(int(random.binomial(150, 0.1)), 150)) <= 0.98
    assert (
        0.925 <= covered(1.0, lambda random: mean_difference(random.normal(2, 1, 30), random.normal(1, 3, 30))) <= 0.98
    )


def test_equal_samples_are_noise_in_about_95_of_100_runs():
    def found(seed: int) -> bool:
        random = np.random.default_rng(seed)
        return quantile_difference(latencies(random, 50), latencies(random, 50), 0.5).is_noise

    assert 0.92 <= sum(map(found, range(RUNS))) / RUNS <= 0.99


def test_pairs_show_a_difference_that_their_spread_hides_otherwise():
    random = np.random.default_rng(7)
    prompts = random.uniform(1, 100, size=60)
    slow, fast = prompts + 2 + random.normal(0, 0.2, 60), prompts + random.normal(0, 0.2, 60)
    paired, apart = mean_difference(slow, fast, paired=True), mean_difference(slow, fast)
    assert not paired.is_noise
    assert apart.is_noise
    assert paired.low <= 2 <= paired.high
    by_quantile = quantile_difference(slow, fast, 0.5, paired=True)
    assert by_quantile.high - by_quantile.low < apart.high - apart.low


@pytest.mark.parametrize(("p", "least"), [(0.5, 6), (0.95, 72), (0.99, 368)])
def test_interval_is_open_until_there_are_enough_samples(p, least):
    assert least_samples(p) == least
    values = np.arange(float(least))
    assert quantile(values, p).known
    few = quantile(values[1:], p)
    assert not few.known
    assert few.value > 0
    unknown = quantile_difference(values[1:], values[1:] - 5, p)
    assert unknown.is_noise
    assert samples_needed(unknown, p) == least


def test_needed_samples_are_as_many_as_make_the_difference_visible():
    def found(n: int) -> Estimate:
        random = np.random.default_rng(3)
        return mean_difference(random.normal(10.3, 1, n), random.normal(10, 1, n))

    few = found(20)
    assert few.is_noise
    needed = samples_needed(few)
    assert needed is not None
    assert needed > 20
    # As large as it looks with 20 samples, it is seen with the number that is said.
    again = Estimate(
        few.value, *(few.value + (end - few.value) * math.sqrt(20 / needed) for end in (few.low, few.high)), 1
    )
    assert not again.is_noise
    assert samples_needed(found(2000)) == 2000
    assert samples_needed(Estimate(0.0, -1.0, 1.0, 100)) is None


def test_interval_of_a_difference_of_shares_is_newcombes():
    """R. G. Newcombe (1998), table II, method 10: 56/70 against 48/80 is 0.0524 to 0.3339."""
    found = difference(share(56, 70), share(48, 80))
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)


def test_wilsons_interval_of_no_error_is_not_empty():
    none = share(0, 100)
    assert none.low == 0.0
    assert none.high == pytest.approx(0.0370, abs=1e-4)
    assert share(100, 100).high == 1.0


@pytest.mark.parametrize("estimate", [quantile([], 0.5), mean([]), ratio([], []), share(0, 0), ratio([0.0], [0.0])])
def test_nothing_is_known_without_samples(estimate):
    assert math.isnan(estimate.value)
    assert not estimate.known
    assert estimate.is_noise


def test_one_sample_has_a_value_and_no_interval():
    for estimate in (quantile([3.0], 0.5), mean([3.0]), ratio([3.0], [1.0])):
        assert estimate.value == 3.0
        assert not estimate.known


def test_constant_samples_have_no_spread():
    assert quantile([2.0] * 10, 0.5) == Estimate(2.0, 2.0, 2.0, 10)
    assert mean([2.0] * 10) == Estimate(2.0, 2.0, 2.0, 10)
    assert quantile_difference([2.0] * 10, [2.0] * 10, 0.5, paired=True).is_noise


def test_pairs_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="not 2 and 1"):
        quantile_difference([1.0, 2.0], [1.0], 0.5, paired=True)
