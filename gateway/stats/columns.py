"""The columns of totals: each is a sum over requests, so rows of them can be added up.

A section holds columns that are read together and whose values have a similar range. Durations have a column per bin of
a histogram with logarithmic bins: it takes little memory, can be added up, and gives percentiles.
"""

from collections.abc import Iterator, Mapping
from math import ceil, exp2, log2

from gateway.core.canonical import ALL_RULES, RuleMode, RuleName
from gateway.core.reasons import Reason, Rung

TURNS = 11
"""Turns from this one on share a column."""

REASON_COLUMNS = tuple(Reason)
RUNG_COLUMNS = tuple(Rung)

RULE_COLUMNS: tuple[tuple[str, RuleMode], ...] = (
    *((rule.value, mode) for mode in (RuleMode.OBSERVE, RuleMode.APPLY) for rule in RuleName),
    (ALL_RULES, RuleMode.OBSERVE),
)
"""Rules and modes with columns of their own."""

REQUESTS, PROMPT_TOKENS, CONFIRMED, PREDICTED = range(4)
"""Requests; their prompt tokens; hits reported by engines; predicted hits of requests without a report."""

MISSED = PREDICTED + 1
"""The first of a column for each reason: missed tokens."""

SERIES = MISSED + len(REASON_COLUMNS)
"""End of the columns of series."""

LADDER = SERIES
"""The first of a column for each rung: lengths of these prefixes, in tokens."""

TURN_TOKENS = LADDER + len(RUNG_COLUMNS)
"""The first of a column for each turn: prompt tokens."""

TURN_HITS = TURN_TOKENS + TURNS
"""The first of a column for each turn: hits."""

OBSERVED_TOKENS = TURN_HITS + TURNS
"""Prompt tokens of requests that the columns of rules stand for: those tried with rules, and those left out of the
sample, for which others count with a weight."""

SAVED_BY_RULE = OBSERVED_TOKENS + 1
"""The first of a column for each rule and mode: tokens saved, times the weight of the request."""

LOST_BY_RULE = SAVED_BY_RULE + len(RULE_COLUMNS)
"""The first of a column for each rule and mode: tokens lost, likewise."""

SKIPPED = LOST_BY_RULE + len(RULE_COLUMNS)
"""Requests explained without their text."""

OBSERVED = SKIPPED + 1
"""Requests that the columns of rules stand for."""

CHANGED_BY_RULE = OBSERVED + 1
"""The first of a column for each rule and mode: requests changed, as tokens saved."""

COLD = CHANGED_BY_RULE + len(RULE_COLUMNS)
"""The first of a column for each bin of times to first token of cold requests."""

_LARGEST = 8 * 28
"""Bins up to 2^28 times the smallest duration: seven hours."""

BINS = _LARGEST + 1
"""Number of bins."""

WARM = COLD + BINS
"""The first of a column for each bin of times to first token of warm requests."""

COLD_TOTAL = WARM + BINS
"""The first of a column for each bin of total latencies of cold requests."""

WARM_TOTAL = COLD_TOTAL + BINS
"""The first of a column for each bin of total latencies of warm requests."""

SAVED_SECONDS = WARM_TOTAL + BINS
"""Prefill seconds saved by hits."""

SAVED_GPU_SECONDS = SAVED_SECONDS + 1
"""GPU seconds saved by hits: prefill seconds times the GPUs of a replica."""

LOST_SECONDS = SAVED_GPU_SECONDS + 1
"""Prefill seconds of missed tokens."""

LOST_GPU_SECONDS = LOST_SECONDS + 1
"""The first of a column for each reason: GPU seconds of missed tokens."""

WIDTH = LOST_GPU_SECONDS + len(REASON_COLUMNS)
"""Number of columns."""

SECTIONS = (
    (0, SERIES),
    (SERIES, OBSERVED_TOKENS),
    (OBSERVED_TOKENS, SKIPPED),
    (SKIPPED, SAVED_SECONDS),
    (SAVED_SECONDS, WIDTH),
)
"""Begin and end of each section: columns of series, other tokens, tokens of rules, requests, seconds. The last holds
fractions; columns of rules may, where the share of the sample is not one of a whole number."""

Row = dict[int, float]
"""Values by column; a missing column is 0."""

_PER_DOUBLING = 8
_SMALLEST_SECONDS = 1e-4

Bins = Mapping[int, int]
"""Number of durations by bin. A bin is 9 % wide, so a percentile is accurate within 4.5 %."""


def bin_of(seconds: float) -> int:
    """The bin of a duration."""
    if seconds <= _SMALLEST_SECONDS:
        return 0
    return min(ceil(log2(seconds / _SMALLEST_SECONDS) * _PER_DOUBLING), _LARGEST)


def percentiles(bins: Bins, shares: tuple[float, ...]) -> Iterator[float | None]:
    """The percentiles at the given shares, in seconds; None without durations."""
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
