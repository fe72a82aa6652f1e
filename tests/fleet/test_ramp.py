"""A replica that joins others gets its share little by little."""

import pytest

from gateway.fleet.fleet import has_room


def allowed(seconds_up, others, ramp_seconds=10.0):
    """How many requests it may have at once."""
    requests = 0
    while requests < 1000 and has_room(requests, seconds_up, ramp_seconds, max(others, default=None)):
        requests += 1
    return requests


@pytest.mark.parametrize(("seconds_up", "most"), [(0, 1), (0.4, 1), (0.5, 2), (1, 3), (5, 11), (9.5, 20)])
def test_its_share_grows_from_one_request_to_what_the_busiest_of_the_others_has(seconds_up, most):
    assert allowed(seconds_up, [20, 4, 0]) == most


@pytest.mark.parametrize("seconds_up", [10, 11, 1e9])
def test_after_the_ramp_it_is_one_of_them(seconds_up):
    assert allowed(seconds_up, [20]) == 1000


def test_without_a_ramp_there_is_none():
    assert allowed(0, [20], ramp_seconds=0) == 1000


def test_without_others_that_are_past_it_there_is_none():
    assert allowed(0, []) == 1000


def test_beside_idle_ones_it_gets_one_at_a_time():
    assert allowed(3, [0, 0]) == 1
