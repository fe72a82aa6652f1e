"""The load of a target, and its rates."""

from dataclasses import dataclass

from gateway.core.ids import Target


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a replica is.

    Attributes:
        base_seconds: TTFT of a request without anything to prefill on an idle replica.
        prefill_seconds_per_token: Prefill time of one uncached token.
        decode_seconds_per_token: Time between two tokens of one answer.
        request_seconds: Mean time of a whole request.
    """

    base_seconds: float
    prefill_seconds_per_token: float
    decode_seconds_per_token: float
    request_seconds: float


@dataclass(frozen=True, slots=True)
class Load:
    """A routable target at the moment of a decision.

    Attributes:
        target: The replica and its rank.
        prefill_tokens: Uncached prompt tokens in front of a new request: those in flight from this gateway, and an
            estimate of those from others.
        requests: Requests in flight there, from all senders.
        rates: How fast it is.
    """

    target: Target
    prefill_tokens: int
    requests: int
    rates: Rates
