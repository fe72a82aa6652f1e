"""Sums over the requests of a log that need no text: lengths, repeat intervals, hits as reported.

Lengths and times are counted in logarithmic bins: bounded memory, quantiles within half a bin."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from math import ceil, inf, log2

import msgspec

from gateway.core.explanation import RequestRecord
from gateway.evaluation.analysis.ideal_cache import Reuse
from gateway.evaluation.analysis.log_analysis import Lengths, RepeatInterval, ReportedHits
from gateway.evaluation.logs.logged_request import ReportedUsage

_QUANTILES = (0.5, 0.9, 0.99)
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0
_AGES = (1.0, 10.0, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 6 * _HOUR, _DAY, 7 * _DAY)
"""Edges of the distribution of repeat intervals, in seconds."""
_PER_DOUBLING = 8
"""Bins per doubling: a bin is 9 % wide, so a quantile is accurate within 4.5 %."""

_LARGEST = 64 * _PER_DOUBLING


class LengthHistogram(msgspec.Struct):
    """Counts of values by bin.

    Attributes:
        counts: Weights by bin; bin 0 holds all values below 1.
        total: Sum of all weights.
    """

    counts: dict[int, float] = msgspec.field(default_factory=dict)
    total: float = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        """Count a value."""
        number = 0 if value < 1 else min(1 + ceil(log2(value) * _PER_DOUBLING - 1e-9), _LARGEST)
        self.counts[number] = self.counts.get(number, 0.0) + weight
        self.total += weight

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """The values at the given shares, ascending; zeros without values."""
        found: list[float] = []
        numbers = sorted(self.counts)
        seen, at = 0.0, 0
        for share in shares:
            while at < len(numbers) and seen + self.counts[numbers[at]] < share * self.total:
                seen += self.counts[numbers[at]]
                at += 1
            found.append(_middle(numbers[min(at, len(numbers) - 1)]) if numbers else 0.0)
        return found

    def bars(self) -> list[tuple[float, float, float]]:
        """Lower edge, upper edge and share of each doubling, from the first to the last one that is not empty."""
        bars: dict[int, float] = {}
        for number, weight in self.counts.items():
            bar = 0 if number == 0 else 1 + max(number - 2, 0) // _PER_DOUBLING
            bars[bar] = bars.get(bar, 0.0) + weight
        if not bars:
            return []
        return [
            (0.0 if bar == 0 else 2.0 ** (bar - 1), 2.0**bar if bar else 1.0, bars.get(bar, 0.0) / self.total)
            for bar in range(min(bars), max(bars) + 1)
        ]


def _middle(number: int) -> float:
    return 0.0 if number == 0 else float(2 ** ((number - 1.5) / _PER_DOUBLING)) if number > 1 else 1.0


class TrafficSums:
    """Sums, request by request.

    Args:
        long_tokens: Length from which a shared prefix counts as long.
        ttls: Times to live to compare repeat intervals with, by name.
    """

    def __init__(self, long_tokens: int, ttls: Sequence[tuple[str, float]]) -> None:
        self._long_tokens = long_tokens
        self._within = dict.fromkeys(ttls, 0)
        self._prompts = LengthHistogram()
        self._prefixes = LengthHistogram()
        self._ages = [0] * (len(_AGES) + 1)
        self.requests = self.prompt_tokens = self.reused_tokens = 0
        self._long_requests = self._long_prefix_tokens = 0
        self._reported_requests = self._reported_prompt = self._reported_cached = 0
        self._reported_own = self._reported_ideal = 0

    def add(self, record: RequestRecord, reuse: Reuse, usage: ReportedUsage | None) -> None:
        """Add a request."""
        self.requests += 1
        self.prompt_tokens += record.own_tokens
        self.reused_tokens += reuse.tokens
        self._prompts.add(record.own_tokens)
        self._prefixes.add(reuse.tokens)
        if reuse.tokens >= self._long_tokens:
            self._long_requests += 1
            self._long_prefix_tokens += reuse.tokens
        for age, tokens in reuse.ages:
            self._ages[bisect_left(_AGES, age)] += tokens
            for label, seconds in self._within:
                if age <= seconds:
                    self._within[label, seconds] += tokens
        if usage is not None and usage.cached_tokens is not None and usage.prompt_tokens:
            self._reported_requests += 1
            self._reported_prompt += usage.prompt_tokens
            self._reported_cached += min(usage.cached_tokens, usage.prompt_tokens)
            self._reported_own += record.own_tokens
            self._reported_ideal += reuse.tokens

    @property
    def long_prefixes(self) -> float:
        """Share of the requests with a long shared prefix."""
        return _share(self._long_requests, self.requests)

    @property
    def long_prefix_tokens(self) -> float:
        """Share of the prompt tokens in long shared prefixes."""
        return _share(self._long_prefix_tokens, self.prompt_tokens)

    @property
    def reported(self) -> ReportedHits | None:
        """Hits as reported; None if no answer reports any."""
        if not self._reported_requests:
            return None
        return ReportedHits(
            self._reported_requests,
            self._reported_prompt,
            self._reported_cached,
            _share(self._reported_cached, self._reported_prompt),
            _share(self._reported_ideal, self._reported_own),
        )

    @property
    def prompts(self) -> Lengths:
        """Lengths of prompts."""
        return _lengths(self._prompts, self.prompt_tokens)

    @property
    def prefixes(self) -> Lengths:
        """Lengths of reused prefixes."""
        return _lengths(self._prefixes, self.reused_tokens)

    @property
    def intervals(self) -> list[RepeatInterval]:
        """Repeat intervals against times to live, shortest first."""
        return [
            RepeatInterval(seconds, label, _share(tokens, self.reused_tokens), _share(tokens, self.prompt_tokens))
            for (label, seconds), tokens in sorted(self._within.items(), key=lambda each: each[0][1])
        ]

    @property
    def interval_bars(self) -> list[tuple[float, float, float]]:
        """Lower edge, upper edge (both seconds) and share of the repeated tokens, to the last one that has any."""
        edges = [0.0, *_AGES, inf]
        bars = [
            (low, high, _share(tokens, self.reused_tokens))
            for (low, high), tokens in zip(pairwise(edges), self._ages, strict=True)
        ]
        last = max((number for number, tokens in enumerate(self._ages) if tokens), default=-1)
        return bars[: last + 1]


def times_to_live(idle_ttl_seconds: float, max_age_seconds: float) -> list[tuple[str, float]]:
    """The times that repeat intervals are compared with: five minutes, an hour, a day, and the configured ones."""
    times = {5 * _MINUTE: "5 min", _HOUR: "1 h", _DAY: "1 day"}
    for seconds, setting in ((idle_ttl_seconds, "idle_ttl_seconds"), (max_age_seconds, "max_age_seconds")):
        label = times.get(seconds)
        times[seconds] = f"{label} (spaces.{setting})" if label else f"{seconds:g} s (spaces.{setting})"
    return [(label, seconds) for seconds, label in times.items()]


def _lengths(histogram: LengthHistogram, total: int) -> Lengths:
    p50, p90, p99 = histogram.quantiles(_QUANTILES)
    mean = total / histogram.total if histogram.total else 0.0
    return Lengths(round(mean, 1), round(p50), round(p90), round(p99), histogram.bars())


def _share(part: float, whole: float) -> float:
    return round(part / whole, 6) if whole else 0.0
