"""The placement policies: from loads and holdings to a decision. No I/O, no clock.

The cost of a target is in seconds:

``cost = base + queue + (1 + w) * prefill``, where ``prefill`` is the time for the tokens that are not held there (what
is held on a slower medium counts for a part), and ``queue`` what is left of the prefill in flight plus the wait for a
decode slot. With ``w = 0`` this is the request's own expected time to first token; ``w`` adds what its prefill costs
everyone behind it and the blocks it will evict.
"""

from collections.abc import Callable, Sequence

import msgspec
from xxhash import xxh3_64_intdigest

from gateway.core.decision import Candidate, Decision, decision_kind
from gateway.core.ports import Holding
from gateway.core.replica_state import Load


def queue_seconds(load: Load, slots: int) -> float:
    """Work in front of a new request: prefill, and the wait until one of ``slots`` sequences ends after all others."""
    rates = load.rates
    seconds = load.prefill_tokens * rates.prefill_seconds_per_token
    ahead = load.requests - slots + 1
    return seconds + ahead * rates.request_seconds / slots if ahead > 0 else seconds


Policy = Callable[[Sequence[Candidate], Sequence[Load], "Affinity"], Candidate]


class Affinity(msgspec.Struct, frozen=True, gc=False):
    """Keys for ties and the session policy: the same key selects the same target on every gateway.

    Attributes:
        prefix: Key of the prompt's beginning.
        session: What the client keeps together, such as a session, qualified by its tenant; None for nothing.
    """

    prefix: int | bytes
    session: str | None


class Chooser:
    """One placement policy with its settings.

    Args:
        policy: One of ``PlacementSettings.policy``.
        miss_weight: The cost's ``w``.
        tie_margin: Candidates this close to the best, as a share of its cost, count as equal.
        slots: Sequences a target computes at once.
    """

    def __init__(self, policy: str, miss_weight: float, tie_margin: float, slots: int) -> None:
        self.policy = policy
        self._miss_weight = miss_weight
        self._tie_margin = tie_margin
        self._slots = slots
        self._turn = 0
        self._pick: Policy = {
            "expected_ttft": self._expected_ttft,
            "round_robin": self._round_robin,
            "least_load": self._least_load,
            "session": self._session,
        }[policy]

    def with_policy(self, policy: str) -> "Chooser":
        """A chooser with another policy and the same settings."""
        return Chooser(policy, self._miss_weight, self._tie_margin, self._slots)

    def choose(
        self,
        loads: Sequence[Load],
        holdings: Sequence[Holding],
        prompt_tokens: int,
        affinity: Affinity,
        *,
        retried: bool = False,
        blind: bool = False,
    ) -> Decision:
        """Choose among routable targets.

        Args:
            loads: The targets; at least one.
            holdings: What each holds of the prompt, in the same order.
            prompt_tokens: Length of the prompt.
            affinity: Breaks ties.
            retried: The first choice could not be reached.
            blind: The prompt tokens are estimated.
        """
        candidates, largest, slots, miss_factor = [], 0, self._slots, 1 + self._miss_weight
        for load, holding in zip(loads, holdings, strict=True):
            rates, held = load.rates, holding.tokens
            if held:
                largest = max(largest, held)
            queue = queue_seconds(load, slots) if load.prefill_tokens or load.requests >= slots else 0.0
            prefill = (prompt_tokens - holding.worth) * rates.prefill_seconds_per_token
            cost = rates.base_seconds + queue + miss_factor * prefill
            candidates.append(Candidate(load.target, held, queue, prefill, cost))
        chosen = candidates[0] if len(candidates) == 1 else self._pick(candidates, loads, affinity)
        kind = decision_kind(chosen.held_tokens, largest, prompt_tokens, retried=retried, blind=blind)
        return Decision(
            chosen.target,
            kind,
            chosen.held_tokens,
            self.policy,
            tuple(candidates),
            chosen.queue_seconds,
            chosen.prefill_seconds,
        )

    def queue_seconds(self, load: Load) -> float:
        """Work in front of a new request at a target with this load."""
        return queue_seconds(load, self._slots)

    def _expected_ttft(self, candidates: Sequence[Candidate], _loads: Sequence[Load], affinity: Affinity) -> Candidate:
        best, least = candidates[0], candidates[0].cost_seconds
        for each in candidates:
            if each.cost_seconds < least:
                best, least = each, each.cost_seconds
        limit = least * (1 + self._tie_margin)
        for each in candidates:
            if each.cost_seconds <= limit and each is not best:
                # A prompt that no replica holds goes where others with its beginning go, so that it is computed once.
                key = affinity.session if any(c.held_tokens for c in candidates) else None
                return _rendezvous([c for c in candidates if c.cost_seconds <= limit], key or str(affinity.prefix))
        return best

    def _round_robin(self, candidates: Sequence[Candidate], _loads: Sequence[Load], _affinity: Affinity) -> Candidate:
        self._turn += 1
        return candidates[self._turn % len(candidates)]

    def _least_load(self, candidates: Sequence[Candidate], loads: Sequence[Load], affinity: Affinity) -> Candidate:
        least = min(load.requests for load in loads)
        tied = [c for c, load in zip(candidates, loads, strict=True) if load.requests == least]
        return self._round_robin(tied, loads, affinity)

    def _session(self, candidates: Sequence[Candidate], _loads: Sequence[Load], affinity: Affinity) -> Candidate:
        return _rendezvous(candidates, affinity.session or str(affinity.prefix))


def _rendezvous(candidates: Sequence[Candidate], key: str) -> Candidate:
    """Highest random weight: every gateway picks the same target, and removing a target moves only its own keys."""
    return max(candidates, key=lambda c: xxh3_64_intdigest(f"{key}\0{c.target.replica}\0{c.target.rank}".encode()))
