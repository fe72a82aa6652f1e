"""What it costs to send a request to a target, in seconds.

``cost = base + queue + (1 + w) * prefill``, where ``prefill`` is the time for the tokens that are not held there (what
is held on a slower medium counts for a part), and ``queue`` the prefill already in flight plus the wait for a decode
slot. With ``w = 0`` this is the request's own expected time to first token; ``w`` adds what its prefill costs everyone
behind it and the blocks it will evict.
"""

from gateway.core.decision import Candidate
from gateway.core.ports import Holding
from gateway.core.target_load import Load


def candidate(load: Load, prompt_tokens: int, holding: Holding, miss_weight: float, slots: int) -> Candidate:
    """The cost of one target, term by term."""
    rates = load.rates
    queue = queue_seconds(load, slots)
    prefill = (prompt_tokens - holding.worth) * rates.prefill_seconds_per_token
    cost = rates.base_seconds + queue + (1 + miss_weight) * prefill
    return Candidate(load.target, holding.tokens, queue, prefill, cost)


def queue_seconds(load: Load, slots: int) -> float:
    """Work in front of a new request."""
    return load.prefill_tokens * load.rates.prefill_seconds_per_token + _slot_wait(load, slots)


def _slot_wait(load: Load, slots: int) -> float:
    """Wait until one of ``slots`` sequences ends, everyone ahead in the queue served first."""
    ahead = load.requests - slots + 1
    return ahead * load.rates.request_seconds / slots if ahead > 0 else 0.0
