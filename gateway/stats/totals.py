"""Rows and totals: ``row_of`` makes the row of a request, ``add_to`` adds rows, and ``Totals`` reads their sums.

A row holds values by the name of their column. Each is a sum over requests, so rows can be added up. Durations have a
column per bin of a histogram with logarithmic bins: it takes little memory, can be added up, and gives percentiles.
In every row, and so in every sum of rows, prompt tokens equal hits plus the tokens of all reasons.
"""

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

_BINS = range(_LARGEST + 1)
_REASONS, _RUNGS, _TURNS = tuple(Reason), tuple(Rung), range(1, TURNS + 1)
_RULES: tuple[tuple[str, RuleMode], ...] = (
    *((rule.value, mode) for mode in (RuleMode.OBSERVE, RuleMode.APPLY) for rule in RuleName),
    (ALL_RULES, RuleMode.OBSERVE),
)
"""Rules and modes with columns of their own."""


def _columns(prefix: str, endings: Sequence[object]) -> dict[object, str]:
    """The name of each ending's column."""
    return {ending: f"{prefix}:{ending}" for ending in endings}


MISSED = _columns("missed", _REASONS)
"""Missed tokens by reason."""
LOST = _columns("lost_gpu_seconds", _REASONS)
"""GPU seconds of missed tokens by reason."""
_LADDER = _columns("ladder", _RUNGS)
"""Lengths of the prefixes of each rung, in tokens."""
# By their number from 0 on, as histories have named them.
_TURN_TOKENS = {turn: f"turn_tokens:{turn - 1}" for turn in _TURNS}
_TURN_HITS = {turn: f"turn_hits:{turn - 1}" for turn in _TURNS}
_SAVED, _LOST_BY_RULE, _CHANGED = (
    {rule: f"{prefix}:{':'.join(rule)}" for rule in _RULES}
    for prefix in ("saved_by_rule", "lost_by_rule", "changed_by_rule")
)
"""Of each rule and mode: tokens saved, tokens lost and requests changed, each times the weight of the request."""
_DURATIONS = {
    kind: [f"{kind}:{number}" for number in _BINS] for kind in ("ttft_cold", "ttft_warm", "total_cold", "total_warm")
}
"""Durations by bin: times to first token and total latencies of answered requests, with less than half of their prompt
reused and with at least half of it."""

_SECTIONS: tuple[tuple[str, ...], ...] = (
    ("requests", "prompt_tokens", "confirmed", "predicted", *MISSED.values()),
    (*_LADDER.values(), *_TURN_TOKENS.values(), *_TURN_HITS.values()),
    ("observed_tokens", *_SAVED.values(), *_LOST_BY_RULE.values()),
    ("skipped", "observed", *_CHANGED.values(), *(name for bins in _DURATIONS.values() for name in bins)),
    ("saved_seconds", "saved_gpu_seconds", "lost_seconds", *LOST.values()),
)
"""All columns. Those of a section are read together and have values of a similar range: columns of series, other
tokens, of rules, requests, seconds. The last holds fractions; columns of rules may, where the share of the sample is
not one of a whole number. ``observed``: requests that the columns of rules stand for, those tried and those left out of
the sample, for which others count with a weight."""

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
        """Durations of a kind: ``ttft_cold``, ``ttft_warm``, ``total_cold`` or ``total_warm``."""
        return {number: int(self._row[name]) for number, name in enumerate(_DURATIONS[kind]) if self._row.get(name)}

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
    def rungs(self) -> Sequence[int]:
        """Lengths of the ladder's prefixes, in tokens."""
        return [self.count(name) for name in _LADDER.values()]

    @property
    def missed(self) -> Mapping[Reason, tuple[int, float]]:
        """Tokens and GPU seconds by reason, in the order of ``Reason``; only reasons that have tokens."""
        row = self._row
        return {
            reason: (int(row[MISSED[reason]]), row.get(LOST[reason], 0.0))
            for reason in _REASONS
            if row.get(MISSED[reason])
        }

    @property
    def missed_tokens(self) -> Mapping[Reason, int]:
        """Tokens by reason, likewise."""
        return {reason: tokens for reason, (tokens, _) in self.missed.items()}

    @property
    def lost_gpu_seconds(self) -> float:
        """GPU seconds of prefill of missed tokens, over all reasons."""
        return sum(self.seconds(name) for name in LOST.values())

    @property
    def turns(self) -> Mapping[int, tuple[int, int]]:
        """Prompt tokens and hits by the turn of the conversation; turns without tokens are left out."""
        found = {turn: (self.count(_TURN_TOKENS[turn]), self.count(_TURN_HITS[turn])) for turn in _TURNS}
        return {turn: figures for turn, figures in found.items() if figures[0]}

    @property
    def observed(self) -> tuple[int, int]:
        """Number of requests that the sums of rules stand for, and their prompt tokens."""
        return self.count("observed"), self.count("observed_tokens")

    @property
    def rules(self) -> Mapping[tuple[str, RuleMode], tuple[int, int, int]]:
        """By rule and mode: requests changed, tokens saved, tokens lost; without rows of zeros."""
        found = {
            rule: (self.count(_CHANGED[rule]), self.count(_SAVED[rule]), self.count(_LOST_BY_RULE[rule]))
            for rule in _RULES
        }
        return {rule: figures for rule, figures in found.items() if any(figures)}

    @property
    def gpu_seconds_per_token(self) -> float:
        """Mean GPU seconds of prefill per prompt token."""
        spent = self.seconds("saved_gpu_seconds") + self.lost_gpu_seconds
        return spent / self.prompt_tokens if self.prompt_tokens else 0.0


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
        turn = min(explanation.turn, TURNS)
        row[_TURN_TOKENS[turn]] = explanation.prompt_tokens
        row[_TURN_HITS[turn]] = explanation.hits
    if explanation.observed or explanation.left_out:
        row["observed"] = 1
        row["observed_tokens"] = explanation.prompt_tokens
    for outcome in explanation.canonical:
        rule = outcome.rule, outcome.mode
        if outcome.edits:
            row[_CHANGED[rule]] = explanation.weight
        if outcome.saved_tokens:
            row[_SAVED[rule]] = outcome.saved_tokens * explanation.weight
        if outcome.lost_tokens:
            row[_LOST_BY_RULE[rule]] = outcome.lost_tokens * explanation.weight
    return row


def row_of_skipped(sums: SkippedTotals, gpus: float) -> Row:
    """The row of requests of which only sums are known: their missed tokens count as unclassified."""
    tokens, hits, confirmed = sums.prompt_tokens, sums.hits, sums.hits_confirmed
    cut = _RUNGS.index(REASONS[Reason.UNCLASSIFIED].rung)
    rungs = [hits] * cut + [tokens] * (len(_RUNGS) - cut)
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
    row |= zip(_LADDER.values(), rungs, strict=False)
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
