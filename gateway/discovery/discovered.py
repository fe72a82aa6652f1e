"""What a source of replicas says."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gateway.config.replica_settings import ReplicaSettings


class SourceFailed(Exception):
    """A source could not be asked, or what it answered cannot be understood. The message says what is wrong."""


class Condition(StrEnum):
    """What a source says about a replica's state."""

    READY = "ready"
    """It may get requests."""
    NOT_READY = "not_ready"
    """It is there, and is to get no requests now; it may get some again."""
    LEAVING = "leaving"
    """It ends."""


@dataclass(frozen=True, slots=True)
class DiscoveredReplica:
    """One replica that a source tells of.

    Attributes:
        replica: The replica, as the configuration would name it.
        condition: Its state.
    """

    replica: ReplicaSettings
    condition: Condition = Condition.READY


class ReplicaSource(Protocol):
    """Where replicas are found."""

    def answers(self) -> AsyncGenerator[Sequence[DiscoveredReplica], None]:
        """All replicas, now and whenever they may have changed; goes on until it is closed.

        Raises:
            SourceFailed: the source does not answer. To be iterated anew after a while.
        """
        ...
