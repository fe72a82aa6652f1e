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
    guard = EmptyGuard(30)
    assert guard.answered([A, B], 0) == [A, B]
    assert guard.answered([B], 1) == [B]
    assert guard.due == math.inf


def test_nothing_is_believed_once_it_has_lasted():
    guard = EmptyGuard(30)
    guard.answered([A], 0)
    assert guard.answered([], 10) == [A]
    assert guard.due == 40
    assert guard.at(39.9) == [A]
    assert guard.answered([], 39) == [A]  # said again: the clock goes on
    assert guard.at(40) == []
    assert guard.due == math.inf


def test_a_gateway_without_replicas_accepts_an_empty_list():
    guard = EmptyGuard(30)
    assert guard.answered([], 0) == []
    assert guard.due == math.inf
    assert guard.answered([A], 1) == [A]


def test_none_ready_is_as_good_as_none():
    guard = EmptyGuard(30)
    guard.answered([A, B], 0)
    assert guard.answered([LEAVING], 1) == [A, B]
    assert guard.answered([PAUSED], 20) == [A, B]
    assert guard.at(31) == [PAUSED]


def test_one_that_is_ready_is_enough_to_believe_the_rest():
    guard = EmptyGuard(30)
    guard.answered([A, B], 0)
    assert guard.answered([LEAVING, B], 1) == [LEAVING, B]


def test_a_source_that_fails_in_between_has_to_say_it_anew():
    guard = EmptyGuard(30)
    guard.answered([A], 0)
    guard.answered([], 1)
    guard.failed()
    assert guard.at(100) == [A]
    assert guard.answered([], 100) == [A]
    assert guard.at(130) == []


def test_what_comes_back_in_time_was_never_away():
    guard = EmptyGuard(30)
    guard.answered([A], 0)
    guard.answered([], 1)
    assert guard.answered([A], 2) == [A]
    assert guard.at(100) == [A]


def test_with_no_time_at_all_everything_is_believed():
    guard = EmptyGuard(0)
    guard.answered([A], 0)
    assert guard.answered([], 1) == []


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["none", "a", "b", "leaving", "failed"]), st.floats(0.1, 20)), max_size=30
    ),
    patience=st.floats(1, 60),
)
def test_ready_replicas_are_never_removed_sooner_than_configured(steps, patience):
    guard = EmptyGuard(patience)
    answers = {"none": [], "a": [A], "b": [B], "leaving": [LEAVING]}
    now, last_ready = 0.0, None
    for step, pause in steps:
        now += pause
        if step == "failed":
            guard.failed()
            believed = guard.at(now)
        else:
            believed = guard.answered(answers[step], now)
        if step in ("a", "b"):
            last_ready = now, answers[step]
            assert believed == answers[step]
        if last_ready is not None and now < last_ready[0] + patience:
            assert believed == last_ready[1]
