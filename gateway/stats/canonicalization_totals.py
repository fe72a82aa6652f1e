"""Effects of canonicalization rules, observed and applied, JSON-ready."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from gateway.core.canonical import ALL_RULES, RuleMode
from gateway.stats.counters import SelectionTotals
from gateway.stats.entries import RequestEntry
from gateway.stats.figures import seconds
from gateway.stats.stats_limits import ComputePrice


def rules_summed(sums: SelectionTotals, price: ComputePrice) -> dict[str, object]:
    """The effect of each rule over a selection, largest net saving first.

    Args:
        sums: The sums of the selection.
        price: Price of GPU time.
    """
    total = sums.total
    requests, tokens = total.observed
    gpu_seconds: Counter[tuple[str, RuleMode]] = Counter()
    # A saved token is priced by the prefill speed of its model's replicas.
    for cell in sums.by("model").values():
        per_token = cell.gpu_seconds_per_token
        for rule, (_, saved, lost) in cell.rules.items():
            gpu_seconds[rule] += (saved - lost) * per_token  # type: ignore[assignment]
    rules = [
        {
            "rule": rule,
            "mode": mode,
            "requests": changed,
            "saved_tokens": saved,
            "lost_tokens": lost,
            "net_tokens": saved - lost,
            "points": points(saved - lost, tokens),
            "gpu_seconds": seconds(gpu_seconds[rule, mode]),
            "cost": price.of(gpu_seconds[rule, mode]),
        }
        for (rule, mode), (changed, saved, lost) in total.rules.items()
        if rule != ALL_RULES or _several_observed(total.rules)
    ]
    rules.sort(key=lambda each: -_net(each))
    return {"looked_at": {"requests": requests, "prompt_tokens": tokens}, "rules": rules}


def request_rules(entry: RequestEntry) -> dict[str, object]:
    """The effect of rules on one request."""
    explanation = entry.explanation
    observed = [each for each in explanation.canonical if each.mode is RuleMode.OBSERVE and each.rule != ALL_RULES]
    return {
        "observed": explanation.observed,
        "applied": [each.rule for each in explanation.canonical if each.mode is RuleMode.APPLY and each.edits],
        "context_lost": entry.finished.canonical.context_lost,
        "rules": [
            msgspec.structs.asdict(each)
            for each in explanation.canonical
            if each.rule != ALL_RULES or len(observed) > 1
        ],
        "edits": [msgspec.structs.asdict(each) for each in explanation.edits],
    }


def points(tokens: int, prompt_tokens: int) -> float | None:
    """Percentage points that tokens add to the hit rate; None without prompt tokens."""
    return round(100 * tokens / prompt_tokens, 4) if prompt_tokens else None


def _several_observed(rules: Mapping[tuple[str, RuleMode], Sequence[int]]) -> bool:
    """Whether more than one rule is observed; with a single one, ``ALL_RULES`` repeats its figures."""
    return sum(mode is RuleMode.OBSERVE and rule != ALL_RULES for rule, mode in rules) > 1


def _net(rule: Mapping[str, object]) -> int:
    tokens = rule["net_tokens"]
    assert isinstance(tokens, int)
    return tokens
