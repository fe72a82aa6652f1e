"""Limits of a tenant at several gateways: what was taken anywhere counts everywhere, a moment later."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.replicated_limits import ReplicatedLimits
from gateway.admission.tenant_limits import AllLimits, Limits
from gateway.core.errors import RateLimited


class GatewayLimits:
    """One gateway's limits."""

    def __init__(self, listed=None, unlisted=None, **limits):
        self.all = AllLimits(listed if listed is not None else {"a": Limits(**limits)}, unlisted)
        self.shared = ReplicatedLimits(self.all)

    def receive_from(self, other, now=0.0, *, everything=False):
        reported = other.shared.changes(now, everything=everything)
        if reported is not None:
            self.shared.receive(str(id(other)), reported, now)

    def admits(self, now=0.0, name="a"):
        try:
            return self.all.admit(name, now)
        except RateLimited:
            return None


def meet(*gateways, now=0.0, everything=True):
    for each in gateways:
        reported = each.shared.changes(now, everything=everything)
        for other in gateways:
            if other is not each and reported is not None:
                other.shared.receive(str(id(each)), reported, now)


def pair(**limits):
    gateways = GatewayLimits(**limits), GatewayLimits(**limits)
    meet(*gateways)
    return gateways


def test_requests_a_second():
    ours, theirs = pair(requests_per_second=5)
    for _ in range(3):
        assert ours.admits(0.0)
    theirs.receive_from(ours, 0.1)
    assert [bool(theirs.admits(0.1)) for _ in range(4)] == [True, True, False, False]
    # They count from when they were received.
    assert theirs.admits(1.05) is None
    assert theirs.admits(1.1)


def test_requests_running():
    ours, theirs = pair(concurrent=3)
    states = [ours.admits() for _ in range(2)]
    theirs.receive_from(ours)
    assert [bool(theirs.admits()) for _ in range(2)] == [True, False]
    ours.all.release("a", states[0])
    theirs.receive_from(ours)
    assert theirs.admits()
    theirs.shared.gone(str(id(ours)), 0.0)
    assert theirs.admits()  # it is not known to run any more


def test_prompt_tokens_a_minute_and_what_is_corrected_of_them():
    ours, theirs = pair(prompt_tokens_per_minute=1000)
    share = ours.admits().charge(700, 0.0, 0.0)
    theirs.receive_from(ours)
    state = theirs.admits()
    with pytest.raises(RateLimited, match="300 are left"):
        state.charge(301, 0.0, 0.0)
    share.correct(100)
    theirs.receive_from(ours)
    assert state.charge(900, None, 0.0)
    assert state.charge(1000, None, 61.0)


def test_a_request_that_was_refused_after_all_counts_nowhere():
    ours, theirs = pair(requests_per_second=2, prompt_tokens_per_minute=100)
    for _ in range(2):
        with pytest.raises(RateLimited):
            ours.admits(0.0).charge(1000, 0.0, 0.0)
    theirs.receive_from(ours)
    assert [bool(theirs.admits()) for _ in range(2)] == [True, True]


def test_nothing_is_lost_by_a_message_that_is():
    ours, theirs = pair(requests_per_second=10)
    for _ in range(4):
        ours.admits()
    assert ours.shared.changes(0.0, everything=False) is not None  # no gateway receives it
    for _ in range(3):
        ours.admits()
    theirs.receive_from(ours)
    assert sum(bool(theirs.admits()) for _ in range(10)) == 3


def test_one_that_begins_does_not_take_what_was_long_ago_for_now():
    ours = GatewayLimits(requests_per_second=10)
    for second in range(50):
        ours.admits(float(second))
    late = GatewayLimits(requests_per_second=10)
    late.receive_from(ours, 60.0, everything=True)
    assert sum(bool(late.admits(60.0)) for _ in range(10)) == 10
    for _ in range(4):
        ours.admits(61.5)
    late.receive_from(ours, 61.5)
    assert sum(bool(late.admits(61.5)) for _ in range(10)) == 6


def test_only_what_changed_is_sent():
    ours = GatewayLimits({name: Limits(concurrent=9) for name in "abc"} | {"free": Limits()})
    assert ours.shared.changes(0.0, everything=False) is None
    state = ours.admits(name="b")
    ours.admits(name="free")
    assert [name for name, *_ in ours.shared.changes(0.0, everything=False).tenants] == ["b"]
    assert ours.shared.changes(0.0, everything=False) is None
    ours.all.release("b", state)
    assert ours.shared.changes(0.0, everything=False) is not None
    assert ours.shared.changes(0.0, everything=False) is None
    assert "free" not in [name for name, *_ in ours.shared.changes(0.0, everything=True).tenants]


def test_tenants_without_an_entry_of_their_own():
    gateways = [GatewayLimits({}, Limits(requests_per_second=4)) for _ in range(2)]
    meet(*gateways)
    for _ in range(3):
        gateways[0].admits(name="somebody")
    gateways[1].receive_from(gateways[0])
    assert [bool(gateways[1].admits(name="somebody")) for _ in range(2)] == [True, False]
    assert gateways[1].admits(name="another")


def test_nothing_is_kept_for_sending_where_no_gateway_asks_nor_beyond_a_bound():
    limits_of = GatewayLimits()
    limits_of.all = AllLimits({}, Limits(concurrent=1), max_unlisted=5)
    for number in range(50):
        limits_of.all.release(f"t{number}", limits_of.admits(name=f"t{number}"))
    assert limits_of.all.touched is None
    ReplicatedLimits(limits_of.all).changes(0.0, everything=False)
    for number in range(50):
        limits_of.all.release(f"t{number}", limits_of.admits(name=f"t{number}"))
    assert len(limits_of.all.touched) == 5


def test_tenants_that_are_not_known_here_are_passed_over():
    ours, theirs = GatewayLimits({"z": Limits(concurrent=1)}), GatewayLimits(concurrent=1)
    meet(ours, theirs)
    ours.admits(name="z")
    theirs.receive_from(ours)
    assert theirs.admits()


def test_other_limits_keep_what_was_taken_elsewhere():
    ours, theirs = pair(concurrent=3)
    for _ in range(2):
        ours.admits()
    theirs.receive_from(ours)
    theirs.all.replace({"a": Limits(concurrent=2)}, None)
    assert theirs.admits() is None
    ours.all.replace({}, None)
    ours.shared.changes(0.0, everything=True)
    ours.shared.changes(0.0, everything=False)


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=80),
)
def test_no_gateway_exceeds_the_limit_by_more_than_unreceived_usage(limit, steps):
    """Three gateways exchange messages every tenth of a second. In any second no more is admitted than the limit, and
    what the others took since the last message to each of them."""
    gateways = [GatewayLimits(requests_per_second=limit) for _ in range(3)]
    meet(*gateways)
    now, untold, admitted = 0.0, [0, 0, 0], []
    for who, ticks in steps:
        for _ in range(ticks):
            now += 0.1
            meet(*gateways, now=now, everything=False)
            untold = [0, 0, 0]
        recent = sum(at > now - 1 + 1e-6 for at in admitted)
        if gateways[who].admits(now):
            elsewhere = sum(untold) - untold[who]
            assert recent - elsewhere < limit
            admitted.append(now)
            untold[who] += 1
