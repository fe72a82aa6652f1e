"""Which failed attempts are retried, and how long a request without a stream counts as prefill."""

from dataclasses import replace

import pytest

from gateway.core.outcome import FailureStage
from gateway.retry import FINISH, Retry, RetryChances, decide

GOOD = RetryChances(
    is_slow=False, can_continue=True, tries_left=1, was_busy=False, other_replica=True, budget_left=True
)

FREE = {FailureStage.CONNECT, FailureStage.REFUSED}
"""Such a replica has computed nothing: the retry costs no more than the request."""


@pytest.mark.parametrize("stage", FailureStage)
def test_every_failure_is_retried_if_nothing_is_against_it(stage):
    assert decide(stage, GOOD) == Retry(takes_budget=stage not in FREE)


@pytest.mark.parametrize("stage", FailureStage)
@pytest.mark.parametrize("against", [{"is_slow": True}, {"tries_left": 0}, {"other_replica": False}], ids=str)
def test_no_failure_is_retried_against_these(stage, against):
    assert decide(stage, replace(GOOD, **against)) == FINISH


@pytest.mark.parametrize(
    ("against", "stages"),
    [
        ({"can_continue": False}, {FailureStage.STREAM}),
        ({"was_busy": True}, {FailureStage.BUSY}),
        ({"budget_left": False}, set(FailureStage) - FREE),
    ],
    ids=str,
)
def test_some_failures_are_not_retried_against_these(against, stages):
    assert {stage for stage in FailureStage if decide(stage, replace(GOOD, **against)) == FINISH} == stages
