"""The states of a replica, as the admin port, logs and metrics name them; the load of a target, and its rates."""

from enum import StrEnum

import msgspec

from gateway.core.ids import Target


class Rates(msgspec.Struct, frozen=True, gc=False):
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


class Load(msgspec.Struct, frozen=True, gc=False):
    """A routable target at the moment of a decision.

    Attributes:
        target: The replica and its rank.
        prefill_tokens: Uncached prompt tokens in front of a new request: those that are left to compute of this
            gateway's requests, and an estimate of those from others.
        requests: Requests in flight there, from all senders.
        rates: How fast it is.
    """

    target: Target
    prefill_tokens: int
    requests: int
    rates: Rates


class ReplicaState(StrEnum):
    """Whether a replica gets requests, and why not."""

    STARTING = "starting"
    """Not yet checked, its cache being filled, or just come up and given its share little by little."""
    READY = "ready"
    """Gets its share of requests."""
    SUSPECT = "suspect"
    """It failed a request, and has answered none since: others are preferred for a while, then one request at a time
    tries it."""
    STUCK = "stuck"
    """It passes its health checks, but requests waited there without an answer far longer than at its peers: one at a
    time tries it."""
    EJECTED = "ejected"
    """Its health checks fail, or it failed requests again and again and gets none until its time is over."""
    SLEEPING = "sleeping"
    """Its engine sleeps (vLLM's sleep mode): it gets no requests until it is awake."""
    DRAINING = "draining"
    """Gets no new requests; those in flight are completed."""


class DrainCause(StrEnum):
    """Reasons of a drain. A replica with at least one of them gets no new requests."""

    CONFIGURATION = "configuration"
    """`drain: true` stands in its configuration."""
    OPERATOR = "operator"
    """An operator ordered it at the admin port."""
    LEAVING = "leaving"
    """It is being removed: not configured any more, or its platform is terminating it."""
    SLEEPING = "sleeping"
    """Its engine sleeps."""
