"""Which replicas have no time for another request."""

import time

from gateway.core.engine_facts import EngineFacts, EngineKind, RankFacts
from gateway.core.ids import ModelId, ReplicaId, Target
from gateway.core.replica_state import DrainCause, Rates
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica import Replica
from gateway.overload import BusyReplicas
from gateway.routing import Chooser, LearnedRates

MODEL = ModelId("m")
RATES = Rates(base_seconds=0.01, prefill_seconds_per_token=0.001, decode_seconds_per_token=0.01, request_seconds=10.0)


def replica(name="r"):
    found = Replica(ReplicaId(name), "http://127.0.0.1:1", MODEL, LearnedRates(RATES))
    found.up = True
    return found


def busyness(*replicas, slots=256):
    return BusyReplicas(Fleet(replicas), Chooser("expected_ttft", 2.0, 0.05, slots), 0.5)


def look(one, *ranks):
    """Its metrics say so: (rank, running, waiting)."""
    one.begin_scrape()
    facts = EngineFacts(kind=EngineKind.VLLM, ranks=tuple(RankFacts(rank, None, *counts) for rank, *counts in ranks))
    one.end_scrape(facts, time.monotonic() + 60)


def busy(one, **options):
    return busyness(one, **options)(MODEL)


def test_what_was_sent_there_makes_it_busy_until_it_is_computed():
    one = replica()
    one.dispatch(0, 400, time.monotonic())
    assert busy(one) == {Target(one.id): False}
    ticket = one.dispatch(0, 200, time.monotonic())
    assert busy(one) == {Target(one.id): True}
    ticket.prefill_done(time.monotonic())
    assert busy(one) == {Target(one.id): False}


def test_a_replica_whose_slots_are_taken_is_busy():
    one = replica()
    for _ in range(9):
        one.dispatch(0, 0, time.monotonic())
    assert busy(one, slots=8) == {Target(one.id): True}
    assert busy(one, slots=64) == {Target(one.id): False}


def test_every_rank_has_its_own():
    one = replica()
    look(one, (0, 0, 0), (1, 0, 0))
    one.dispatch(1, 1000, time.monotonic())
    assert busy(one) == {Target(one.id): False, Target(one.id, 1): True}


def test_one_that_gets_no_requests_does_not_count():
    up, down, unchecked, draining = (replica(name) for name in "abcd")
    down.up, unchecked.up = False, None
    draining.drain(DrainCause.OPERATOR, on=True)
    assert busyness(up, down, unchecked, draining)(MODEL).keys() == {Target(up.id), Target(unchecked.id)}


def test_what_others_have_there_counts_as_much_as_ones_own():
    """Two gateways share a replica: each stops at half of what one alone would send."""
    one = replica()
    look(one, (0, 1, 20))
    assert one.load(0, time.monotonic()).prefill_tokens > 1000
    one.dispatch(0, 200, time.monotonic())
    assert busy(one) == {Target(one.id): False}
    one.dispatch(0, 100, time.monotonic())
    assert busy(one) == {Target(one.id): True}


def test_others_alone_never_make_it_busy():
    """They must not count a waiting request: it would wait for ever."""
    one = replica()
    look(one, (0, 300, 500))
    assert busy(one) == {Target(one.id): False}
    assert busy(one, slots=8) == {Target(one.id): False}
