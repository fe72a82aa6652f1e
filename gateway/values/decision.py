"""Where a request goes, and why."""

from dataclasses import dataclass
from enum import StrEnum

from gateway.values.ids import ReplicaId


class DecisionKind(StrEnum):
    """The decision in one word, as ``x-gateway-decision`` shows it."""

    WARM = "warm"
    """To the replica that holds most of the prefix."""
    COLD = "cold"
    """No replica holds any of it."""
    BALANCED = "balanced"
    """Another replica holds more, but answers later."""
    FAILOVER = "failover"
    """The first choice could not be reached."""
    BLIND = "blind"
    """The prompt could not be tokenized: routed by its text."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One replica a request could have gone to, with every term of its cost.

    Attributes:
        replica: Its id.
        held_tokens: Prompt tokens it is believed to hold.
        queue_seconds: Prefill in flight there, plus the wait for a decode slot.
        prefill_seconds: Prefill of the tokens it does not hold.
        cost_seconds: What the policy compares.
    """

    replica: ReplicaId
    held_tokens: int
    queue_seconds: float
    prefill_seconds: float
    cost_seconds: float


@dataclass(frozen=True, slots=True)
class Decision:
    """The replica chosen, and all it was chosen from.

    Attributes:
        replica: Where the request goes.
        kind: The decision in one word.
        held_tokens: Prompt tokens the chosen replica is believed to hold.
        policy: Name of the placement policy.
        candidates: Every routable replica, the chosen one among them.
    """

    replica: ReplicaId
    kind: DecisionKind
    held_tokens: int
    policy: str
    candidates: tuple[Candidate, ...]
