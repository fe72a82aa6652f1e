"""What an answer teaches about its replica's speed."""

from gateway.core.outcome import Ending, Outcome
from gateway.core.ports import RateLearner


def learn(speed: RateLearner, outcome: Outcome, prefill_ahead: int, uncached_tokens: int) -> None:
    """Take one answer's times into account.

    Args:
        speed: What learns.
        outcome: The answer.
        prefill_ahead: Uncached tokens that were in flight at the replica when the request came.
        uncached_tokens: The request's own.
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
