"""Learns the prefill and decode rates of a replica from an answer."""

from gateway.core.outcome import Ending, Outcome
from gateway.core.ports import RateLearner


def learn(speed: RateLearner, outcome: Outcome, prefill_ahead: int, uncached_tokens: int) -> None:
    """Feed the times of one answer to a learner.

    Args:
        speed: The learner.
        outcome: The answer.
        prefill_ahead: Uncached tokens in flight at the replica when the request arrived.
        uncached_tokens: Uncached tokens of the request.
    """
    prefill = prefill_ahead + uncached_tokens
    if outcome.ttft_seconds is not None:
        speed.observe_first_token(prefill, outcome.ttft_seconds)
    if outcome.ending is not Ending.COMPLETE or outcome.usage is None:
        return
    completion = outcome.usage.completion_tokens
    if outcome.ttft_seconds is not None:
        speed.observe_decode(completion - 1, outcome.seconds - outcome.ttft_seconds)
    speed.observe_request(prefill, completion, outcome.seconds, streamed=outcome.streamed)
