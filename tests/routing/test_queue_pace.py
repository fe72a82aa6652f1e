"""How long it should take until what waits has left."""

import pytest

from gateway.routing.fair_order import DrainRate


def test_before_anything_is_known_what_is_believed_of_the_replicas_counts():
    assert DrainRate(100.0).seconds(100.1, 6000, 2000.0) == 3.0


def test_recent_departures_give_the_drain_rate():
    pace = DrainRate(100.0)
    for second in range(1, 31):
        pace.left(100.0 + second, 500)
    assert pace.seconds(130.0, 5000, 99999.0) == pytest.approx(10, rel=0.1)
    for second in range(31, 61):
        pace.left(100.0 + second, 50)
    assert pace.seconds(160.0, 5000, 99999.0) == pytest.approx(100, rel=0.1)


def test_one_that_left_at_the_first_moment_says_nothing():
    pace = DrainRate(100.0)
    pace.left(100.01, 500)
    assert pace.seconds(100.02, 2000, 1000.0) == 2.0


def test_what_stands_still_is_not_called_fast():
    pace = DrainRate(100.0)
    pace.left(101.0, 500)
    assert pace.seconds(125.0, 10, 1000.0) >= 10


def test_one_huge_request_changes_the_pace_by_no_more_than_a_factor_of_two():
    pace = DrainRate(100.0)
    for second in range(1, 21):
        pace.left(100.0 + second, 500)
    before = pace.seconds(120.0, 5000, 1.0)
    pace.left(120.0, 1_000_000)
    assert before / 2 <= pace.seconds(120.0, 5000, 1.0) <= before


def test_a_huge_request_counts_as_all_before_it_from_the_fourth_on():
    def after(*tokens):
        pace = DrainRate(100.0)
        for each in tokens:
            pace.left(104.0, each)
        return pace.seconds(105.0, 6000, 2000.0)

    assert after(100, 100, 100, 10**6) == after(100, 100, 100, 300)
    assert after(100, 100, 10**6) < after(100, 100, 200)
