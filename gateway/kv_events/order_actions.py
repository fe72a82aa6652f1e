"""What ``BatchOrder`` has its caller do."""

from dataclasses import dataclass

from gateway.core.kv_events import EventBatch, FeedState


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply the events of a batch."""

    batch: EventBatch


@dataclass(frozen=True, slots=True)
class Clear:
    """Clear all blocks of the target."""


@dataclass(frozen=True, slots=True)
class AskReplay:
    """Request a replay of past batches, from a sequence number on."""

    start: int


@dataclass(frozen=True, slots=True)
class SetState:
    """The feed's state from here on."""

    state: FeedState


@dataclass(frozen=True, slots=True)
class Gap:
    """Batches are missing.

    Attributes:
        expected: The first missing sequence number.
        got: The one received instead.
    """

    expected: int
    got: int


Action = Apply | Clear | AskReplay | SetState | Gap
