"""Rows: the columns of one request, or of requests of which only sums are known.

In every row, and so in every sum of rows, prompt tokens equal hits plus the tokens of all reasons.
"""

from collections.abc import Sequence

from gateway.core.decision import is_warm
from gateway.core.explanation import Explanation, RequestRecord
from gateway.core.reasons import REASONS, Reason
from gateway.stats import columns
from gateway.stats.columns import Row
from gateway.stats.histogram import bin_of

_NUMBERS = {reason: number for number, reason in enumerate(columns.REASONS)}
_RULES = {rule: number for number, rule in enumerate(columns.RULES)}


def row_of(finished: RequestRecord, explanation: Explanation, gpus: float) -> Row:
    """The row of one explained request."""
    row = _counted(
        explanation.prompt_tokens,
        explanation.hits,
        [(each.reason, each.tokens) for each in explanation.missed],
        explanation.rungs,
        finished.prefill_seconds_per_token,
        gpus=gpus,
        confirmed=explanation.hits_confirmed,
    )
    row[columns.REQUESTS] = 1
    if explanation.was_skipped:
        row[columns.SKIPPED] = 1
    if finished.ttft_seconds is not None:
        warm = is_warm(explanation.hits, explanation.prompt_tokens)
        row[(columns.WARM if warm else columns.COLD) + bin_of(finished.ttft_seconds)] = 1
    if explanation.turn:
        turn = min(explanation.turn, columns.TURNS) - 1
        row[columns.TURN_TOKENS + turn] = explanation.prompt_tokens
        row[columns.TURN_HITS + turn] = explanation.hits
    if explanation.observed:
        row[columns.OBSERVED] = 1
        row[columns.OBSERVED_TOKENS] = explanation.prompt_tokens
    for outcome in explanation.canonical:
        number = _RULES[outcome.rule, outcome.mode]
        if outcome.edits:
            row[columns.CHANGED_BY_RULE + number] = 1
        if outcome.saved_tokens:
            row[columns.SAVED_BY_RULE + number] = outcome.saved_tokens
        if outcome.lost_tokens:
            row[columns.LOST_BY_RULE + number] = outcome.lost_tokens
    return row


def row_of_skipped(
    requests: int, prompt_tokens: int, hits: int, per_token: float, *, gpus: float, confirmed: bool
) -> Row:
    """The row of requests of which only sums are known: their missed tokens count as unclassified."""
    cut = columns.RUNGS.index(REASONS[Reason.UNCLASSIFIED].rung)
    rungs = [hits] * cut + [prompt_tokens] * (len(columns.RUNGS) - cut)
    missed = [(Reason.UNCLASSIFIED, prompt_tokens - hits)]
    row = _counted(prompt_tokens, hits, missed, rungs, per_token, gpus=gpus, confirmed=confirmed)
    row[columns.REQUESTS] = row[columns.SKIPPED] = requests
    return row


def add_to(row: Row, more: Row) -> None:
    """Add another row in place."""
    for column, figure in more.items():
        row[column] = row.get(column, 0) + figure


def _counted(
    prompt_tokens: int,
    hits: int,
    missed: Sequence[tuple[Reason, int]],
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
    for reason, tokens in missed:
        if tokens:
            number = _NUMBERS[reason]
            row[columns.MISSED + number] = tokens
            row[columns.LOST_GPU_SECONDS + number] = tokens * per_token * gpus
    return row
