"""The figures of a selection, JSON-ready: sums of the summary, effects of rules, and series over time."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise

from gateway.core.canonical import ALL_RULES, RuleMode
from gateway.core.reasons import AVOIDABLE, REASONS, RUNGS, Reason, Remedy, Rung
from gateway.stats.counters import Counters, SelectionTotals, named
from gateway.stats.label_limiter import OTHER
from gateway.stats.prices import ComputePrice
from gateway.stats.query_arguments import Part, Selection
from gateway.stats.time_buckets import COUNTS
from gateway.stats.totals import TURNS, Bins, Totals, percentiles
from gateway.stats.tried_conversations import TriedConversations

_AVOIDABLE = (Remedy.APPLICATION, Remedy.GATEWAY, Remedy.CAPACITY)
_REASON_FIELDS = ("title", "meaning", "advice", "rung", "remedy", "rules")


def totals(cell: Totals) -> dict[str, object]:
    """Requests, tokens and hits."""
    return {
        "requests": cell.requests,
        "skipped": cell.count("skipped"),
        "prompt_tokens": cell.prompt_tokens,
        "hits": cell.hits,
        "hits_confirmed": cell.count("confirmed"),
        "hits_predicted": cell.count("predicted"),
        "hit_rate": share(cell.hits, cell.prompt_tokens),
    }


def share(part: float, whole: float) -> float | None:
    """A part of a whole, from 0 to 1; None if the whole is 0."""
    return round(part / whole, 6) if whole else None


def seconds(value: float) -> float:
    """Seconds to the microsecond."""
    return round(float(value), 6)


def ladder(cell: Totals) -> list[dict[str, object]]:
    """The rungs, each with its tokens and its tokens above the rung below."""
    lengths = pairwise([0, *(cell.count(f"ladder:{rung}") for rung in Rung)])
    return [
        {"rung": rung, "title": RUNGS[rung].title, "tokens": tokens, "more": tokens - below}
        for rung, (below, tokens) in zip(Rung, lengths, strict=True)
    ]


def reasons(cell: Totals, price: ComputePrice) -> list[dict[str, object]]:
    """Missed tokens by reason, most tokens first."""
    return [
        {
            "code": reason,
            "title": REASONS[reason].title,
            "tokens": tokens,
            "share": share(tokens, cell.prompt_tokens),
            "gpu_seconds": seconds(gpu_seconds),
            "money": price.of(gpu_seconds),
            "remedy": REASONS[reason].remedy,
            "advice": REASONS[reason].advice,
        }
        for reason, (tokens, gpu_seconds) in sorted(cell.missed.items(), key=lambda each: -each[1][0])
    ]


def durations(cell: Totals, kind: str) -> dict[str, object]:
    """Times of cold and warm requests. ``kind``: ``ttft``, the time to the first token, or ``total``, from arrival to
    the end of the answer, where that is complete."""
    return {warmth: _spread(cell.bins(f"{kind}_{warmth}")) for warmth in ("cold", "warm")}


def value(cell: Totals, price: ComputePrice) -> dict[str, object]:
    """What hits saved, what misses cost, and which part of that is avoidable, by remedy."""
    missed = cell.missed
    avoidable = {
        remedy: [each for reason, each in missed.items() if REASONS[reason].remedy is remedy] for remedy in _AVOIDABLE
    }
    return {
        "saved": _worth(cell.hits, cell.seconds("saved_gpu_seconds"), price)
        | {"prefill_seconds": seconds(cell.seconds("saved_seconds"))},
        "lost": _worth(cell.prompt_tokens - cell.hits, cell.lost_gpu_seconds, price)
        | {"prefill_seconds": seconds(cell.seconds("lost_seconds"))},
        "avoidable": _worth_of((each for some in avoidable.values() for each in some), price)
        | {
            "by_remedy": {remedy.value: _worth_of(some, price) for remedy, some in avoidable.items()},
            "estimated": _estimated(cell, price),
        },
    }


def _estimated(cell: Totals, price: ComputePrice) -> dict[str, object] | None:
    """The avoidable part if unclassified misses have the reasons of those that were found by their text; None if no
    request was left out, or nothing is known. Requests that are left out have the reasons of the lowest rungs, too."""
    missed = cell.missed
    of_text = missed.keys() - {Reason.UNCLASSIFIED}
    of_text -= {reason for reason in missed if REASONS[reason].rung in (Rung.CHOSEN, Rung.ANYWHERE)}
    known = sum(missed[reason][0] for reason in of_text)
    if not cell.count("skipped") or not known:
        return None
    factor = 1 + missed.get(Reason.UNCLASSIFIED, (0, 0.0))[0] / known
    avoidable = (
        (*each, factor if reason in of_text else 1.0) for reason, each in missed.items() if reason in AVOIDABLE
    )
    return _worth_of(((round(tokens * more), lost * more) for tokens, lost, more in avoidable), price)


def turns(cell: Totals) -> list[dict[str, object]]:
    """Hit rate by the turn of the conversation; turns without tokens are left out."""
    counted = ((cell.count(f"turn_tokens:{number}"), cell.count(f"turn_hits:{number}")) for number in range(TURNS))
    return [
        {
            "turn": f"{turn}{'+' * (turn == TURNS)}",
            "prompt_tokens": tokens,
            "hits": hits,
            "hit_rate": share(hits, tokens),
        }
        for turn, (tokens, hits) in enumerate(counted, 1)
        if tokens
    ]


def grouped(cells: Mapping[str, Totals], part: Part, price: ComputePrice) -> list[dict[str, object]]:
    """Sums grouped by a label, most prompt tokens first."""
    return [
        {part: name}
        | totals(cell)
        | {"reasons": {reason.value: tokens for reason, tokens in cell.missed_tokens.items()}}
        | value(cell, price)
        for name, cell in sorted(cells.items(), key=lambda each: (-each[1].prompt_tokens, each[0]))
    ]


def _spread(bins: Bins) -> dict[str, object]:
    p50, p90, p95, p99 = percentiles(bins, (0.5, 0.9, 0.95, 0.99))
    return {"requests": sum(bins.values()), "p50": p50, "p90": p90, "p95": p95, "p99": p99}


def _worth(tokens: int, gpu_seconds: float, price: ComputePrice) -> dict[str, object]:
    return {"tokens": tokens, "gpu_seconds": seconds(gpu_seconds), "money": price.of(gpu_seconds)}


def _worth_of(missed: Iterable[tuple[int, float]], price: ComputePrice) -> dict[str, object]:
    every = list(missed)
    return _worth(sum(tokens for tokens, _ in every), sum(lost for _, lost in every), price)


def rules_summed(sums: SelectionTotals, price: ComputePrice, tried: TriedConversations) -> dict[str, object]:
    """The effect of each rule over a selection, largest net saving first.

    Args:
        sums: The sums of the selection.
        price: Price of GPU time.
        tried: The conversations of the requests that are still kept.
    """
    total = sums.total
    requests, tokens = total.observed
    gpu_seconds: Counter[tuple[str, RuleMode]] = Counter()
    # A saved token is priced by the prefill speed of its model's replicas.
    for cell in sums.by("model").values():
        spent = cell.seconds("saved_gpu_seconds") + cell.lost_gpu_seconds
        per_token = spent / cell.prompt_tokens if cell.prompt_tokens else 0.0
        for rule, (_, saved, lost) in cell.rules.items():
            gpu_seconds[rule] += (saved - lost) * per_token  # type: ignore[assignment]
    found = total.rules
    if sum(mode is RuleMode.OBSERVE for _, mode in found) <= 2:
        # With a single observed rule, ``ALL_RULES`` repeats its figures.
        found = {rule: figures for rule, figures in found.items() if rule[0] != ALL_RULES}
    rules = [
        {
            "rule": rule,
            "mode": mode,
            "requests": min(changed, requests),
            "saved_tokens": saved,
            "lost_tokens": lost,
            "net_tokens": saved - lost,
            "points": (moved := points(saved - lost, tokens)),
            "points_interval": tried.around(rule, mode, moved),
            "gpu_seconds": seconds(gpu_seconds[rule, mode]),
            "cost": price.of(gpu_seconds[rule, mode]),
        }
        for (rule, mode), (changed, saved, lost) in sorted(found.items(), key=lambda each: each[1][2] - each[1][1])
    ]
    looked_at = {"requests": requests, "prompt_tokens": tokens, "conversations": tried.shown}
    return {"looked_at": looked_at, "rules": rules}


def points(tokens: int, prompt_tokens: int) -> float | None:
    """Percentage points that tokens add to the hit rate; None without prompt tokens."""
    return round(100 * tokens / prompt_tokens, 4) if prompt_tokens else None


_GROUPS = 7
"""Maximum number of groups of their own; those with fewer missed tokens are summed as ``(other)``."""


def series_shown(
    counts: Counters, selection: Selection, *, since: float, only: Reason | None, by: Part | None
) -> dict[str, object]:
    """The series of a selection.

    Args:
        counts: The counters.
        selection: Window and filters.
        since: Start of the journal, Unix seconds.
        only: The only reason shown; None for all.
        by: The label to group by; None for no groups.
    """
    starts = selection.starts(COUNTS)
    groups = [] if by is None else _largest(counts, selection, by, only)
    figures = counts.series(selection, groups or [""], by)
    buckets: list[dict[str, object]] = []
    for start in starts:
        found = figures.get(start)
        if found is None and start + starts.step <= since:
            continue
        bucket = _bucket(start, Totals({} if found is None else named(found.sum(axis=0))), only)
        if groups:
            cells = [{}] * len(groups) if found is None else map(named, found)
            bucket["groups"] = {name: _group(Totals(cell), only) for name, cell in zip(groups, cells, strict=True)}
        buckets.append(bucket)
    grouping: dict[str, object] = {} if by is None else {"by": by, "groups": groups}
    return {
        **selection.shown,
        "reason": only,
        **grouping,
        "step_seconds": starts.step,
        "covered_seconds": round(max(selection.now - max(starts[0], since), 0.0), 3),
        "buckets": buckets,
        "catalog": [
            {"code": reason} | {name: getattr(text, name) for name in _REASON_FIELDS}
            for reason, text in REASONS.items()
        ],
        "rungs": [{"rung": rung, "title": RUNGS[rung].title, "meaning": RUNGS[rung].meaning} for rung in Rung],
    }


def _largest(counts: Counters, selection: Selection, by: Part, only: Reason | None) -> list[str]:
    """The names with the most missed tokens, and ``OTHER`` if there are more."""
    missed = {name: _missed(cell, only) for name, cell in counts.sums(selection, sections=1).by(by).items()}
    ranked = sorted(missed.keys() - {OTHER}, key=lambda name: (-missed[name], name))
    return ranked[:_GROUPS] + ([OTHER] if len(missed) > len(ranked[:_GROUPS]) else [])


def _bucket(start: int, cell: Totals, only: Reason | None) -> dict[str, object]:
    return {
        "start": start,
        "requests": cell.requests,
        "prompt_tokens": cell.prompt_tokens,
        "hits": cell.hits,
        "reasons": {reason.value: tokens for reason, tokens in cell.missed_tokens.items() if only in {None, reason}},
    }


def _group(cell: Totals, only: Reason | None) -> Mapping[str, int]:
    return {"prompt_tokens": cell.prompt_tokens, "hits": cell.hits, "missed": _missed(cell, only)}


def _missed(cell: Totals, only: Reason | None) -> int:
    return cell.prompt_tokens - cell.hits if only is None else cell.tokens_of(only)
