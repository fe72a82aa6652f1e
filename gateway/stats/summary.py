"""The summary of a window: hits and misses, their worth, findings and suggestions, JSON-ready."""

from collections.abc import Mapping, Sequence

from gateway.stats import figures
from gateway.stats.canonicalization_totals import rules_summed
from gateway.stats.counters import Counters
from gateway.stats.findings import TopCauses
from gateway.stats.peer_totals import PeerTotals
from gateway.stats.query_arguments import PARTS, Selection
from gateway.stats.stats_limits import ComputePrice
from gateway.stats.suggestions import Suggestions


def summary_shown(
    counts: Counters,
    findings: TopCauses,
    suggestions: Suggestions,
    selection: Selection,
    now: float,
    *,
    since: float,
    price: ComputePrice,
    families: Sequence[Mapping[str, object]],
    elsewhere: PeerTotals | None = None,
) -> dict[str, object]:
    """The summary of a selection.

    Args:
        counts: The counters.
        findings: The causes of misses.
        suggestions: Slots that rules could handle.
        selection: Window and filters.
        now: Unix seconds.
        since: Start of the journal, Unix seconds.
        price: Price of GPU time.
        families: Differences between client families.
        elsewhere: Totals of other gateways to add; None if they were not requested.
    """
    own = counts.sums(selection, now)
    sums = own if elsewhere is None else own.combined(elsewhere.sums(selection))
    total, own_total = sums.total, own.total
    began = since if elsewhere is None or elsewhere.since is None else min(since, elsewhere.since)
    begin = max(counts.first_start(selection, now), began)
    return {
        **selection.shown,
        **({} if elsewhere is None else {"gateways": elsewhere.shown}),
        "covered_seconds": round(max(now - begin, 0.0), 3),
        "since": min(begin, now),
        "price": {"per_gpu_hour": price.per_gpu_hour, "currency": price.currency},
        **figures.totals(total),
        "ladder": figures.ladder(total),
        "reasons": figures.reasons(total, price),
        "ttft": figures.first_tokens(total),
        **figures.value(total, price),
        **{f"by_{part}": figures.grouped(sums.by(part), part, price) for part in PARTS},
        "turns": figures.turns(total),
        "rounding_tokens": figures.rounding_tokens(total),
        "rerendered_tokens": figures.rerendered_tokens(total),
        "findings": findings.shown(selection, now, since=since, prompt_tokens=own_total.prompt_tokens, price=price),
        "families": families,
        "canonicalization": rules_summed(sums, price)
        | {"suggestions": suggestions.shown(selection, now, own_total.observed[1])},
    }
