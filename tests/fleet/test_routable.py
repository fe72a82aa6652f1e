"""Which replicas of a model may get a request."""

import pytest
from fleets import MODEL, NOW, fail, fleet, replica, routable, send
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.replica_state import DrainCause, ReplicaState
from gateway.fleet.fleet import Fleet

OPERATOR = DrainCause.OPERATOR


# Tiers


def test_all_that_are_ready():
    assert routable(fleet("abc")) == "abc"


def test_one_whose_checks_fail_gets_nothing_not_even_when_there_is_no_other():
    a = fleet("ab")
    a.find("a").up = False
    assert routable(a) == "b"
    a.find("b").up = False
    assert routable(a) == ""


def test_one_that_was_never_checked_or_is_being_warmed_is_used_only_for_want_of_others():
    of = fleet("abc")
    of.find("a").up = None
    of.find("b").warming = True
    assert routable(of) == "c"
    of.find("c").up = False
    assert routable(of) == "ab"


def test_one_that_just_failed_is_left_out_then_it_is_back():
    of = fleet("abc")
    fail(of, "a")
    assert routable(of) == "bc"
    assert routable(of, NOW + 4.9) == "bc"
    assert routable(of, NOW + 5) == "abc"


def test_what_was_tried_is_never_tried_again():
    of = fleet("abc")
    assert routable(of, exclude="b") == "ac"
    fail(of, "ab")
    assert routable(of, exclude="abc") == ""


def test_one_that_says_it_serves_another_model_is_left_out():
    of = fleet("abc")
    of.find("a").wrong_model = True
    assert routable(of) == "bc"
    of.find("b").up = of.find("c").up = False
    assert routable(of) == ""  # a refusal with a time to come again, and not a model that is unknown
    of.find("b").wrong_model = of.find("c").wrong_model = True
    assert routable(of) == "a"  # the name in the configuration is wrong: the engine says so best


def test_other_models_and_other_regions_are_left_out():
    of = Fleet([replica("a", region="eu"), replica("b", region="us"), replica("c", model="n", region="eu")])
    assert routable(of) == "ab"
    assert routable(of, regions={"eu"}) == "a"
    assert routable(of, regions={"mars"}) == ""
    fail(of, "a")
    assert routable(of, regions={"eu"}) == "a"


# Panic


@pytest.mark.parametrize(
    ("names", "failed", "used"),
    [
        ("a", "a", "a"),
        ("ab", "a", "b"),
        ("ab", "ab", "ab"),
        ("abc", "a", "bc"),
        ("abc", "ab", "abc"),
        ("abcd", "ab", "cd"),
        ("abcd", "abc", "abcd"),
    ],
)
def test_if_more_than_half_failed_lately_all_are_used(names, failed, used):
    of = fleet(names)
    fail(of, failed)
    assert routable(of) == used


def test_those_whose_checks_fail_count_neither_way():
    of = fleet("abcd")
    for name in "abc":
        of.find(name).up = False
    assert routable(of) == "d"


def test_a_request_that_failed_somewhere_goes_to_a_sound_one_as_long_as_there_is_any():
    of = fleet("abcd")
    fail(of, "abc")
    assert routable(of, exclude="a") == "d"
    assert routable(of, exclude="ad") == "bc"


def test_in_another_region_nothing_is_saved_by_those_that_fail_here():
    of = Fleet([replica(name, region="eu") for name in "ab"] + [replica(name, region="us") for name in "cdef"])
    fail(of, "a")
    assert routable(of, regions={"eu"}) == "b"
    fail(of, "b")
    assert routable(of, regions={"eu"}) == "ab"
    assert routable(of) == "cdef"


# Trial


def test_one_that_failed_is_tried_with_one_request_at_a_time():
    of = fleet("ab")
    fail(of, "a")
    a, later = of.find("a"), NOW + 6
    assert routable(of, later) == "ab"
    flight, ticket = send(a, later)
    assert routable(of, later) == "b"
    flight.answer(later + 1)
    assert routable(of, later + 1) == "ab"
    ticket.done(NOW)
    a.flights.discard(flight)
    assert a.breaker.answered(later)
    for _ in range(3):
        send(a, later + 2)
    assert routable(of, later + 2) == "ab"


def test_one_that_was_ejected_is_still_tried_with_one_request_at_a_time_however_long_ago_that_was():
    of = fleet("ab")
    a, now = of.find("a"), NOW
    for _ in range(4):
        fail(of, "a", now)
        now = a.breaker.until
    assert routable(of, now - 0.1) == "b"
    much_later = now + 100_000
    assert a.state(much_later) is ReplicaState.SUSPECT
    assert routable(of, much_later) == "ab"
    send(a, much_later)
    assert routable(of, much_later) == "b"


def test_streams_from_before_it_failed_do_not_keep_it_from_being_tried():
    of = fleet("ab")
    for _ in range(20):
        send(of.find("a"), NOW - 10)
    fail(of, "a")
    assert routable(of, NOW + 6) == "ab"
    send(of.find("a"), NOW + 6)
    assert routable(of, NOW + 6) == "b"


def test_a_trial_that_fails_leaves_it_out_for_twice_as_long():
    of = fleet("ab")
    fail(of, "a")
    fail(of, "a", NOW + 6)
    assert routable(of, NOW + 15.9) == "b"
    assert routable(of, NOW + 16) == "ab"


# Slow start


def test_one_that_came_up_beside_others_gets_its_share_little_by_little():
    of = fleet("ab", ramp_seconds=10)
    a, b = of.find("a"), of.find("b")
    a.ramp_until = NOW + 10
    for _ in range(10):
        b.dispatch(0, 100, NOW)
    assert routable(of) == "ab"
    a.dispatch(0, 100, NOW)
    assert routable(of) == "b"
    assert routable(of, NOW + 5) == "ab"
    for _ in range(5):
        a.dispatch(0, 100, NOW)
    assert routable(of, NOW + 5) == "b"
    assert routable(of, NOW + 10) == "ab"


def test_replicas_that_start_together_without_another_one_share_everything():
    of = fleet("ab", ramp_seconds=10)
    for each in of.replicas:
        each.ramp_until = NOW + 10
        for _ in range(5):
            each.dispatch(0, 100, NOW)
    assert routable(of) == "ab"


def test_one_that_has_its_share_is_used_when_the_others_are_gone():
    of = fleet("ab", ramp_seconds=10)
    a, b = of.find("a"), of.find("b")
    a.ramp_until = NOW + 10
    for _ in range(3):
        a.dispatch(0, 100, NOW)
    assert routable(of) == "b"
    b.up = False
    assert routable(of) == "a"


# Draining


def test_one_that_drains_gets_nothing_in_any_state_of_the_others():
    of = fleet("abc")
    assert of.find("a").drain(OPERATOR, on=True)
    assert routable(of) == "bc"
    fail(of, "bc")
    assert routable(of) == "bc"
    assert routable(of, exclude="bc") == ""
    assert of.find("a").drain(OPERATOR, on=False)
    assert routable(of, exclude="b") == "a"


def test_one_that_drains_does_not_count_among_those_that_fail():
    of = fleet("abc")
    of.find("a").drain(OPERATOR, on=True)
    fail(of, "b")
    assert routable(of) == "c"


def test_a_model_is_ready_with_one_that_takes_requests():
    of = fleet("ab")
    assert of.ready(MODEL)
    of.find("a").up = False
    assert of.ready(MODEL)
    of.find("b").drain(OPERATOR, on=True)
    assert not of.ready(MODEL)
    of.find("a").up = None
    assert not of.ready(MODEL)
    of.find("b").drain(OPERATOR, on=False)
    assert of.ready(MODEL)


# All of it together

KINDS = st.fixed_dictionaries(
    {
        "up": st.sampled_from([True, True, True, False, None]),
        "warming": st.booleans(),
        "draining": st.sampled_from([False, False, False, True]),
        "failures": st.sampled_from([0, 0, 0, 1, 3]),
        "failed_ago": st.floats(0, 30),
        "ramping": st.booleans(),
        "requests": st.integers(0, 4),
        "region": st.sampled_from(["eu", "us"]),
    }
)


@given(st.lists(KINDS, min_size=1, max_size=6), st.sets(st.integers(0, 5)), st.sampled_from([(), ("eu",)]))
def test_in_any_states_a_request_has_a_replica_if_there_is_one(kinds, tried, regions):
    of = Fleet([], 10)
    for number, kind in enumerate(kinds):
        each = replica(str(number), region=kind["region"], up=kind["up"])
        each.warming = kind["warming"]
        each.drain(OPERATOR, on=kind["draining"])
        each.ramp_until = NOW + 5 if kind["ramping"] else 0.0
        for _ in range(kind["failures"]):
            each.breaker.failed(NOW - kind["failed_ago"], NOW - kind["failed_ago"])
        for _ in range(kind["requests"]):
            send(each, NOW - kind["failed_ago"])
        of.add(each)
    excluded = {str(number) for number in tried}
    found = of.routable(MODEL, NOW, excluded, regions)
    possible = [
        each
        for each in of.replicas
        if each.up is not False
        and not each.draining
        and each.id not in excluded
        and (not regions or each.region in regions)
    ]
    assert set(found) <= set(possible)
    assert bool(found) == bool(possible)
    ready = [each for each in possible if each.state(NOW) is ReplicaState.READY]
    assert set(ready) <= set(found)


CHANGES = {
    "down": lambda at, of: setattr(at, "up", False),
    "up": lambda at, of: setattr(at, "up", True),
    "moves": lambda at, of: at.move("http://elsewhere:8000"),
    "drains": lambda at, of: at.drain(OPERATOR, on=True),
    "drains no more": lambda at, of: at.drain(OPERATOR, on=False),
    "is warmed": lambda at, of: of.set_warming(at.id, True),
    "was warmed": lambda at, of: of.set_warming(at.id, False),
    "serves another model": lambda at, of: setattr(at, "wrong_model", True),
    "serves the model": lambda at, of: setattr(at, "wrong_model", False),
    "is elsewhere": lambda at, of: setattr(at, "region", "us"),
    "is near": lambda at, of: setattr(at, "region", "eu"),
    "slow start": lambda at, of: setattr(at, "ramp_until", NOW + 5),
    "no slow start": lambda at, of: setattr(at, "ramp_until", 0.0),
    "fails": lambda at, of: at.breaker.failed(NOW, NOW),
    "busy": lambda at, of: at.breaker.busy(NOW, 1.0),
    "restarts": lambda at, of: at.breaker.reset(NOW),
    "leaves": lambda at, of: at in of.replicas and of.remove(at),
    "joins": lambda at, of: at in of.replicas or of.add(at),
}


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(sorted(CHANGES))), max_size=12))
def test_what_was_found_before_is_not_returned_after_a_change(changes):
    replicas = [replica(name, region="eu") for name in "abc"]
    of = Fleet(replicas, 10)
    for number, change in [(0, "up"), *changes]:
        CHANGES[change](replicas[number], of)
        for now in (NOW, NOW + 2, NOW + 20):
            for regions in ((), ("eu",)):
                found = list(of.routable(MODEL, now, (), regions))
                of.changed()  # nothing is known any more
                assert found == of.routable(MODEL, now, (), regions)


def test_replicas_are_not_looked_through_again_while_nothing_changes():
    of = fleet("abc")
    assert of.routable(MODEL, NOW) is of.routable(MODEL, NOW + 100)


def test_replicas_on_their_ramp_are_measured_against_the_busiest_that_is_past_it():
    of = fleet("abcd", ramp_seconds=10.0)
    of.find("c").ramp_until = of.find("d").ramp_until = NOW + 5
    of.find("c").dispatch(0, 10, NOW)
    assert routable(of) == "abd"
    for _ in range(2):
        of.find("b").dispatch(0, 10, NOW)
    assert routable(of) == "abcd"
