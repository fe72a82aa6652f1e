"""Whose turn it is."""

import pickle
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.ids import ReplicaId, Target
from gateway.routing.fair_order import SEQUENCE_TOKENS, FairOrder, WaitingRequest

A, B = Target(ReplicaId("a")), Target(ReplicaId("b"))


def waiting(tenant, tokens=100, *, target=A, share=1.0, again=False):
    return WaitingRequest(tenant, share, target, tokens, again)


def order_of(*requests):
    order = FairOrder()
    for request in requests:
        order.add(request)
    return order


def first(order, wanted=lambda _: True):
    return next((request for request, _ in order.in_turn(wanted)), None)


def served(order, count=10**6):
    """Serve that many; returns them in order."""
    found = []
    while len(order) and len(found) < count:
        found.append(first(order))
        order.serve(found[-1])
    return found


def test_a_flood_does_not_hold_up_who_comes_later():
    order = order_of(*(waiting("flood") for _ in range(100)))
    served(order, 5)
    late = waiting("late")
    order.add(late)
    assert late in served(order, 2)


def test_a_tenants_own_requests_keep_their_order():
    requests = [waiting("one", tokens) for tokens in (5, 900, 1, 40)]
    assert served(order_of(*requests)) == requests


def test_one_that_comes_again_goes_before_its_tenants_others_and_is_not_counted_twice():
    ours, theirs = [waiting("a") for _ in range(6)], [waiting("b") for _ in range(6)]
    again = [waiting("a", again=True) for _ in range(5)]
    turn = served(order_of(*ours, *theirs, *again))
    assert max(map(turn.index, again)) < turn.index(ours[0])
    others = [request.tenant for request in turn if request not in again]
    assert all(Counter(others[:count])["a"] in (count // 2, (count + 1) // 2) for count in range(1, 13))


def test_what_is_cached_is_not_free():
    """Else a tenant whose prompts are cached would go before all others, always."""
    others = [waiting("other", 9 * SEQUENCE_TOKENS) for _ in range(2)]
    order = order_of(*(waiting("cached", 0) for _ in range(1000)), *others)
    turn = served(order, 20)
    assert turn.index(others[1]) - turn.index(others[0]) == 11


def test_who_waited_for_a_busy_target_has_no_claim_for_that_time():
    """Or it would hold up all others when its target is free at last."""
    order = order_of(*(waiting("picky", target=A) for _ in range(50)), *(waiting("easy", target=B) for _ in range(100)))
    for _ in range(60):
        order.serve(first(order, lambda request: request.target == B))
    assert 9 <= sum(request.tenant == "picky" for request in served(order, 20)) <= 11


def test_who_comes_back_has_no_claim_for_the_time_it_was_away():
    order = order_of(waiting("away"), *(waiting("there") for _ in range(100)))
    served(order, 50)
    for _ in range(20):
        order.add(waiting("away"))
    assert Counter(request.tenant for request in served(order, 20)) == {"away": 10, "there": 10}


def test_leaving_and_coming_again_gains_nothing():
    order = order_of(*(waiting("there") for _ in range(100)))
    turns = []
    for _ in range(40):
        if not any(request.tenant == "hopper" for request, _ in order.in_turn(lambda _: True)):
            order.add(waiting("hopper"))
        turns += served(order, 1)
    assert Counter(request.tenant for request in turns) == {"there": 20, "hopper": 20}


def test_the_newest_of_who_has_most_for_its_share_is_refused():
    small = [waiting("small", 10) for _ in range(3)]
    large = [waiting("large", 1000) for _ in range(2)]
    assert order_of(*small, *large).newest_of_heaviest() is large[-1]
    assert order_of(*large, *small).newest_of_heaviest() is large[-1]
    entitled = [waiting("entitled", 1000, share=100) for _ in range(2)]
    assert order_of(*small, *entitled).newest_of_heaviest() is small[-1]


def test_one_that_comes_again_is_the_last_to_be_refused():
    order = order_of(waiting("a"), waiting("a"))
    again = waiting("a", again=True)
    order.add(again)
    for _ in range(2):
        found = order.newest_of_heaviest()
        assert found is not again
        order.remove(found)


def test_what_waits_in_front_is_counted_by_target():
    order = order_of(waiting("a", 10, target=A), waiting("a", 20, target=B), waiting("a", 30, target=A))
    assert [dict(ahead) for _, ahead in order.in_turn(lambda _: True)] == [{}, {A: 10}, {A: 10, B: 20}]
    assert order.ahead("a") == {A: 40, B: 20}
    assert order.ahead("who has nothing waiting") == {}


def test_of_others_only_what_goes_before_counts():
    order = order_of(*(waiting("flood", 1000, target=B) for _ in range(100)), *(waiting("a", 1000) for _ in range(3)))
    ahead = order.ahead("a")
    assert ahead[A] == 3000
    assert 2500 < ahead[B] < 3500


def test_what_is_in_front_of_a_flood_is_all_of_it_and_as_much_of_the_others():
    order = order_of(*(waiting("flood", 1000) for _ in range(10)), waiting("a", 500))
    flood, other = (10 * (1000 + SEQUENCE_TOKENS), 500 + SEQUENCE_TOKENS)
    assert order.cost_ahead(waiting("flood", 1)) == flood + other
    assert order.cost_ahead(waiting("a", 1)) == 2 * other


REQUESTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5000)), min_size=1, max_size=60)
SHARES = st.fixed_dictionaries({tenant: st.sampled_from([0.25, 1.0, 3.0]) for tenant in "abc"})


@given(REQUESTS, SHARES)
def test_backlogged_tenants_differ_by_at_most_a_largest_request(requests, shares):
    """Per share, as long as both have something waiting, from the beginning on."""
    order = order_of(*(waiting(tenant, tokens, share=shares[tenant]) for tenant, tokens in requests))
    most = max(tokens + SEQUENCE_TOKENS for _, tokens in requests) / min(shares.values())
    got = dict.fromkeys("abc", 0.0)
    left = Counter(tenant for tenant, _ in requests)
    while len(order):
        (request,) = served(order, 1)
        got[request.tenant] += request.cost / request.share
        left[request.tenant] -= 1
        backlogged = [got[tenant] for tenant in left if left[tenant] > 0]
        if backlogged:
            assert max(backlogged) - min(backlogged) <= most + 1e-6


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("abcd"), st.integers(0, 3000)),
        st.tuples(st.just("serve"), st.sampled_from([A, B, None]), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 100), st.just(0)),
        st.tuples(st.just("move"), st.integers(0, 100), st.integers(0, 3000)),
    ),
    max_size=80,
)


@given(STEPS)
def test_no_request_is_ever_lost_or_starved(steps):
    order, present = FairOrder(), []
    for what, which, tokens in steps:
        if what == "add":
            present.append(waiting(which, tokens, target=A if tokens % 2 else B))
            order.add(present[-1])
        elif what == "serve":
            found = first(order, lambda request, only=which: only is None or request.target == only)
            if found is not None:
                order.serve(found)
                present.remove(found)
        elif present:
            one = present[which % len(present)]
            if what == "leave":
                assert order.remove(one)
                assert not order.remove(one)
                present.remove(one)
            else:
                order.move(one, B if one.target == A else A, tokens)
        assert len(order) == len(present)
    assert {id(request) for request, _ in order.in_turn(lambda _: True)} == {id(request) for request in present}
    # A request that waits now is served although a flood goes on: at most one of the flood's for each in front of it.
    for number in range(20 * (len(present) + 1)):
        order.add(waiting("flood", 5000))
        served(order, 2)
        if number > 5 and not len(order):
            break
    left = [request for request, _ in order.in_turn(lambda _: True) if request.tenant != "flood"]
    assert not left
    for request in list(order.in_turn(lambda _: True)):
        order.remove(request[0])
    assert len(order) == 0
    assert order.ahead("flood") == {}


def test_tenants_without_end_that_were_served_once_are_not_remembered_without_end():
    order = order_of(waiting("always here"))
    sizes = []
    for number in range(12_000):
        once = waiting(f"once-{number:05}")
        order.add(once)
        order.serve(once)
        if number in (4_000, 11_999):
            sizes.append(len(pickle.dumps(order)))
    assert sizes[1] < 1.1 * sizes[0]


def test_of_many_that_were_served_those_with_most_are_remembered():
    order = order_of(waiting("always here", 10**6))
    much = waiting("much", 50_000)
    order.add(much)
    order.serve(much)
    for number in range(6_000):
        once = waiting(f"once-{number}")
        order.add(once)
        order.serve(once)
    order.add(waiting("much"))
    order.add(waiting("new"))
    assert [request.tenant for request in served(order)] == ["always here", "new", "much"]
