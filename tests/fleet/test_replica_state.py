"""What a replica is called, and how it drains."""

import pytest
import structlog
from fleets import NOW, fleet, replica, send

from gateway.core.errors import NotFound
from gateway.core.replica_state import DrainCause, ReplicaState
from gateway.fleet.drains import Drains


def failed(at, times, since=NOW):
    for _ in range(times):
        at.breaker.failed(since, since)
        since = at.breaker.until
    return since


def test_before_its_first_check_it_is_starting():
    a = replica("a", up=None)
    assert a.state(NOW) is ReplicaState.STARTING


def test_then_it_is_ready_unless_it_is_being_warmed_or_gets_its_share_little_by_little():
    a = replica("a")
    assert a.state(NOW) is ReplicaState.READY
    a.warming = True
    assert a.state(NOW) is ReplicaState.STARTING
    a.warming = False
    a.ramp_until = NOW + 5
    assert a.state(NOW + 4.9) is ReplicaState.STARTING
    assert a.state(NOW + 5) is ReplicaState.READY


def test_after_a_failure_it_is_suspect_until_it_answers():
    a = replica("a")
    a.breaker.failed(NOW, NOW)
    assert a.state(NOW + 1) is ReplicaState.SUSPECT
    assert a.state(NOW + 100) is ReplicaState.SUSPECT
    a.breaker.answered(NOW + 100)
    assert a.state(NOW + 100) is ReplicaState.READY


def test_one_that_has_too_many_requests_is_suspect_for_a_moment():
    a = replica("a")
    a.breaker.busy(NOW, 1.0)
    assert a.state(NOW) is ReplicaState.SUSPECT
    assert a.state(NOW + 1) is ReplicaState.READY


def test_it_is_ejected_when_it_fails_again_and_again_and_when_its_checks_fail():
    a = replica("a")
    now = failed(a, 2)
    assert a.state(now) is ReplicaState.SUSPECT
    failed(a, 1, now)
    assert a.state(now) is ReplicaState.EJECTED
    b = replica("b", up=False)
    assert b.state(NOW) is ReplicaState.EJECTED


def test_ejected_without_requests_it_is_one_that_may_be_tried_once_its_time_is_over():
    a = replica("a")
    failed(a, 3)
    over = a.breaker.until
    assert a.state(over - 0.1) is ReplicaState.EJECTED
    assert a.state(over) is ReplicaState.SUSPECT
    assert a.state(over + 100_000) is ReplicaState.SUSPECT


def test_while_a_request_tries_one_that_was_ejected_it_is_still_that():
    a = replica("a")
    failed(a, 3)
    over = a.breaker.until
    flight, _ = send(a, over + 1)
    assert a.state(over + 500) is ReplicaState.EJECTED
    flight.answer(over + 600)
    assert a.state(over + 600) is ReplicaState.SUSPECT
    a.flights.discard(flight)
    assert a.breaker.answered(over + 1)
    assert a.state(over + 700) is ReplicaState.READY


def test_a_trial_that_fails_ejects_it_again():
    a = replica("a")
    failed(a, 3)
    over = a.breaker.until
    assert a.breaker.failed(over + 10, over + 5)
    assert a.state(over + 49) is ReplicaState.EJECTED
    assert a.state(over + 50) is ReplicaState.SUSPECT


def test_a_failure_outweighs_that_it_just_became_healthy():
    a = replica("a")
    a.ramp_until = NOW + 60
    a.warming = True
    a.breaker.failed(NOW, NOW)
    assert a.state(NOW) is ReplicaState.SUSPECT


@pytest.mark.parametrize("up", [True, False, None])
def test_draining_goes_before_everything(up):
    a = replica("a", up=up)
    failed(a, 3)
    a.drain(DrainCause.OPERATOR, on=True)
    assert a.state(NOW) is ReplicaState.DRAINING


def test_it_drains_as_long_as_there_is_any_cause_and_reports_the_change():
    a = replica("a")
    with structlog.testing.capture_logs() as logs:
        assert a.drain(DrainCause.CONFIGURATION, on=True)
        assert not a.drain(DrainCause.OPERATOR, on=True)
        assert not a.drain(DrainCause.OPERATOR, on=True)
        assert not a.drain(DrainCause.CONFIGURATION, on=False)
        assert a.draining
        assert a.drain(DrainCause.OPERATOR, on=False)
        assert not a.draining
        assert not a.drain(DrainCause.LEAVING, on=False)
    assert [(line["event"], line["cause"]) for line in logs] == [
        ("replica_draining", "configuration"),
        ("replica_drain_ended", "operator"),
    ]


class TestOrders:
    @pytest.fixture
    def changed(self):
        return []

    @pytest.fixture
    def of(self):
        return fleet("ab")

    @pytest.fixture
    def drains(self, of, changed):
        return Drains(of, lambda replica: changed.append((replica.id, replica.draining)))

    def test_an_order_says_how_the_replica_then_is(self, of, drains, changed):
        of.find("a").dispatch(0, 10, NOW)
        reported = drains.drain("a", on=True)
        assert reported == {
            "replica": "a",
            "draining": True,
            "because": ["operator"],
            "requests": 1,
            "everywhere": False,
        }
        assert drains.drain("a", on=True) == reported
        assert drains.drain("a", on=False) == reported | {"draining": False, "because": []}
        assert changed == [("a", True), ("a", False)]

    def test_an_order_is_not_taken_back_by_another_cause_nor_the_other_way_round(self, of, drains, changed):
        drains.set(of.find("a"), DrainCause.CONFIGURATION, on=True)
        assert drains.drain("a", on=True)["because"] == ["configuration", "operator"]
        drains.set(of.find("a"), DrainCause.CONFIGURATION, on=False)
        reported = drains.drain("b", on=False)
        assert (reported["replica"], reported["draining"], reported["because"], reported["requests"]) == (
            "b",
            False,
            [],
            0,
        )
        assert of.find("a").draining
        drains.set(of.find("a"), DrainCause.CONFIGURATION, on=True)
        reported = drains.drain("a", on=False)
        assert (reported["draining"], reported["because"]) == (True, ["configuration"])
        assert changed == [("a", True)]

    @pytest.mark.parametrize("name", ["c", "", "x" * 5000, "a "])
    def test_an_unknown_replica_is_reported_with_those_that_there_are(self, drains, changed, name):
        with pytest.raises(NotFound) as refused:
            drains.drain(name, on=True)
        assert (refused.value.code, refused.value.param) == ("unknown_replica", "replica")
        assert "a, b" in refused.value.message
        assert len(refused.value.message) < 300
        assert changed == []
