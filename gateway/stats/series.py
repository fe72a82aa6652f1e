"""Series: hits and missed tokens by reason in each time bucket of a window, JSON-ready."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.core.reasons import REASONS as REASON_TEXTS
from gateway.core.reasons import RUNGS, Reason, Rung
from gateway.stats.columns import CONFIRMED, MISSED, PREDICTED, PROMPT_TOKENS, REASONS, SERIES
from gateway.stats.counters import Counters
from gateway.stats.label_limiter import OTHER, StatsKey
from gateway.stats.query_arguments import Part, Selection
from gateway.stats.totals import Totals

_GROUPS = 7
"""Maximum number of groups of their own; those with fewer missed tokens are summed as ``(other)``."""

_NOTHING = Totals([0] * SERIES)


def series_shown(
    counts: Counters, selection: Selection, now: float, *, since: float, only: Reason | None, by: Part | None
) -> dict[str, object]:
    """The series of a selection.

    Args:
        counts: The counters.
        selection: Window and filters.
        now: Unix seconds.
        since: Start of the journal, Unix seconds.
        only: The only reason shown; None for all.
        by: The label to group by; None for no groups.
    """
    step, first = counts.step(selection), counts.first_start(selection, now)
    groups = [] if by is None else _largest(counts, selection, now, by, only)
    names = groups or [""]
    starts, figures = counts.series(selection, now, names, _name_of(by, names))
    buckets = {
        start: _bucket(start, _NOTHING, only) for start in range(first, int(now) + 1, step) if start + step > since
    }
    buckets |= {
        start: _bucket(start, Totals(row), only)
        for start, row in zip(starts, figures.sum(axis=1).tolist(), strict=True)
    }
    if groups:
        nothing = dict.fromkeys(groups, _group(0, 0, 0))
        apart = dict(zip(starts, _apart(figures, groups, only), strict=True))
        for start, bucket in buckets.items():
            bucket["groups"] = apart.get(start, nothing)
    grouping: dict[str, object] = {} if by is None else {"by": by, "groups": groups}
    return {
        **selection.shown,
        "reason": only,
        **grouping,
        "step_seconds": step,
        "covered_seconds": round(max(now - max(first, since), 0.0), 3),
        "buckets": [buckets[start] for start in sorted(buckets)],
        "catalog": catalog(),
        "rungs": rungs(),
    }


def _largest(counts: Counters, selection: Selection, now: float, by: Part, only: Reason | None) -> list[str]:
    """The names with the most missed tokens, and ``OTHER`` if there are more."""
    missed = {name: _missed(cell, only) for name, cell in counts.sums(selection, now, sections=1).by(by).items()}
    ranked = sorted(missed.keys() - {OTHER}, key=lambda name: (-missed[name], name))
    return ranked[:_GROUPS] + ([OTHER] if len(missed) > len(ranked[:_GROUPS]) else [])


def _name_of(by: Part | None, names: Sequence[str]) -> Callable[[StatsKey], str]:
    """Maps a key to its group: its own name, or the last group for all others."""
    last, apart = names[-1], frozenset(names)
    return lambda key: name if by is not None and (name := getattr(key, by)) in apart else last


def _bucket(start: int, cell: Totals, only: Reason | None) -> dict[str, object]:
    return {
        "start": start,
        "requests": cell.requests,
        "prompt_tokens": cell.prompt_tokens,
        "hits": cell.hits,
        "reasons": {reason.value: tokens for reason, tokens in cell.missed_tokens.items() if only in {None, reason}},
    }


def _apart(figures: NDArray[np.float64], groups: Sequence[str], only: Reason | None) -> Iterator[dict[str, object]]:
    """For each bucket, prompt tokens, hits and missed tokens of each group."""
    prompt_tokens = figures[..., PROMPT_TOKENS]
    hits = figures[..., CONFIRMED] + figures[..., PREDICTED]
    missed = prompt_tokens - hits if only is None else figures[..., MISSED + REASONS.index(only)]
    whole = (each.astype(np.int64).tolist() for each in (prompt_tokens, hits, missed))
    for bucket in zip(*whole, strict=True):
        yield dict(zip(groups, map(_group, *bucket), strict=True))


def _group(prompt_tokens: int, hits: int, missed: int) -> Mapping[str, int]:
    return {"prompt_tokens": prompt_tokens, "hits": hits, "missed": missed}


def _missed(cell: Totals, only: Reason | None) -> int:
    return cell.prompt_tokens - cell.hits if only is None else cell.tokens_of(only)


def catalog() -> list[dict[str, object]]:
    """Every reason, in the order of the ladder."""
    return [
        {
            "code": reason,
            "title": text.title,
            "meaning": text.meaning,
            "advice": text.advice,
            "rung": text.rung,
            "remedy": text.remedy,
            "rules": text.rules,
        }
        for reason, text in REASON_TEXTS.items()
    ]


def rungs() -> list[dict[str, object]]:
    """Every rung, in the order of the ladder."""
    return [{"rung": rung, "title": RUNGS[rung].title, "meaning": RUNGS[rung].meaning} for rung in Rung]
