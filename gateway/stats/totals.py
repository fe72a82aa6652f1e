"""Rows and totals: ``row_of`` makes the row of a request, ``add_to`` adds rows, and ``Totals`` reads their sums.

A row holds values by the name of their column. Each is a sum over requests, so rows can be added up. Durations have a
column per bin of a histogram with logarithmic bins: it takes little memory, can be added up, and gives percentiles.
In every row, and so in every sum of rows, prompt tokens equal hits plus the tokens of all reasons.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import ceil, exp2, log2

from gateway.core.canonical import ALL_RULES, RuleMode, RuleName
from gateway.core.decision import is_warm
from gateway.core.explanation import Attribution, Explanation, RequestRecord, SkippedTotals
from gateway.core.outcome import Ending
from gateway.core.reasons import REASONS, Reason, Rung

Row = dict[str, float]
"""Values by the name of their column; a missing one is 0."""

Bins = Mapping[int, int]
"""Number of durations by bin. A bin is 9 % wide, so a percentile is accurate within 4.5 %."""

TURNS = 11
"""Turns from this one on share a column."""

_PER_DOUBLING = 8
_SMALLEST_SECONDS = 1e-4
_LARGEST = 8 * 28
"""Bins up to 2^28 times the smallest duration: seven hours."""

_RULES: tuple[tuple[str, RuleMode], ...] = (
    *((rule.value, mode) for mode in (RuleMode.OBSERVE, RuleMode.APPLY) for rule in RuleName),
    (ALL_RULES, RuleMode.OBSERVE),
)
"""Rules and modes with columns of their own."""

MISSED = {reason: f"missed:{reason}" for reason in Reason}
LOST = {reason: f"lost_gpu_seconds:{reason}" for reason in Reason}
_LADDER = [f"ladder:{rung}" for rung in Rung]


def _by_rule(name: str) -> list[str]:
    return [f"{name}_by_rule:{rule}:{mode}" for rule, mode in _RULES]


_DURATIONS = ("ttft_cold", "ttft_warm", "total_cold", "total_warm")


def _bins(kind: str) -> list[str]:
    return [f"{kind}:{number}" for number in range(_LARGEST + 1)]


_SECTIONS = (
    ("requests", "prompt_tokens", "confirmed", "predicted", *MISSED.values()),
    (*_LADDER, *(f"turn_{kind}:{number}" for kind in ("tokens", "hits") for number in range(TURNS))),
    ("observed_tokens", *_by_rule("saved"), *_by_rule("lost")),
    ("skipped", "observed", *_by_rule("changed"), *(name for kind in _DURATIONS for name in _bins(kind))),
    ("saved_seconds", "saved_gpu_seconds", "lost_seconds", *LOST.values()),
)
"""All columns, those that are read together and have values of a similar range in a section.

* Columns of series: requests, prompt tokens, hits reported by engines, predicted hits of requests without a report,
  missed tokens by reason.
* Lengths of the prefixes of each rung; prompt tokens and hits by turn, from 0 on.
* Prompt tokens of requests that the columns of rules stand for: those tried with rules, and those left out of the
  sample, for which others count with a weight. Tokens saved and lost by rule and mode, times the weight.
* Requests explained without their text, requests that the columns of rules stand for, and those that a rule changes;
  times to first token and total latencies by bin, of requests with less than half of their prompt reused and of others.
* Prefill seconds, and GPU seconds (times the GPUs of a replica), saved by hits and of missed tokens.
"""

COLUMNS = tuple(name for section in _SECTIONS for name in section)
"""The name of each column."""
PLACES = {name: place for place, name in enumerate(COLUMNS)}
"""The number of each column."""
BOUNDS = (0, *accumulate(len(section) for section in _SECTIONS))
"""Where each section begins, and where the last one ends."""


class Totals:
    """Sums over requests. Prompt tokens are hits plus the tokens of all reasons.

    Args:
        row: Their row.
    """

    __slots__ = ("_row",)

    def __init__(self, row: Mapping[str, float]) -> None:
        self._row = row

    def count(self, column: str) -> int:
        """The whole number of a column."""
        return round(self._row.get(column, 0))

    def seconds(self, column: str) -> float:
        """The seconds of a column."""
        return self._row.get(column, 0.0)

    def bins(self, kind: str) -> Bins:
        """Durations of a kind: one of ``_DURATIONS``."""
        return {number: int(self._row[name]) for number, name in enumerate(_bins(kind)) if self._row.get(name)}

    def tokens_of(self, *reasons: Reason) -> int:
        """Tokens missed for the given reasons."""
        return sum(self.count(MISSED[reason]) for reason in reasons)

    @property
    def requests(self) -> int:
        """Number of requests."""
        return self.count("requests")

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return self.count("prompt_tokens")

    @property
    def hits(self) -> int:
        """Prompt tokens that needed no prefill, as engines report or as predicted where an engine reports none."""
        return self.count("confirmed") + self.count("predicted")

    @property
    def missed(self) -> Mapping[Reason, tuple[int, float]]:
        """Tokens and GPU seconds by reason, in the order of ``Reason``; only reasons that have tokens."""
        row = self._row
        found = ((reason, row.get(column)) for reason, column in MISSED.items())
        return {reason: (int(tokens), row.get(LOST[reason], 0.0)) for reason, tokens in found if tokens}

    @property
    def missed_tokens(self) -> Mapping[Reason, int]:
        """Tokens by reason, likewise."""
        return {reason: tokens for reason, (tokens, _) in self.missed.items()}

    @property
    def lost_gpu_seconds(self) -> float:
        """GPU seconds of prefill of missed tokens, over all reasons."""
        return sum(self.seconds(name) for name in LOST.values())

    @property
    def observed(self) -> tuple[int, int]:
        """Number of requests that the sums of rules stand for, and their prompt tokens."""
        return self.count("observed"), self.count("observed_tokens")

    @property
    def rules(self) -> Mapping[tuple[str, RuleMode], tuple[int, int, int]]:
        """By rule and mode: requests changed, tokens saved, tokens lost; without rows of zeros."""
        changed, saved, lost = ([self.count(each) for each in _by_rule(name)] for name in ("changed", "saved", "lost"))
        found = zip(_RULES, zip(changed, saved, lost, strict=True), strict=True)
        return {rule: figures for rule, figures in found if any(figures)}


def row_of(record: RequestRecord, explanation: Explanation, gpus: float) -> Row:
    """The row of one explained request."""
    row = _counted(
        explanation.prompt_tokens,
        explanation.hits,
        explanation.missed,
        explanation.rungs,
        record.prefill_seconds_per_token,
        gpus=gpus,
        confirmed=explanation.hits_confirmed,
    )
    row["requests"] = 1
    if explanation.was_skipped:
        row["skipped"] = 1
    warmth = "warm" if is_warm(explanation.hits, explanation.prompt_tokens) else "cold"
    if record.ttft_seconds is not None:
        row[f"ttft_{warmth}:{bin_of(record.ttft_seconds)}"] = 1
    if record.ending == Ending.COMPLETE:
        row[f"total_{warmth}:{bin_of(record.seconds)}"] = 1
    if explanation.turn:
        turn = min(explanation.turn, TURNS) - 1
        row[f"turn_tokens:{turn}"] = explanation.prompt_tokens
        row[f"turn_hits:{turn}"] = explanation.hits
    if explanation.observed or explanation.left_out:
        row["observed"] = 1
        row["observed_tokens"] = explanation.prompt_tokens
    for outcome in explanation.canonical:
        rule = f"by_rule:{outcome.rule}:{outcome.mode}"
        if outcome.edits:
            row[f"changed_{rule}"] = explanation.weight
        if outcome.saved_tokens:
            row[f"saved_{rule}"] = outcome.saved_tokens * explanation.weight
        if outcome.lost_tokens:
            row[f"lost_{rule}"] = outcome.lost_tokens * explanation.weight
    return row


def row_of_skipped(sums: SkippedTotals, gpus: float) -> Row:
    """The row of requests of which only sums are known: their missed tokens count as unclassified."""
    tokens, hits, confirmed = sums.prompt_tokens, sums.hits, sums.hits_confirmed
    cut = list(Rung).index(REASONS[Reason.UNCLASSIFIED].rung)
    rungs = [hits] * cut + [tokens] * (len(Rung) - cut)
    missed = [Attribution(Reason.UNCLASSIFIED, tokens - hits, confirmed)]
    per_token = sums.prefill_seconds / tokens if tokens else 0.0
    row = _counted(tokens, hits, missed, rungs, per_token, gpus=gpus, confirmed=confirmed)
    row["requests"] = row["skipped"] = sums.requests
    return row


def add_to(row: Row, more: Row) -> None:
    """Add another row in place."""
    for column, figure in more.items():
        row[column] = row.get(column, 0) + figure


def _counted(
    prompt_tokens: int,
    hits: int,
    missed: Sequence[Attribution],
    rungs: Sequence[int],
    per_token: float,
    *,
    gpus: float,
    confirmed: bool,
) -> Row:
    row: Row = {
        "prompt_tokens": prompt_tokens,
        "confirmed" if confirmed else "predicted": hits,
        "saved_seconds": hits * per_token,
        "saved_gpu_seconds": hits * per_token * gpus,
        "lost_seconds": (prompt_tokens - hits) * per_token,
    }
    row |= zip(_LADDER, rungs, strict=False)
    for each in missed:
        if tokens := each.tokens:
            row[MISSED[each.reason]] = tokens
            row[LOST[each.reason]] = tokens * per_token * gpus
    return row


def bin_of(seconds: float) -> int:
    """The bin of a duration."""
    if seconds <= _SMALLEST_SECONDS:
        return 0
    return min(ceil(log2(seconds / _SMALLEST_SECONDS) * _PER_DOUBLING), _LARGEST)


def percentiles(bins: Bins, shares: tuple[float, ...]) -> Iterator[float | None]:
    """The percentiles at the given shares, in seconds; None without durations."""
    numbers = sorted(bins)
    sums = [*accumulate(bins[number] for number in numbers)]
    for share in shares:
        middle = numbers[bisect_left(sums, share * sums[-1])] - 0.5 if sums else None
        yield None if middle is None else round(_SMALLEST_SECONDS * exp2(middle / _PER_DOUBLING), 6)
