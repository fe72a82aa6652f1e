"""The prompt of a request that is not streamed counts as computed once its prefill should have ended."""

import asyncio
from types import SimpleNamespace

import pytest
from fleets import MODEL, replica
from patience import HANG_SECONDS
from pieces import asking

from gateway.core.decision import Decision, DecisionKind
from gateway.retry import Attempt

TOKENS = 100


class Grant:
    def headers(self, now):
        return ()


def attempting(prefill_seconds, *, stream=False):
    """An attempt that was just sent, its replica, and the models whose replicas got capacity."""
    at, capacity = replica("a"), []
    (target,) = at.targets
    decision = Decision(target, DecisionKind.COLD, 0, "", (), prefill_seconds / 2, prefill_seconds / 2)
    encoded = SimpleNamespace(
        request=asking(stream=stream),
        asked=asking(stream=stream),
        model=SimpleNamespace(id=MODEL),
        space=SimpleNamespace(salt=None),
        tokens=TOKENS,
        sequences=1,
        rules=(),
        cut_messages=0,
        answer_limit=0,
        is_text=False,
    )
    context = SimpleNamespace(
        encoded=encoded, body=None, deadline=1e9, grant=Grant(), trace=None, dispatched_at=0.0, begun=False, seam=None
    )
    context.tried, context.drop_content, context.diagnosis = set(), lambda: None, None
    placed = SimpleNamespace(decision=decision, replica=at, chains=(), indexed=False)
    return Attempt(context, placed, None, {MODEL}, capacity.append), at, capacity


async def test_the_prefill_ends_while_the_answer_is_waited_for():
    attempt, at, capacity = attempting(0.01)
    assert at.prefill_tokens == TOKENS
    async with asyncio.timeout(HANG_SECONDS):
        while at.prefill_tokens:
            await asyncio.sleep(0.001)
    assert (capacity, at.requests) == ([MODEL], 1)
    attempt.done()
    assert (capacity, at.requests) == ([MODEL, MODEL], 0)


@pytest.mark.parametrize("seconds", [1000.0, float("inf")])
async def test_the_prefill_ends_with_the_attempt_at_the_latest(seconds):
    attempt, at, capacity = attempting(seconds)
    await asyncio.sleep(0.01)
    assert (at.prefill_tokens, capacity) == (TOKENS, [])
    attempt.done()
    assert (at.prefill_tokens, at.requests, capacity) == (0, 0, [MODEL])


async def test_nothing_is_left_of_the_estimate_when_the_attempt_is_over():
    attempt, _, capacity = attempting(0.01)
    attempt.done()
    await asyncio.sleep(0.03)
    assert capacity == [MODEL]


async def test_the_first_byte_shows_when_the_prompt_of_a_stream_is_computed():
    attempt, at, _ = attempting(0.0, stream=True)
    await asyncio.sleep(0.01)
    assert at.prefill_tokens == TOKENS
    attempt.on_content()
    assert at.prefill_tokens == 0
    attempt.done()
