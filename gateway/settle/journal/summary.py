"""Where the prompt tokens of a window went, what that was worth, and what costs most, JSON-ready."""

from collections.abc import Mapping, Sequence

from gateway.settle.journal import figures
from gateway.settle.journal.arguments import PARTS, Selection
from gateway.settle.journal.canonical import rules_summed
from gateway.settle.journal.counts import Counts
from gateway.settle.journal.findings import Findings
from gateway.settle.journal.limits import Price
from gateway.settle.journal.suggestions import Suggestions


def summary_shown(
    counts: Counts,
    findings: Findings,
    suggestions: Suggestions,
    selection: Selection,
    now: float,
    *,
    since: float,
    price: Price,
    families: Sequence[Mapping[str, object]],
) -> dict[str, object]:
    """The summary of a selection.

    Args:
        counts: What was counted.
        findings: What was found.
        suggestions: What rules could be told of.
        selection: The window, and whose.
        now: The time.
        since: When the journal began.
        price: What computing costs.
        families: How client families differ.
    """
    sums = counts.sums(selection, now)
    total = sums.total
    begin = max(counts.first_start(selection, now), since)
    return {
        **selection.shown,
        "covered_seconds": round(max(now - begin, 0.0), 3),
        "since": min(begin, now),
        "price": {"per_gpu_hour": price.per_gpu_hour, "currency": price.currency},
        **figures.totals(total),
        "ladder": figures.ladder(total),
        "reasons": figures.reasons(total, price),
        "ttft": figures.first_tokens(total),
        **figures.value(total, price),
        **{f"by_{part}": figures.apart(sums.by(part), part, price) for part in PARTS},
        "turns": figures.turns(total),
        "rounding_tokens": figures.rounding_tokens(total),
        "rerendered_tokens": figures.rerendered_tokens(total),
        "findings": findings.shown(selection, now, since=since, prompt_tokens=total.prompt_tokens, price=price),
        "families": families,
        "canonicalization": rules_summed(sums, price)
        | {"suggestions": suggestions.shown(selection, now, total.observed[1])},
    }
