"""How much the journal keeps, and what a GPU costs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StatsLimits:
    """Bounds of what is kept.

    Attributes:
        requests: Requests whose details are kept.
        ttl_seconds: For how long.
        request_bytes: How much memory those details may take, all together.
        keys: Combinations of model, tenant, source and template version that are counted apart; what comes beyond is
            ``(other)``.
        sources: Of those, how many sources of one tenant, model and template version.
        findings: Findings told apart in one stretch of time.
        suggestions: Likewise suggestions.
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
    """What computing costs.

    Attributes:
        per_gpu_hour: Price of one GPU for an hour; None shows no money.
        currency: In which currency.
    """

    per_gpu_hour: float | None = None
    currency: str = "USD"

    def of(self, gpu_seconds: float) -> float | None:
        """What GPU seconds cost; None without a price."""
        return None if self.per_gpu_hour is None else round(gpu_seconds / 3600 * self.per_gpu_hour, 6)
