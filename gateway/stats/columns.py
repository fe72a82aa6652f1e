"""The figures that are counted: each is a sum over requests and has a column, so that rows of figures can be added up.

Columns that are needed together, and whose numbers are of like size, stand together in a section.
"""

from gateway.core.canonical import ALL_RULES, RuleMode, RuleName
from gateway.core.reasons import Reason, Rung
from gateway.stats.histogram import BINS

TURNS = 11
"""Turns from this one on are counted together."""

REASONS = tuple(Reason)
RUNGS = tuple(Rung)
RULES: tuple[tuple[str, RuleMode], ...] = (
    *((rule.value, mode) for mode in (RuleMode.OBSERVE, RuleMode.APPLY) for rule in RuleName),
    (ALL_RULES, RuleMode.OBSERVE),
)
"""Rules and modes that are told apart."""

REQUESTS, PROMPT_TOKENS, CONFIRMED, PREDICTED = range(4)
"""Requests; their prompt tokens; hits that engines reported; hits of requests of which they reported nothing."""
MISSED = PREDICTED + 1
"""The first of a column for each reason: missed tokens."""
SERIES = MISSED + len(REASONS)
"""End of the columns that series are drawn from."""

LADDER = SERIES
"""The first of a column for each rung: the lengths of these prefixes, in tokens."""
TURN_TOKENS = LADDER + len(RUNGS)
"""The first of a column for each turn: prompt tokens."""
TURN_HITS = TURN_TOKENS + TURNS
"""Likewise: hits."""

OBSERVED_TOKENS = TURN_HITS + TURNS
"""Prompt tokens of requests for which it was worked out what rules save."""
SAVED_BY_RULE = OBSERVED_TOKENS + 1
"""The first of a column for each rule and mode: tokens saved."""
LOST_BY_RULE = SAVED_BY_RULE + len(RULES)
"""Likewise: tokens lost."""

SKIPPED = LOST_BY_RULE + len(RULES)
"""Requests that were explained without their text."""
OBSERVED = SKIPPED + 1
"""Requests for which it was worked out what rules save."""
CHANGED_BY_RULE = OBSERVED + 1
"""The first of a column for each rule and mode: requests in which it changes anything."""
COLD = CHANGED_BY_RULE + len(RULES)
"""The first of a column for each bin of times to first token, of requests without hits."""
WARM = COLD + BINS
"""Likewise, of requests with hits."""

SAVED_SECONDS = WARM + BINS
"""Prefill that hits made unnecessary."""
SAVED_GPU_SECONDS = SAVED_SECONDS + 1
"""The same times the GPUs of a replica."""
LOST_SECONDS = SAVED_GPU_SECONDS + 1
"""Prefill of what was missed."""
LOST_GPU_SECONDS = LOST_SECONDS + 1
"""The first of a column for each reason: GPU seconds of what was missed."""
WIDTH = LOST_GPU_SECONDS + len(REASONS)
"""How many columns there are."""

SECTIONS = (
    (0, SERIES),
    (SERIES, OBSERVED_TOKENS),
    (OBSERVED_TOKENS, SKIPPED),
    (SKIPPED, SAVED_SECONDS),
    (SAVED_SECONDS, WIDTH),
)
"""Where each begins and ends: what series need, other tokens, those of rules, requests, seconds. Only the last holds
fractions."""

Row = dict[int, float]
"""Figures by column; a column that is left out is 0."""
