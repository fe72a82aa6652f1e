"""The placement decision: the chosen target and all candidates with their costs."""

from enum import StrEnum

import msgspec

from gateway.core.ids import ReplicaId, Target

WARM_SHARE = 0.5
"""Share of a prompt from which on a request counts as warm. A first block alone makes no answer faster."""


class DecisionKind(StrEnum):
    """The decision in one word, as ``x-gateway-decision`` shows it; see ``decision_kind``."""

    WARM = "warm"
    """No replica holds more of the prompt than the chosen one, and that is at least half of it."""
    PARTIAL = "partial"
    """No replica holds more of the prompt than the chosen one, and that is less than half of it."""
    COLD = "cold"
    """No replica holds any of the prompt."""
    BALANCED = "balanced"
    """Another replica holds more of the prompt, but would answer later."""
    FAILOVER = "failover"
    """The first choice could not be reached."""
    BLIND = "blind"
    """The prompt could not be tokenized: routed by its text."""


def is_warm(tokens: int, prompt_tokens: int) -> bool:
    """Whether so many tokens in a cache make a prompt warm: at least half of it.

    Args:
        tokens: Held by a replica, or reused by it.
        prompt_tokens: Length of the prompt.
    """
    return tokens > 0 and tokens >= WARM_SHARE * prompt_tokens


def decision_kind(held: int, largest: int, prompt_tokens: int, *, retried: bool, blind: bool) -> DecisionKind:
    """The kind of a decision.

    Args:
        held: Prompt tokens that the chosen target holds.
        largest: Maximum that any candidate holds.
        prompt_tokens: Length of the prompt.
        retried: The first choice could not be reached.
        blind: The prompt was not tokenized, or not looked up.
    """
    if blind:
        return DecisionKind.BLIND
    if retried:
        return DecisionKind.FAILOVER
    if largest == 0:
        return DecisionKind.COLD
    if held < largest:
        return DecisionKind.BALANCED
    return DecisionKind.WARM if is_warm(held, prompt_tokens) else DecisionKind.PARTIAL


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One candidate target, with every term of its cost.

    Attributes:
        target: The replica and its rank.
        held_tokens: Prompt tokens it is expected to hold, on any medium.
        queue_seconds: Prefill in flight there, plus the wait for a decode slot.
        prefill_seconds: Prefill of the tokens it does not hold, and fetching those that lie on a slower medium.
        cost_seconds: What the policy compares.
    """

    target: Target
    held_tokens: int
    queue_seconds: float
    prefill_seconds: float
    cost_seconds: float


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The chosen target, and all candidates.

    Attributes:
        target: The chosen target.
        kind: The decision in one word.
        held_tokens: Prompt tokens that the chosen target is expected to hold.
        policy: Name of the placement policy.
        candidates: Every routable target, the chosen one among them.
        queue_seconds: As the chosen one's candidate has it.
        prefill_seconds: Likewise.
    """

    target: Target
    kind: DecisionKind
    held_tokens: int
    policy: str
    candidates: tuple[Candidate, ...]
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0

    @property
    def replica(self) -> ReplicaId:
        """The replica the target belongs to."""
        return self.target.replica
