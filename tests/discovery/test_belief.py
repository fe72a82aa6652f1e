"""Which answers of a source count."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gateway.config.replica_settings import ReplicaSettings
from gateway.discovery.discovered import Condition, DiscoveredReplica, EmptyGuard

A, B = (DiscoveredReplica(ReplicaSettings(url=f"http://{name}:8000")) for name in "ab")
LEAVING = DiscoveredReplica(A.replica, Condition.LEAVING)
PAUSED = DiscoveredReplica(A.replica, Condition.NOT_READY)


def test_what_is_found_is_believed_at_once():
    belief = EmptyGuard(30)
    assert belief.answered([A, B], 0) == [A, B]
    assert belief.answered([B], 1) == [B]
    assert belief.due == math.inf


def test_nothing_is_believed_once_it_has_lasted():
    belief = EmptyGuard(30)
    belief.answered([A], 0)
    assert belief.answered([], 10) == [A]
    assert belief.due == 40
    assert belief.at(39.9) == [A]
    assert belief.answered([], 39) == [A]  # said again: the clock goes on
    assert belief.at(40) == []
    assert belief.due == math.inf


def test_a_gateway_that_knows_none_believes_that_there_is_none():
    belief = EmptyGuard(30)
    assert belief.answered([], 0) == []
    assert belief.due == math.inf
    assert belief.answered([A], 1) == [A]


def test_none_ready_is_as_good_as_none():
    belief = EmptyGuard(30)
    belief.answered([A, B], 0)
    assert belief.answered([LEAVING], 1) == [A, B]
    assert belief.answered([PAUSED], 20) == [A, B]
    assert belief.at(31) == [PAUSED]


def test_one_that_is_ready_is_enough_to_believe_the_rest():
    belief = EmptyGuard(30)
    belief.answered([A, B], 0)
    assert belief.answered([LEAVING, B], 1) == [LEAVING, B]


def test_a_source_that_fails_in_between_has_to_say_it_anew():
    belief = EmptyGuard(30)
    belief.answered([A], 0)
    belief.answered([], 1)
    belief.failed()
    assert belief.at(100) == [A]
    assert belief.answered([], 100) == [A]
    assert belief.at(130) == []


def test_what_comes_back_in_time_was_never_away():
    belief = EmptyGuard(30)
    belief.answered([A], 0)
    belief.answered([], 1)
    assert belief.answered([A], 2) == [A]
    assert belief.at(100) == [A]


def test_with_no_time_at_all_everything_is_believed():
    belief = EmptyGuard(0)
    belief.answered([A], 0)
    assert belief.answered([], 1) == []


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["none", "a", "b", "leaving", "failed"]), st.floats(0.1, 20)), max_size=30
    ),
    patience=st.floats(1, 60),
)
def test_ready_replicas_are_never_given_up_sooner_than_told(steps, patience):
    belief = EmptyGuard(patience)
    answers = {"none": [], "a": [A], "b": [B], "leaving": [LEAVING]}
    now, last_ready = 0.0, None
    for step, pause in steps:
        now += pause
        if step == "failed":
            belief.failed()
            believed = belief.at(now)
        else:
            believed = belief.answered(answers[step], now)
        if step in ("a", "b"):
            last_ready = now, answers[step]
            assert believed == answers[step]
        if last_ready is not None and now < last_ready[0] + patience:
            assert believed == last_ready[1]
