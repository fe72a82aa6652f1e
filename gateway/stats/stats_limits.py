"""Bounds of the journal, and the price of a GPU."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StatsLimits:
    """Bounds of the journal.

    Attributes:
        requests: Maximum number of requests kept in detail.
        ttl_seconds: How long their details are kept.
        request_bytes: Maximum memory of these details, all together.
        keys: Maximum number of label sets (model, tenant, source, template version) with sums of their own; further
            ones are counted as ``(other)``.
        sources: Maximum number of sources per tenant, model and template version.
        findings: Maximum number of findings per time bucket.
        suggestions: Maximum number of suggestions per time bucket.
    """

    requests: int = 5000
    ttl_seconds: float = 3600.0
    request_bytes: int = 64 * 1024 * 1024
    keys: int = 200
    sources: int = 30
    findings: int = 200
    suggestions: int = 40


@dataclass(frozen=True, slots=True)
class ComputePrice:
    """Price of GPU time.

    Attributes:
        per_gpu_hour: Price of one GPU hour; None shows no prices.
        currency: Currency of that price.
    """

    per_gpu_hour: float | None = None
    currency: str = "USD"

    def of(self, gpu_seconds: float) -> float | None:
        """Price of GPU seconds; None if no price is set."""
        return None if self.per_gpu_hour is None else round(gpu_seconds / 3600 * self.per_gpu_hour, 6)
