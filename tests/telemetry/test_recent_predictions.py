"""How predictions of the last minutes are added up."""

import pytest
from records import refusal, settlement

from gateway.core.decision import Decision, DecisionKind
from gateway.core.ids import ReplicaId, Target
from gateway.telemetry import RecentPredictions

R0 = ReplicaId("r0")


class Clock:
    now = 12_345.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def recent(clock):
    return RecentPredictions(clock)


def figures(recent, replica="r0"):
    f = recent.figures(ReplicaId(replica))
    return (f.requests, f.prompt_tokens, f.predicted_tokens, f.confirmed_tokens, f.over_tokens, f.under_tokens)


def test_too_much_and_too_little_are_distinguished(recent):
    for predicted, cached in ((64, 80), (64, 64), (64, 0), (0, 32)):
        recent.on_settled(settlement(prompt_tokens=100, predicted_tokens=predicted, cached_tokens=cached))
    assert figures(recent) == (4, 400, 192, 176, 64, 48)


@pytest.mark.parametrize(
    "other", [{"warming": True}, {"status": 503}, {"decision": None, "status": 503}, {"cached_tokens": None}]
)
def test_what_says_nothing_of_a_clients_prompt_is_not_counted(recent, other):
    recent.on_settled(settlement(**other))
    recent.on_refused(refusal(400, "bad"))
    assert figures(recent) == (0, 0, 0, 0, 0, 0)


def test_each_replica_has_its_own_figures(recent):
    recent.on_settled(settlement())
    recent.on_settled(settlement(decision=Decision(Target(ReplicaId("r1"), 1), DecisionKind.COLD, 0, "x", ())))
    assert figures(recent, "r0")[0] == figures(recent, "r1")[0] == 1
    assert figures(recent, "r2")[0] == 0


def test_what_is_older_than_the_window_no_longer_counts(recent, clock):
    recent.on_settled(settlement())
    clock.now += 600
    recent.on_settled(settlement())
    clock.now += 250
    assert figures(recent)[0] == 2
    clock.now += 60
    assert figures(recent)[0] == 1
    recent.on_settled(settlement())
    assert figures(recent)[0] == 2
    clock.now += 10_000
    assert figures(recent) == (0, 0, 0, 0, 0, 0)


def test_memory_does_not_grow_with_requests(recent, clock):
    for _ in range(2000):
        clock.now += 7
        recent.on_settled(settlement())
    steps = recent._steps[R0]
    assert len(steps) == 30
    assert 870 / 7 <= figures(recent)[0] <= 900 / 7 + 1
