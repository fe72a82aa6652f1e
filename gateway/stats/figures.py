"""The figures of the summary, JSON-ready: made from the totals of a selection."""

from collections.abc import Iterable, Mapping

from gateway.core.reasons import REASONS, RUNGS, Reason, Remedy, Rung
from gateway.stats.columns import TURNS
from gateway.stats.histogram import Bins, percentiles
from gateway.stats.query_arguments import Part
from gateway.stats.stats_limits import ComputePrice
from gateway.stats.totals import Totals

_AVOIDABLE = (Remedy.APPLICATION, Remedy.GATEWAY, Remedy.CAPACITY)
_SECONDS_DIGITS = 6


def share(part: float, whole: float) -> float | None:
    """A part of a whole, from 0 to 1; None if the whole is 0."""
    return round(part / whole, 6) if whole else None


def seconds(value: float) -> float:
    """Seconds to the microsecond."""
    return round(float(value), _SECONDS_DIGITS)


def totals(cell: Totals) -> dict[str, object]:
    """Requests, tokens and hits."""
    return {
        "requests": cell.requests,
        "skipped": cell.skipped,
        "prompt_tokens": cell.prompt_tokens,
        "hits": cell.hits,
        "hits_confirmed": cell.confirmed,
        "hits_predicted": cell.predicted,
        "hit_rate": share(cell.hits, cell.prompt_tokens),
    }


def ladder(cell: Totals) -> list[dict[str, object]]:
    """The rungs, each with its tokens and its tokens above the rung below."""
    below = 0
    shown: list[dict[str, object]] = []
    for rung, tokens in zip(Rung, cell.rungs, strict=True):
        shown.append({"rung": rung, "title": RUNGS[rung].title, "tokens": tokens, "more": tokens - below})
        below = tokens
    return shown


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


def first_tokens(cell: Totals) -> dict[str, object]:
    """Times to first token of cold and warm requests."""
    return {"cold": _spread(cell.cold), "warm": _spread(cell.warm)}


def value(cell: Totals, price: ComputePrice) -> dict[str, object]:
    """What hits saved, what misses cost, and which part of that is avoidable, by remedy."""
    missed = cell.missed
    avoidable = {
        remedy: [each for reason, each in missed.items() if REASONS[reason].remedy is remedy] for remedy in _AVOIDABLE
    }
    return {
        "saved": _worth(cell.hits, cell.saved_gpu_seconds, price) | {"prefill_seconds": seconds(cell.saved_seconds)},
        "lost": _worth(cell.prompt_tokens - cell.hits, cell.lost_gpu_seconds, price)
        | {"prefill_seconds": seconds(cell.lost_seconds)},
        "avoidable": _worth_of((each for some in avoidable.values() for each in some), price)
        | {"by_remedy": {remedy.value: _worth_of(some, price) for remedy, some in avoidable.items()}},
    }


def turns(cell: Totals) -> list[dict[str, object]]:
    """Hit rate by the turn of the conversation."""
    return [
        {
            "turn": f"{turn}+" if turn == TURNS else str(turn),
            "prompt_tokens": tokens,
            "hits": hits,
            "hit_rate": share(hits, tokens),
        }
        for turn, (tokens, hits) in sorted(cell.turns.items())
    ]


def rounding_tokens(cell: Totals) -> int:
    """Missed tokens of incomplete blocks: engines reuse whole blocks only."""
    return cell.tokens_of(Reason.BLOCK_BOUNDARY, Reason.TOO_SHORT)


def rerendered_tokens(cell: Totals) -> int:
    """Missed tokens of replies that clients send back in another form."""
    return cell.tokens_of(Reason.REPLY_RERENDERED)


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
