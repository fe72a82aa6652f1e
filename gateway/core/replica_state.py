"""The states of a replica, as the admin port, logs and metrics name them."""

from enum import StrEnum


class ReplicaState(StrEnum):
    """Whether a replica gets requests, and why not."""

    STARTING = "starting"
    """Not yet checked, its cache being filled, or just come up and given its share little by little."""
    READY = "ready"
    """Gets its share of requests."""
    SUSPECT = "suspect"
    """It failed a request, and has answered none since: others are preferred for a while, then one request at a time
    tries it."""
    EJECTED = "ejected"
    """Its health checks fail, or it failed requests again and again and gets none until its time is over."""
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
