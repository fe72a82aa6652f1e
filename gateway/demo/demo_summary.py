"""The summary: as JSON, and the gain in sentences."""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.demo.score import Score

_EQUAL_RATIO = 1.05
"""Smaller ratios are not mentioned."""


def as_json(score: Score) -> Mapping[str, Any]:
    """One side as JSON. Times in milliseconds, None where nothing was measured; ``hit_rate`` from 0 to 1."""
    quantiles = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    times = {name: score.ttft.quantile(share) for name, share in quantiles.items()}
    return {
        "requests": score.requests,
        "errors": score.errors,
        "hit_rate": round(score.tokens.hit_rate, 4),
        "ttft_ms": {name: None if time is None else round(time * 1000, 1) for name, time in times.items()},
        "saved_prefill_tokens": score.tokens.cached,
    }


def gains(gateway: Score, other: Score) -> Iterator[str]:
    """What the gateway gains or loses against the other side, one sentence each."""
    for name, share in (("p50", 0.5), ("p90", 0.9)):
        own, theirs = gateway.ttft.quantile(share), other.ttft.quantile(share)
        if own and theirs:
            yield f"{_ratio(theirs / own, f'{name} TTFT')}: {own * 1000:,.0f} ms instead of {theirs * 1000:,.0f} ms"
    if gateway.tokens.prompt and other.tokens.prompt:
        yield f"hit rate {gateway.tokens.hit_rate:.0%} instead of {other.tokens.hit_rate:.0%}"
        own, theirs = (score.tokens.computed / score.tokens.answers for score in (gateway, other))
        change = _ratio(theirs / max(own, 1.0), "prefill per request")
        yield f"{change}: {own:,.0f} prompt tokens computed instead of {theirs:,.0f}"


def _ratio(ratio: float, what: str) -> str:
    if 1 / _EQUAL_RATIO < ratio < _EQUAL_RATIO:
        return f"about the same {what}"
    return f"{ratio:.1f}x lower {what}" if ratio > 1 else f"{1 / ratio:.1f}x higher {what}"
