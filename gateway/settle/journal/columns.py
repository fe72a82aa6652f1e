"""The figures that are counted: each is a sum over requests and has a column, so that rows of figures can be added up.

Columns that are needed together, and whose numbers are of like size, stand together in a section.
"""

from gateway.settle.journal.histogram import BINS
from gateway.values.reasons import Reason, Rung

TURNS = 11
"""Turns from this one on are counted together."""

REASONS = tuple(Reason)
RUNGS = tuple(Rung)

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

SKIPPED = TURN_HITS + TURNS
"""Requests that were explained without their text."""
COLD = SKIPPED + 1
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

SECTIONS = ((0, SERIES), (SERIES, SKIPPED), (SKIPPED, SAVED_SECONDS), (SAVED_SECONDS, WIDTH))
"""Where each begins and ends: what series need, other tokens, requests, seconds. Only the last holds fractions."""

Row = dict[int, float]
"""Figures by column; a column that is left out is 0."""
