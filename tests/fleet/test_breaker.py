"""How long a replica is left out after it failed requests, and what brings it back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.routing_settings import RelaySettings
from gateway.fleet.breaker import Breaker

LIMITS = RelaySettings(suspect_seconds=5, eject_after=3, eject_max_seconds=60)


def breaker(**limits):
    reported = {"suspect_seconds": 5, "eject_after": 3, "eject_max_seconds": 60} | limits
    return Breaker(RelaySettings(**reported))


def failed_in_a_row(times, **limits):
    """A breaker whose every trial failed as soon as it could, and when the last one did."""
    made, now = breaker(**limits), 100.0
    for number in range(times):
        if number:
            now = made.until
        assert made.failed(now, now)
    return made, now


def test_nothing_is_held_against_one_that_never_failed():
    fresh = breaker()
    assert not fresh.is_open(0.0)
    assert not fresh.on_trial(0.0)
    assert not fresh.ejected
    assert not fresh.answered(0.0)


def test_a_failure_leaves_it_out_for_a_moment_then_it_is_tried():
    one = breaker()
    assert one.failed(100.0, 99.0)
    assert one.is_open(104.9)
    assert not one.on_trial(104.9)
    assert not one.is_open(105.0)
    assert one.on_trial(105.0)


@pytest.mark.parametrize(("times", "seconds"), [(1, 5), (2, 10), (3, 20), (4, 40), (5, 60), (6, 60), (2000, 60)])
def test_each_failure_in_a_row_doubles_the_time_up_to_a_longest(times, seconds):
    one, now = failed_in_a_row(times)
    assert one.until - now == pytest.approx(seconds)
    assert one.failures == times


def test_the_longest_time_is_never_shorter_than_the_first():
    one, now = failed_in_a_row(3, suspect_seconds=90, eject_max_seconds=60)
    assert one.until - now == pytest.approx(90)


def test_left_out_for_no_time_it_is_tried_at_once_and_counts_all_the_same():
    one, now = failed_in_a_row(3, suspect_seconds=0)
    assert not one.is_open(now)
    assert one.on_trial(now)
    assert one.ejected


@pytest.mark.parametrize(("times", "ejected"), [(1, False), (2, False), (3, True), (4, True)])
def test_it_is_ejected_after_so_many_failures_in_a_row(times, ejected):
    one, _ = failed_in_a_row(times)
    assert one.ejected is ejected


def test_requests_that_fail_together_are_one_failure():
    one = breaker()
    assert one.failed(100.0, 90.0)
    for moment in (100.0, 100.5, 109.0):
        assert not one.failed(moment, 99.9)
    assert (one.failures, one.until) == (1, 105.0)
    assert one.failed(110.0, 106.0)
    assert one.failures == 2


def test_an_answer_brings_it_back_whole():
    one, now = failed_in_a_row(4)
    assert one.answered(now + 60)
    assert (one.failures, one.ejected) == (0, False)
    assert not one.is_open(now)
    assert not one.answered(now + 61)
    assert one.failed(now + 62, now + 62)
    assert one.until == now + 62 + 5


def test_an_answer_to_what_was_sent_before_the_failure_says_nothing():
    one = breaker()
    one.failed(100.0, 99.0)
    assert not one.answered(99.5)
    assert one.is_open(101.0)
    assert one.failures == 1


def test_a_single_500_may_be_the_requests_fault_three_in_a_row_are_not():
    one = breaker()
    assert not one.odd(100.0, 100.0)
    assert not one.odd(101.0, 101.0)
    assert not one.is_open(101.0)
    assert one.odd(102.0, 102.0)
    assert one.is_open(102.0)
    assert one.failures == 1


def test_an_answer_between_them_breaks_the_row():
    one = breaker()
    for second in range(100, 130, 3):
        assert not one.odd(second, second)
        assert not one.odd(second + 1, second + 1)
        assert not one.answered(second + 2)
    assert one.failures == 0


def test_500s_of_requests_sent_before_a_failure_do_not_count_towards_the_next():
    one = breaker()
    one.failed(100.0, 99.0)
    for _ in range(5):
        assert not one.odd(101.0, 99.0)
    assert not one.odd(106.0, 106.0)
    assert not one.odd(107.0, 107.0)
    assert one.odd(108.0, 108.0)
    assert one.failures == 2


def test_too_many_requests_are_no_failure():
    one = breaker()
    one.busy(100.0, 1.0)
    assert one.is_open(100.9)
    assert not one.is_open(101.0)
    assert not one.on_trial(101.0)
    assert (one.failures, one.ejected) == (0, False)


def test_busy_stays_busy_although_others_are_answered_there():
    one = breaker()
    one.busy(100.0, 1.0)
    assert not one.answered(100.1)
    assert one.is_open(100.5)


def test_busy_never_shortens_the_time_after_a_failure():
    one = breaker()
    one.failed(100.0, 100.0)
    one.busy(101.0, 1.0)
    assert one.until == 105.0


def test_another_process_starts_without_a_record_and_that_of_the_old_one_is_not_applied_to_it():
    one, now = failed_in_a_row(4)
    one.reset(now + 1)
    assert not one.is_open(now + 1)
    assert not one.ejected
    assert not one.failed(now + 2, now + 0.5)
    assert not one.odd(now + 2, now + 0.5)
    assert one.failures == 0
    assert one.failed(now + 3, now + 1.5)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["failed", "answered", "odd", "busy", "reset"]), st.floats(0, 100), st.floats(0, 100)
        ),
        max_size=60,
    )
)
def test_it_is_always_let_back_in_within_the_longest_time(steps):
    one, now = Breaker(LIMITS), 0.0
    since_recovery = 0
    for what, passed, ago in steps:
        now += passed
        since_recovery += what in ("failed", "odd")
        if what == "busy":
            one.busy(now, 1.0)
        elif what == "answered":
            since_recovery = 0 if one.answered(now - ago) else since_recovery
        elif what == "reset":
            one.reset(now)
            since_recovery = 0
        else:
            getattr(one, what)(now, now - ago)
        assert one.until <= now + 60
        assert one.failures <= since_recovery
        assert not (one.is_open(now) and one.on_trial(now))
    assert not one.is_open(now + 60)
    one.answered(now + 60)
    assert (one.failures, one.on_trial(now + 60)) == (0, False)


@pytest.mark.parametrize("recovers", ["answered", "restarted", "failed"])
def test_odd_answers_are_counted_from_zero_after_a_recovery_or_a_failure(recovers):
    one = breaker()
    assert not one.odd(100.0, 100.0)
    assert not one.odd(100.0, 100.0)
    if recovers == "answered":
        one.answered(101.0)
    elif recovers == "restarted":
        one.reset(101.0)
    else:
        one.failed(101.0, 101.0)
    assert not one.odd(120.0, 120.0)
    assert not one.odd(120.0, 120.0)
    assert one.odd(120.0, 120.0)
