import pytest

from gateway.core.decision import DecisionKind, decision_kind
from gateway.core.ids import ReplicaId, Target
from gateway.core.ports import Holding
from gateway.core.replica_state import Load, Rates
from gateway.routing import Affinity, Chooser

RATES = Rates(base_seconds=0.01, prefill_seconds_per_token=0.001, decode_seconds_per_token=0.02, request_seconds=2.0)


def load(name, prefill=0, requests=0, rates=RATES, rank=0):
    return Load(Target(ReplicaId(name), rank), prefill, requests, rates)


def held(*tokens):
    """Holdings in the fastest memory."""
    return [Holding(count, count) for count in tokens]


def chooser(policy="expected_ttft", miss_weight=2.0, slots=256):
    return Chooser(policy, miss_weight, 0.05, slots)


KEY = Affinity(1, None)


def choose(loads, tokens_held, tokens=1000, key=KEY, **options):
    return chooser(**options).choose(loads, held(*tokens_held), tokens, key)


def test_warm_replica_wins():
    decision = choose([load("a"), load("b"), load("c")], [0, 800, 400])
    assert (decision.replica, decision.kind, decision.held_tokens) == ("b", DecisionKind.WARM, 800)


def test_hot_prefix_spreads_when_the_queue_costs_more_than_computing_it_again():
    loads = [load("a", prefill=2000), load("b")]
    assert choose(loads, [800, 0], miss_weight=2.0).replica == "a"  # 2.0 + 0.6 against 3.0 s
    decision = choose([load("a", prefill=2700), load("b")], [800, 0], miss_weight=2.0)
    assert (decision.replica, decision.kind) == ("b", DecisionKind.BALANCED)
    assert choose(loads, [800, 0], miss_weight=0.0).replica == "b"


def test_every_candidate_keeps_the_terms_of_its_cost():
    decision = choose([load("a", prefill=500), load("b")], [300, 0])
    first = decision.candidates[0]
    assert first.queue_seconds == pytest.approx(0.5)
    assert first.prefill_seconds == pytest.approx(0.7)
    assert first.cost_seconds == pytest.approx(0.01 + 0.5 + 3 * 0.7)
    assert len(decision.candidates) == 2


def test_full_replica_costs_the_wait_for_a_slot():
    decision = choose([load("a", requests=10), load("b", requests=3)], [900, 0], slots=4)
    assert decision.replica == "b"
    assert decision.candidates[0].queue_seconds == pytest.approx(7 * 2.0 / 4)
    assert decision.candidates[1].queue_seconds == 0.0


def test_slow_replica_is_given_less():
    slow = Rates(0.01, 0.004, 0.02, 2.0)
    assert choose([load("a", rates=slow), load("b")], [0, 0]).replica == "b"


def test_cold_prefixes_spread_evenly_and_gateways_agree():
    loads = [load(name) for name in "abcd"]
    one, other = chooser(), chooser()
    counts = dict.fromkeys("abcd", 0)
    for key in range(2000):
        first = one.choose(loads, held(*[0] * 4), 1000, Affinity(key, None))
        assert first.kind is DecisionKind.COLD
        # Another gateway lists its replicas in another order.
        assert other.choose(loads[::-1], held(*[0] * 4), 1000, Affinity(key, None)).replica == first.replica
        counts[first.replica] += 1
    assert min(counts.values()) > 420


def test_a_replica_that_leaves_moves_only_its_own_prefixes():
    loads = [load(name) for name in "abcd"]
    before = [chooser().choose(loads, held(*[0] * 4), 100, Affinity(key, None)).replica for key in range(300)]
    after = [chooser().choose(loads[:3], held(*[0] * 3), 100, Affinity(key, None)).replica for key in range(300)]
    assert all(old == new for old, new in zip(before, after, strict=True) if old != "d")


def test_near_ties_go_by_the_prefix_not_by_noise():
    noisy = Rates(0.0101, 0.00101, 0.02, 2.0)
    picks = {choose([load("a"), load("b", rates=noisy)], [0, 0], key=Affinity(key, None)).replica for key in range(40)}
    assert picks == {"a", "b"}


def test_round_robin_takes_turns():
    policy = chooser("round_robin")
    loads = [load(name) for name in "abc"]
    picks = [policy.choose(loads, held(0, 900, 0), 1000, KEY).replica for _ in range(6)]
    assert sorted(picks) == ["a", "a", "b", "b", "c", "c"]
    assert picks[:3] == picks[3:]


def test_least_load_takes_the_one_with_fewest_requests_and_alternates_between_equals():
    policy = chooser("least_load")
    assert policy.choose([load("a", requests=2), load("b", requests=1)], held(900, 0), 1000, KEY).replica == "b"
    loads = [load("a", requests=1), load("b", requests=1), load("c", requests=5)]
    assert {policy.choose(loads, held(0, 0, 0), 10, KEY).replica for _ in range(4)} == {"a", "b"}


def test_session_policy_keeps_a_session_for_any_prompt():
    policy = chooser("session")
    loads = [load(name) for name in "abcd"]
    assert len({policy.choose(loads, held(*[0] * 4), 10, Affinity(key, "s1")).replica for key in range(20)}) == 1
    assert len({policy.choose(loads, held(*[0] * 4), 10, Affinity(0, f"s{n}")).replica for n in range(40)}) == 4
    assert len({policy.choose(loads, held(*[0] * 4), 10, Affinity(key, None)).replica for key in range(40)}) == 4


def test_retried_and_blind_requests_say_so():
    loads = [load("a"), load("b")]
    assert chooser().choose(loads, held(0, 0), 10, KEY, retried=True).kind is DecisionKind.FAILOVER
    assert chooser().choose(loads, held(64, 0), 100, KEY, blind=True).kind is DecisionKind.BLIND


def test_tokens_on_a_slower_medium_count_as_held_but_cost_the_time_to_fetch_them():
    decision = chooser().choose([load("a"), load("b")], [Holding(800, 400.0), Holding(600, 600.0)], 1000, KEY)
    slow, fast = decision.candidates
    assert (slow.held_tokens, fast.held_tokens) == (800, 600)
    assert slow.prefill_seconds == pytest.approx(0.6)
    assert fast.prefill_seconds == pytest.approx(0.4)
    assert (decision.replica, decision.held_tokens) == ("b", 600)


def test_ranks_of_one_replica_are_chosen_between_like_replicas():
    loads = [load("a", rank=rank) for rank in range(4)]
    decision = choose(loads, [0, 0, 800, 0])
    assert (decision.target, decision.replica, decision.kind) == (("a", 2), "a", DecisionKind.WARM)
    targets = [choose(loads, [0] * 4, key=Affinity(key, None)).target for key in range(400)]
    assert min(targets.count(("a", rank)) for rank in range(4)) > 60
    sessions = {choose(loads, [0] * 4, key=Affinity(key, "s1"), policy="session").target for key in range(20)}
    assert len(sessions) == 1
    busy = [load("a", requests=3, rank=0), load("a", requests=1, rank=1)]
    assert choose(busy, [900, 0], policy="least_load").target == ("a", 1)


@pytest.mark.parametrize(
    ("held_tokens", "most", "prompt", "flags", "expected"),
    [
        (0, 0, 100, "", "cold"),
        (1, 1, 100, "", "partial"),
        (49, 49, 100, "", "partial"),
        (50, 50, 100, "", "warm"),
        (100, 100, 100, "", "warm"),
        (0, 16, 100, "", "balanced"),
        (80, 96, 100, "", "balanced"),
        (80, 80, 100, "retried", "failover"),
        (0, 0, 0, "", "cold"),
        (80, 80, 100, "blind", "blind"),
        (80, 80, 100, "retried blind", "blind"),
    ],
)
def test_the_word_for_a_decision(held_tokens, most, prompt, flags, expected):
    kind = decision_kind(held_tokens, most, prompt, retried="retried" in flags, blind="blind" in flags)
    assert kind == expected


def test_a_session_decides_between_equal_replicas_that_hold_a_prompt():
    loads = [load(name) for name in "abcd"]
    picks = [choose(loads, [900] * 4, key=Affinity(1, f"tenant\0s{number}")).replica for number in range(40)]
    assert set(picks) == set("abcd")
    assert picks == [choose(loads, [900] * 4, key=Affinity(2, f"tenant\0s{number}")).replica for number in range(40)]
    # A prompt that is new to all goes where others with its beginning go.
    assert len({choose(loads, [0] * 4, key=Affinity(1, f"tenant\0s{number}")).replica for number in range(40)}) == 1
