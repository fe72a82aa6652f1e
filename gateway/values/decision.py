"""Where a request goes, and why."""

from dataclasses import dataclass
from enum import StrEnum

from gateway.values.ids import ReplicaId, Target


class DecisionKind(StrEnum):
    """The decision in one word, as ``x-gateway-decision`` shows it."""

    WARM = "warm"
    """To the replica that holds more of the prompt than any other, or as much."""
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
    """One target a request could have gone to, with every term of its cost.

    Attributes:
        target: The replica and its rank.
        held_tokens: Prompt tokens it is believed to hold, on whatever medium.
        queue_seconds: Prefill in flight there, plus the wait for a decode slot.
        prefill_seconds: Prefill of the tokens it does not hold, and fetching those that lie on a slower medium.
        cost_seconds: What the policy compares.
    """

    target: Target
    held_tokens: int
    queue_seconds: float
    prefill_seconds: float
    cost_seconds: float


@dataclass(frozen=True, slots=True)
class Decision:
    """The target chosen, and all it was chosen from.

    Attributes:
        target: Where the request goes.
        kind: The decision in one word.
        held_tokens: Prompt tokens the chosen target is believed to hold.
        policy: Name of the placement policy.
        candidates: Every routable target, the chosen one among them.
        queue_seconds: As the chosen one's candidate has it.
    """

    target: Target
    kind: DecisionKind
    held_tokens: int
    policy: str
    candidates: tuple[Candidate, ...]
    queue_seconds: float = 0.0

    @property
    def replica(self) -> ReplicaId:
        """The replica the target belongs to."""
        return self.target.replica
