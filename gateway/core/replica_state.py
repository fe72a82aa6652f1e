"""The states of a replica, as the admin port, logs and metrics name them."""

from enum import StrEnum


class ReplicaState(StrEnum):
    """Whether a replica gets requests, and why not."""

    STARTING = "starting"
    """Not yet checked, its cache being filled, or just come up and given its share little by little."""
    READY = "ready"
    """Gets its share."""
    SUSPECT = "suspect"
    """It failed a request, and has answered none since: others are preferred for a while, then one request at a time
    tries it."""
    EJECTED = "ejected"
    """Its health checks fail, or it failed requests again and again and gets none until its time is over."""
    DRAINING = "draining"
    """Gets no more requests; those that it has end as they began."""


class DrainCause(StrEnum):
    """Why a replica gets no more requests. As long as there is one of them it gets none."""

    CONFIGURATION = "configuration"
    """`drain: true` stands in its configuration."""
    OPERATOR = "operator"
    """Somebody ordered it at the admin port."""
    LEAVING = "leaving"
    """It is to go: it does not stand in the configuration any more, or its platform says that it ends."""
