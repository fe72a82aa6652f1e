"""Start times that one address reports."""

import pytest

from gateway.fleet.start_times import StartTimes


def reported(*times):
    starts = StartTimes()
    return [starts.is_restart(each) for each in times], starts.are_several


def test_a_restart_has_a_later_time():
    assert reported(10.0, 10.0, 20.0, 20.0, None, 30.0) == ([False, False, True, False, False, True], False)


@pytest.mark.parametrize("times", [(10.0, 20.0, 10.0), (20.0, 10.0), (10.0, 20.0, 30.0, 20.0), (10.0, 20.0, 15.0)])
def test_a_time_that_goes_back_proves_several(times):
    restarts, are_several = reported(*times)
    assert are_several
    assert not restarts[-1]


def test_several_are_no_restarts_any_more():
    assert reported(10.0, 20.0, *(10.0, 20.0) * 50)[0].count(True) == 1


def test_after_a_rolling_update_there_is_one_again():
    starts = StartTimes()
    for each in (10.0, 20.0, 10.0, 20.0):
        starts.is_restart(each)
    for _ in range(299):
        starts.is_restart(20.0)
        assert starts.are_several
    starts.is_restart(20.0)
    assert not starts.are_several
    assert starts.is_restart(30.0)


@pytest.mark.parametrize("time", [5.0, 15.0])
def test_another_engine_at_another_address_is_a_restart_and_not_several(time):
    starts = StartTimes()
    for each in (20.0, 10.0):
        starts.is_restart(each)
    starts.moved()
    assert not starts.is_restart(10.0)  # the same engine
    assert starts.is_restart(time)
    assert not starts.are_several
    assert not starts.is_restart(1.0)
    assert starts.are_several
