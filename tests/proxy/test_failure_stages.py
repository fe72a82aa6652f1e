"""What an attempt's end says about its replica: counted as which failure, and held against it how."""

import pytest
import structlog
from fleets import NOW, replica

from gateway.core.outcome import Ending, FailureStage, Outcome
from gateway.fleet.failures import failure_stage, record_outcome

STAGES = [
    (Ending.NOT_CONNECTED, None, False, FailureStage.CONNECT),
    (Ending.BROKEN, None, False, FailureStage.FIRST_BYTE),
    (Ending.BROKEN, 200, False, FailureStage.FIRST_BYTE),
    (Ending.BROKEN, 200, True, FailureStage.STREAM),
    (Ending.TIMED_OUT, None, False, FailureStage.FIRST_BYTE),
    (Ending.TIMED_OUT, 200, True, FailureStage.STREAM),
    (Ending.COMPLETE, 502, True, FailureStage.STATUS),
    (Ending.COMPLETE, 503, True, FailureStage.STATUS),
    (Ending.COMPLETE, 504, True, FailureStage.STATUS),
    (Ending.COMPLETE, 511, True, FailureStage.STATUS),
    (Ending.COMPLETE, 530, True, FailureStage.STATUS),
    (Ending.COMPLETE, 429, True, FailureStage.BUSY),
    (Ending.COMPLETE, 529, True, FailureStage.BUSY),
    (Ending.COMPLETE, 200, True, None),
    (Ending.COMPLETE, 400, True, None),
    (Ending.COMPLETE, 500, True, None),
    (Ending.COMPLETE, 501, True, None),
    (Ending.EXPIRED, None, False, None),
    (Ending.EXPIRED, 200, True, None),
    (Ending.CLIENT_GONE, 200, True, None),
    (Ending.CLIENT_GONE, None, False, None),
    (Ending.INTERRUPTED, 200, True, None),
]


def ended(ending, status, started=True):
    return Outcome(ending, status, started=started, ttft_seconds=None, seconds=1.0, usage=None)


def noted(at, ending, status, *, started=True, sent_at=NOW, now=NOW):
    """The events that were logged."""
    with structlog.testing.capture_logs() as logs:
        record_outcome(at, ended(ending, status, started), sent_at, now)
    return logs


@pytest.mark.parametrize(("ending", "status", "started", "stage"), STAGES)
def test_when_a_replica_failed_a_request(ending, status, started, stage):
    assert failure_stage(ending, status, started=started) is stage


@pytest.mark.parametrize(("ending", "status", "started", "stage"), STAGES)
def test_what_failed_leaves_the_replica_out_and_nothing_else_does(ending, status, started, stage):
    at = replica("a")
    noted(at, ending, status, started=started)
    fails = stage not in (None, FailureStage.BUSY)
    assert at.breaker.failures == fails
    assert at.breaker.is_open(NOW + 0.5) == (stage is not None)
    assert at.breaker.is_open(NOW + 2) == fails


@pytest.mark.parametrize("status", [200, 400, 404, 422, 501])
def test_any_answer_that_is_one_brings_it_back(status):
    at = replica("a")
    noted(at, Ending.NOT_CONNECTED, None)
    (reported,) = noted(at, Ending.COMPLETE, status, sent_at=NOW + 6, now=NOW + 7)
    assert (reported["event"], reported["replica"]) == ("replica_recovered", "a")
    assert at.breaker.failures == 0
    assert noted(at, Ending.COMPLETE, status, sent_at=NOW + 8, now=NOW + 9) == []


@pytest.mark.parametrize(
    ("ending", "status"),
    [(Ending.CLIENT_GONE, 200), (Ending.INTERRUPTED, 200), (Ending.EXPIRED, None), (Ending.COMPLETE, 429)],
)
def test_inconclusive_outcomes_leave_it_as_it_is(ending, status):
    at = replica("a")
    noted(at, Ending.BROKEN, None, started=False)
    assert noted(at, ending, status, sent_at=NOW + 6, now=NOW + 7) == []
    assert at.breaker.failures == 1


def test_each_failure_in_a_row_is_reported_once_with_how_long_it_is_left_out():
    at, now = replica("a"), NOW
    reported = []
    for _ in range(4):
        reported += noted(at, Ending.NOT_CONNECTED, None, started=False, sent_at=now, now=now)
        reported += noted(at, Ending.NOT_CONNECTED, None, started=False, sent_at=now - 1, now=now + 0.1)
        now = at.breaker.until
    assert [(line["event"], line["failures"], line["seconds"]) for line in reported] == [
        ("replica_suspect", 1, 5),
        ("replica_suspect", 2, 10),
        ("replica_ejected", 3, 20),
        ("replica_ejected", 4, 40),
    ]


def test_three_500s_in_a_row_count_as_a_failure():
    at = replica("a")
    reported = [noted(at, Ending.COMPLETE, 500, sent_at=NOW + second, now=NOW + second) for second in range(3)]
    assert [[line["event"] for line in lines] for lines in reported] == [[], [], ["replica_suspect"]]
