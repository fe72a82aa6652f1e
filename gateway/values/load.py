"""What a replica is busy with, and how fast it is."""

from dataclasses import dataclass

from gateway.values.ids import ReplicaId


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
    """A routable replica at the moment of a decision.

    Attributes:
        replica: Its id.
        prefill_tokens: Uncached prompt tokens sent there and not yet computed.
        requests: Requests sent there and not yet answered in full.
        rates: How fast it is.
    """

    replica: ReplicaId
    prefill_tokens: int
    requests: int
    rates: Rates
