"""How many requests may be tried again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy import RetryBudget


def take(budget, now):
    """Take a retry from the budget; whether one was left."""
    if not budget.is_left(now):
        return False
    budget.take(now)
    return True


def taken(budget, now, limit=10_000):
    """How many may be tried again now."""
    count = 0
    while count < limit and take(budget, now):
        count += 1
    return count


def test_the_floor_is_there_without_any_requests():
    assert taken(RetryBudget(0.2, 100), 50.0) == 100


def test_a_share_of_the_requests_comes_on_top():
    budget = RetryBudget(0.2, 3)
    for number in range(1000):
        budget.request(50.0 + number / 1000)
    assert taken(budget, 51.0) == 203


def test_what_was_used_up_comes_back_after_ten_seconds_and_not_before():
    budget = RetryBudget(0.2, 5)
    assert taken(budget, 50.9) == 5
    assert taken(budget, 59.9) == 0
    assert taken(budget, 60.0) == 5


def test_requests_count_for_ten_seconds():
    budget = RetryBudget(0.5, 0)
    for _ in range(10):
        budget.request(50.0)
    assert take(budget, 59.9)
    assert not take(budget, 60.0)


def test_nothing_is_tried_again_with_nothing_to_spend():
    budget = RetryBudget(0.0, 0)
    for _ in range(100):
        budget.request(50.0)
    assert not take(budget, 50.0)


def test_a_fleet_that_only_fails_gets_the_share_and_no_more():
    budget = RetryBudget(0.2, 10)
    again = 0
    for number in range(6000):  # a minute at 100 a second
        now = 100.0 + number / 100
        budget.request(now)
        again += take(budget, now)
    assert again <= 0.2 * 6000 + 10 * 7
    assert again >= 0.2 * 6000 - 10


def test_a_request_whose_time_is_a_little_older_than_the_last_one_is_counted_and_forgotten_like_any():
    budget = RetryBudget(0.5, 0)
    again = 0
    for number in range(1000):
        again += take(budget, 60.0)
        budget.request(59.99)
        assert len(budget._seconds) == 1, number
    assert again + taken(budget, 60.5) == pytest.approx(500, abs=1)
    assert taken(budget, 70.0) == 0


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 3), st.floats(0, 2)), max_size=200))
def test_it_is_never_overdrawn_in_any_ten_seconds(steps):
    budget, now = RetryBudget(0.25, 2), 100.0
    requests, again = [], []
    for is_request, passed, ago in steps:
        now += passed
        if is_request:
            budget.request(now - ago)
            requests.append(now)
        elif take(budget, now):
            again.append(now)
            # Whole seconds are counted.
            lately, asked = (sum(int(at) > int(now) - 10 for at in times) for times in (again, requests))
            assert lately < 2 + 0.25 * asked + 1


def test_seconds_without_requests_change_nothing():
    budget = RetryBudget(0.2, 5)
    for second in range(200):
        assert budget.is_left(float(second))
    assert taken(budget, 200.0) == 5
