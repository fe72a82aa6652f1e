"""What it costs to send a request to a replica, in seconds.

``cost = base + queue + (1 + w) * prefill``, where ``prefill`` is the time for the tokens that are not held there, and
``queue`` the prefill already in flight plus the wait for a decode slot. With ``w = 0`` this is the request's own
expected time to first token; ``w`` adds what its prefill costs everyone behind it and the blocks it will evict.
"""

from gateway.values.decision import Candidate
from gateway.values.load import Load


def candidate(load: Load, prompt_tokens: int, held_tokens: int, miss_weight: float, slots: int) -> Candidate:
    """The cost of one replica, term by term."""
    rates = load.rates
    queue = load.prefill_tokens * rates.prefill_seconds_per_token + _slot_wait(load, slots)
    prefill = (prompt_tokens - held_tokens) * rates.prefill_seconds_per_token
    cost = rates.base_seconds + queue + (1 + miss_weight) * prefill
    return Candidate(load.replica, held_tokens, queue, prefill, cost)


def _slot_wait(load: Load, slots: int) -> float:
    """Wait until one of ``slots`` sequences ends, everyone ahead in the queue served first."""
    ahead = load.requests - slots + 1
    return ahead * load.rates.request_seconds / slots if ahead > 0 else 0.0
