"""Rows and totals: ``row_of`` makes the row of a request, ``add_to`` adds rows, and ``Totals`` reads their sums.

In every row, and so in every sum of rows, prompt tokens equal hits plus the tokens of all reasons.
"""

from collections.abc import Mapping, Sequence

from gateway.core.canonical import RuleMode
from gateway.core.decision import is_warm
from gateway.core.explanation import Attribution, Explanation, RequestRecord, SkippedTotals
from gateway.core.outcome import Ending
from gateway.core.reasons import REASONS, Reason
from gateway.stats import columns
from gateway.stats.columns import BINS, Bins, Row, bin_of

_NUMBERS = {reason: number for number, reason in enumerate(columns.REASON_COLUMNS)}
_RULES = {rule: number for number, rule in enumerate(columns.RULE_COLUMNS)}


class Totals:
    """Sums over requests. Prompt tokens are hits plus the tokens of all reasons.

    Args:
        figures: One value per column, or only the columns of series (then only requests, hits and tokens can be read).
    """

    __slots__ = ("_figures",)

    def __init__(self, figures: Sequence[float]) -> None:
        self._figures = figures

    @property
    def requests(self) -> int:
        """Number of requests."""
        return self._count(columns.REQUESTS)

    @property
    def skipped(self) -> int:
        """Number of requests explained without their text."""
        return self._count(columns.SKIPPED)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return self._count(columns.PROMPT_TOKENS)

    @property
    def confirmed(self) -> int:
        """Hit tokens reported by engines."""
        return self._count(columns.CONFIRMED)

    @property
    def predicted(self) -> int:
        """Predicted hit tokens of requests whose engine reports none."""
        return self._count(columns.PREDICTED)

    @property
    def hits(self) -> int:
        """Prompt tokens that needed no prefill."""
        return self.confirmed + self.predicted

    @property
    def rungs(self) -> Sequence[int]:
        """Lengths of the ladder's prefixes, in tokens."""
        return [self._count(columns.LADDER + number) for number in range(len(columns.RUNG_COLUMNS))]

    @property
    def missed_tokens(self) -> Mapping[Reason, int]:
        """Tokens by reason, in the order of ``Reason``; only reasons that have tokens."""
        figures = self._figures[columns.MISSED : columns.SERIES]
        return {reason: int(tokens) for reason, tokens in zip(columns.REASON_COLUMNS, figures, strict=True) if tokens}

    @property
    def missed(self) -> Mapping[Reason, tuple[int, float]]:
        """Tokens and GPU seconds by reason; only reasons that have tokens."""
        return {
            reason: (tokens, self._figures[columns.LOST_GPU_SECONDS + _NUMBERS[reason]])
            for reason, tokens in self.missed_tokens.items()
        }

    @property
    def saved_seconds(self) -> float:
        """Prefill seconds saved by hits."""
        return self._figures[columns.SAVED_SECONDS]

    @property
    def saved_gpu_seconds(self) -> float:
        """GPU seconds saved by hits: prefill seconds times the GPUs of a replica."""
        return self._figures[columns.SAVED_GPU_SECONDS]

    @property
    def lost_seconds(self) -> float:
        """Prefill seconds of missed tokens."""
        return self._figures[columns.LOST_SECONDS]

    @property
    def lost_gpu_seconds(self) -> float:
        """GPU seconds of prefill of missed tokens, over all reasons."""
        return sum(self._figures[columns.LOST_GPU_SECONDS : columns.LOST_GPU_SECONDS + len(columns.REASON_COLUMNS)])

    @property
    def cold(self) -> Bins:
        """Times to first token of requests with less than half of their prompt reused."""
        return self._bins(columns.COLD)

    @property
    def warm(self) -> Bins:
        """Times to first token of requests with at least half of their prompt reused."""
        return self._bins(columns.WARM)

    @property
    def cold_total(self) -> Bins:
        """Total latencies of answered requests with less than half of their prompt reused."""
        return self._bins(columns.COLD_TOTAL)

    @property
    def warm_total(self) -> Bins:
        """Total latencies of answered requests with at least half of their prompt reused."""
        return self._bins(columns.WARM_TOTAL)

    @property
    def turns(self) -> Mapping[int, tuple[int, int]]:
        """Prompt tokens and hits, by turn; only turns that have any."""
        return {
            number + 1: (tokens, self._count(columns.TURN_HITS + number))
            for number in range(columns.TURNS)
            if (tokens := self._count(columns.TURN_TOKENS + number))
        }

    @property
    def observed(self) -> tuple[int, int]:
        """Number of requests that the sums of rules stand for, and their prompt tokens."""
        return self._count(columns.OBSERVED), self._count(columns.OBSERVED_TOKENS)

    @property
    def rules(self) -> Mapping[tuple[str, RuleMode], tuple[int, int, int]]:
        """By rule and mode: requests changed, tokens saved, tokens lost; without rows of zeros."""
        found = {
            rule: (
                self._count(columns.CHANGED_BY_RULE + number),
                self._count(columns.SAVED_BY_RULE + number),
                self._count(columns.LOST_BY_RULE + number),
            )
            for number, rule in enumerate(columns.RULE_COLUMNS)
        }
        return {rule: figures for rule, figures in found.items() if any(figures)}

    @property
    def gpu_seconds_per_token(self) -> float:
        """Mean GPU seconds of prefill per prompt token."""
        spent = self.saved_gpu_seconds + self.lost_gpu_seconds
        return spent / self.prompt_tokens if self.prompt_tokens else 0.0

    def tokens_of(self, *reasons: Reason) -> int:
        """Tokens missed for the given reasons."""
        return sum(self._count(columns.MISSED + _NUMBERS[reason]) for reason in reasons)

    def _count(self, column: int) -> int:
        return round(self._figures[column])

    def _bins(self, first: int) -> Bins:
        counts = self._figures[first : first + BINS]
        return {number: int(count) for number, count in enumerate(counts) if count}


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
    row[columns.REQUESTS] = 1
    if explanation.was_skipped:
        row[columns.SKIPPED] = 1
    warm = is_warm(explanation.hits, explanation.prompt_tokens)
    if record.ttft_seconds is not None:
        row[(columns.WARM if warm else columns.COLD) + bin_of(record.ttft_seconds)] = 1
    if record.ending == Ending.COMPLETE:
        row[(columns.WARM_TOTAL if warm else columns.COLD_TOTAL) + bin_of(record.seconds)] = 1
    if explanation.turn:
        turn = min(explanation.turn, columns.TURNS) - 1
        row[columns.TURN_TOKENS + turn] = explanation.prompt_tokens
        row[columns.TURN_HITS + turn] = explanation.hits
    if explanation.observed or explanation.left_out:
        row[columns.OBSERVED] = 1
        row[columns.OBSERVED_TOKENS] = explanation.prompt_tokens
    for outcome in explanation.canonical:
        number = _RULES[outcome.rule, outcome.mode]
        if outcome.edits:
            row[columns.CHANGED_BY_RULE + number] = explanation.weight
        if outcome.saved_tokens:
            row[columns.SAVED_BY_RULE + number] = outcome.saved_tokens * explanation.weight
        if outcome.lost_tokens:
            row[columns.LOST_BY_RULE + number] = outcome.lost_tokens * explanation.weight
    return row


def row_of_skipped(sums: SkippedTotals, gpus: float) -> Row:
    """The row of requests of which only sums are known: their missed tokens count as unclassified."""
    tokens, hits, confirmed = sums.prompt_tokens, sums.hits, sums.hits_confirmed
    cut = columns.RUNG_COLUMNS.index(REASONS[Reason.UNCLASSIFIED].rung)
    rungs = [hits] * cut + [tokens] * (len(columns.RUNG_COLUMNS) - cut)
    missed = [Attribution(Reason.UNCLASSIFIED, tokens - hits, confirmed)]
    per_token = sums.prefill_seconds / tokens if tokens else 0.0
    row = _counted(tokens, hits, missed, rungs, per_token, gpus=gpus, confirmed=confirmed)
    row[columns.REQUESTS] = row[columns.SKIPPED] = sums.requests
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
        columns.PROMPT_TOKENS: prompt_tokens,
        columns.CONFIRMED if confirmed else columns.PREDICTED: hits,
        columns.SAVED_SECONDS: hits * per_token,
        columns.SAVED_GPU_SECONDS: hits * per_token * gpus,
        columns.LOST_SECONDS: (prompt_tokens - hits) * per_token,
    }
    row |= enumerate(rungs, columns.LADDER)
    for each in missed:
        if tokens := each.tokens:
            number = _NUMBERS[each.reason]
            row[columns.MISSED + number] = tokens
            row[columns.LOST_GPU_SECONDS + number] = tokens * per_token * gpus
    return row
