"""Prices: of GPU time, by which savings and losses become money, and of tokens, by which a tenant's month does."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec


class TokenPrices(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Prices per million tokens; None where no price is set.

    Attributes:
        prompt: Of prompt tokens that were computed.
        cached: Of prompt tokens that were not computed again.
        completion: Of generated tokens.
    """

    prompt: float | None = None
    cached: float | None = None
    completion: float | None = None


NO_TOKEN_PRICES = TokenPrices()


@dataclass(frozen=True, slots=True)
class ComputePrice:
    """Prices of GPU time and of tokens.

    Attributes:
        per_gpu_hour: Price of one GPU hour; None shows no prices.
        currency: Currency of all prices.
        tokens: Prices of tokens by model; those of ``""`` apply to models without their own.
    """

    per_gpu_hour: float | None = None
    currency: str = "USD"
    tokens: Mapping[str, TokenPrices] = field(default_factory=dict)

    def of(self, gpu_seconds: float) -> float | None:
        """Price of GPU seconds; None if no price is set."""
        return None if self.per_gpu_hour is None else round(gpu_seconds / 3600 * self.per_gpu_hour, 6)
