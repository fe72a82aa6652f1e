"""What a replica is busy with: this gateway's requests, and those of others that the engine counts."""

import pytest
import structlog

from gateway.core.engine_facts import EngineFacts, EngineKind, RankFacts
from gateway.core.ids import ModelId, ReplicaId, Target
from gateway.core.outcome import Usage
from gateway.core.ports import Holding
from gateway.core.replica_state import Rates
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica import Replica
from gateway.routing import Affinity, Chooser, LearnedRates

NOW = 100.0
RATES = Rates(base_seconds=0.01, prefill_seconds_per_token=0.001, decode_seconds_per_token=0.02, request_seconds=2.0)


def replica(name="a"):
    return Replica(ReplicaId(name), f"http://{name}:8000", ModelId("m"), LearnedRates(RATES))


def facts(*loads, kind=EngineKind.VLLM, first=0):
    """Metrics that show running and waiting requests, rank by rank."""
    ranks = tuple(RankFacts(first + n, running=running, waiting=waiting) for n, (running, waiting) in enumerate(loads))
    return EngineFacts(kind=kind, ranks=ranks)


def look(at, *loads, valid=60.0, **options):
    at.begin_scrape()
    at.end_scrape(facts(*loads, **options), NOW + valid)


def test_before_the_first_look_there_is_one_rank_and_only_our_own_load():
    a = replica()
    assert list(a.targets) == [Target(ReplicaId("a"), 0)]
    assert a.rank_header(0) is None
    ticket = a.dispatch(0, 300, NOW)
    assert (a.load(0, NOW).requests, a.load(0, NOW).prefill_tokens) == (1, 300)
    ticket.prefill_done(NOW)
    ticket.done(NOW)
    ticket.done(NOW)
    assert (a.load(0, NOW).requests, a.load(0, NOW).prefill_tokens, a.requests) == (0, 0, 0)


def test_what_is_computed_of_the_oldest_prompt_is_no_load_and_teaches_no_rate():
    a = replica()
    rate = a.speed.rates.prefill_seconds_per_token
    first = a.dispatch(0, 300, NOW)
    a.dispatch(0, 50, NOW)
    assert a.load(0, NOW + 100 * rate).prefill_tokens == 250
    assert a.dispatch(0, 10, NOW + 100 * rate).prefill_ahead == 250
    # A replica that is late stays busy.
    assert a.fair_load(0, NOW + 9000 * rate).prefill_tokens == 360
    assert a.load(0, NOW + 310 * rate).prefill_tokens == 60
    assert a.load(0, NOW + 9000 * rate).prefill_tokens == 360
    assert a.prefill_tokens == 360
    first.prefill_done(NOW + 300 * rate)
    assert a.load(0, NOW + 310 * rate).prefill_tokens == 50


def test_what_the_engine_has_beyond_ours_is_counted_once():
    a = replica()
    for _ in range(2):
        a.dispatch(0, 100, NOW)
    look(a, (3, 4))
    assert a.load(0, NOW).requests == 7
    a.dispatch(0, 100, NOW)
    assert a.load(0, NOW).requests == 8


def test_own_requests_alone_are_no_load_of_others():
    a = replica()
    tickets = [a.dispatch(0, 100, NOW) for _ in range(5)]
    look(a, (2, 3))
    assert (a.load(0, NOW).requests, a.load(0, NOW).prefill_tokens) == (5, 500)
    for ticket in tickets:
        ticket.done(NOW)
    # Those that ended since are neither counted twice nor taken off what others have there.
    assert (a.load(0, NOW).requests, a.load(0, NOW).prefill_tokens) == (0, 0)


def test_requests_that_came_or_went_while_the_engine_was_asked_are_not_taken_for_others():
    a = replica()
    early = a.dispatch(0, 100, NOW)
    a.begin_scrape()
    passing = a.dispatch(0, 100, NOW)
    passing.done(NOW)
    early.done(NOW)
    a.end_scrape(facts((2, 0)), NOW + 60)
    assert a.load(0, NOW).requests == 0
    a.begin_scrape()
    a.dispatch(0, 100, NOW)
    a.end_scrape(facts((1, 0)), NOW + 60)
    assert a.load(0, NOW).requests == 1


def test_engine_that_has_not_seen_our_requests_yet_has_no_others_and_not_less_than_none():
    a = replica()
    for _ in range(4):
        a.dispatch(0, 100, NOW)
    look(a, (1, 0))
    assert a.load(0, NOW).requests == 4


def test_every_choice_of_every_prompt_is_a_request_of_ours():
    a = replica()
    ticket = a.dispatch(0, 100, NOW, sequences=8)
    look(a, (1, 7))
    assert a.requests == 1
    assert (a.load(0, NOW).requests, a.load(0, NOW).prefill_tokens) == (8, 100)
    ticket.done(NOW)
    assert a.load(0, NOW).requests == 0


def test_waiting_requests_of_others_stand_for_prompts_like_ours():
    a = replica()
    for _ in range(300):
        a.dispatch(0, 2000, NOW).done(NOW)
    look(a, (1, 4))
    short = replica()
    for _ in range(300):
        short.dispatch(0, 20, NOW).done(NOW)
    look(short, (1, 4))
    assert a.load(0, NOW).prefill_tokens == pytest.approx(100 * short.load(0, NOW).prefill_tokens, rel=0.05)
    running = replica()
    look(running, (5, 0))
    assert (running.load(0, NOW).requests, running.load(0, NOW).prefill_tokens) == (5, 0)


def test_our_own_waiting_requests_are_not_counted_again_as_prompts_of_others():
    a = replica()
    tickets = [a.dispatch(0, 1000, NOW) for _ in range(4)]
    tickets[0].prefill_done(NOW)
    look(a, (6, 3))
    assert a.load(0, NOW).requests == 9
    assert a.load(0, NOW).prefill_tokens == 3000


def test_a_look_that_is_too_old_counts_no_more():
    a = replica()
    look(a, (2, 6), valid=6)
    assert a.load(0, NOW + 5.9).requests == 8
    assert a.load(0, NOW + 5.9).prefill_tokens > 0
    assert (a.load(0, NOW + 6).requests, a.load(0, NOW + 6).prefill_tokens) == (0, 0)


def test_engine_that_stops_reporting_its_load_has_none_of_others():
    a = replica()
    look(a, (2, 6))
    a.begin_scrape()
    a.end_scrape(EngineFacts(), NOW + 60)
    assert a.load(0, NOW).requests == 0


def test_second_gateway_avoids_the_replica_that_the_first_one_has_filled():
    def gateway():
        return Fleet([replica("a"), replica("b")]), Chooser("expected_ttft", 2.0, 0.05, 256)

    def place(fleet, chooser, key, tokens=400):
        loads = [each.load(0, NOW) for each in fleet.replicas]
        decision = chooser.choose(loads, [Holding(0, 0.0)] * 2, tokens, Affinity(key, None))
        return decision.replica

    (first, chooser), (second, other) = gateway(), gateway()
    filled = first.replicas[0]
    for _ in range(10):
        filled.dispatch(0, 1000, NOW)
    engines = {"a": (1, 9), "b": (0, 0)}
    homes = {place(second, other, key) for key in range(40)}
    for fleet in (first, second):
        for each in fleet.replicas:
            look(each, engines[each.id])
    assert homes == {"a", "b"}
    assert {place(second, other, key) for key in range(40)} == {"b"}
    assert {place(first, chooser, key) for key in range(40)} == {"b"}
    least = Chooser("least_load", 2.0, 0.05, 256)
    assert place(second, least, 1) == "b"


def test_gateways_that_look_at_the_same_moment_do_not_make_the_gap_they_see_any_larger():
    gateways = [Fleet([replica("a"), replica("b")]) for _ in range(8)]
    chooser = Chooser("expected_ttft", 0.0, 0.0, 256)
    queues = {"a": 64, "b": 0}
    for fleet in gateways:
        for _ in range(8):
            fleet.replicas[0].dispatch(0, 500, NOW)
        for _ in range(20):
            for each in fleet.replicas:
                look(each, (0, queues[each.id]))
    for number, fleet in enumerate(gateways):
        for key in range(32):  # new prompts until the next look
            loads = [each.load(0, NOW) for each in fleet.replicas]
            chosen = chooser.choose(loads, [Holding(0, 0.0)] * 2, 500, Affinity(f"{number}-{key}".encode(), None))
            next(each for each in fleet.replicas if each.id == chosen.replica).dispatch(0, 500, NOW)
            queues[chosen.replica] += 1
    assert abs(queues["a"] - queues["b"]) <= 64


def test_ranks_are_targets_with_loads_of_their_own():
    a = replica()
    look(a, (0, 0), (5, 0), (0, 0))
    assert list(a.targets) == [Target(ReplicaId("a"), rank) for rank in range(3)]
    a.dispatch(2, 700, NOW)
    assert [a.load(rank, NOW).requests for rank in range(3)] == [0, 5, 1]
    assert [a.load(rank, NOW).prefill_tokens for rank in range(3)] == [0, 0, 700]
    assert (a.requests, a.prefill_tokens) == (1, 700)
    assert [a.rank_header(rank) for rank in range(3)] == [b"0", b"1", b"2"]
    assert a.load(1, NOW).target == ("a", 1)


def test_single_rank_is_rank_0_with_any_number():
    a = replica()
    look(a, (3, 1), first=5)
    assert list(a.targets) == [Target(ReplicaId("a"), 0)]
    assert a.rank_header(0) is None
    assert a.load(0, NOW).requests == 4


def test_vllm_counts_the_ranks_of_a_machine_from_0_where_a_request_names_one():
    a = replica()
    look(a, (0, 0), (0, 0), first=8)
    assert [target.rank for target in a.targets] == [8, 9]
    assert [a.rank_header(rank) for rank in (8, 9)] == [b"0", b"1"]
    assert a.asked_target(1) == ("a", 9)
    assert a.asked_target(8) is None
    look(a, (0, 0), (0, 0), first=1, kind=EngineKind.SGLANG)
    assert a.rank_header(1) == b"1"
    assert a.asked_target(2) == ("a", 2)


def test_requests_in_flight_stay_counted_when_the_ranks_become_known():
    a = replica()
    ticket = a.dispatch(0, 100, NOW)
    look(a, (1, 0), (0, 0))
    assert a.requests == 1
    ticket.done(NOW)
    assert (a.requests, a.prefill_tokens) == (0, 0)


COLD, SILENT, WARM = Usage(100, 5, 0), Usage(100, 5, None), Usage(100, 5, 64)


@pytest.mark.parametrize(
    ("kind", "answers", "known", "warnings"),
    [
        (EngineKind.VLLM, [(None, 0)], None, []),
        (EngineKind.VLLM, [(SILENT, 0), (SILENT, 64)], False, ["--enable-prompt-tokens-details"]),
        (EngineKind.VLLM, [(COLD, 0), (SILENT, 64)], True, []),
        (EngineKind.SGLANG, [(SILENT, 0)], None, []),
        (EngineKind.SGLANG, [(SILENT, 0), (WARM, 64), (SILENT, 64)], True, []),
        (EngineKind.SGLANG, [(SILENT, 64), (SILENT, 64)], False, ["--enable-cache-report"]),
        (EngineKind.SGLANG, [(SILENT, 64), (WARM, 64)], True, ["--enable-cache-report"]),
        (None, [(SILENT, 0)], None, []),
        (None, [(SILENT, 64)], False, ["--enable-prompt-tokens-details"]),
    ],
)
def test_answers_show_whether_usage_has_details(kind, answers, known, warnings):
    a = replica()
    look(a, (0, 0), kind=kind)
    with structlog.testing.capture_logs() as logs:
        for usage, held in answers:
            a.answered(usage, held)
    assert a.usage_details is known
    assert [entry["event"] for entry in logs] == ["usage_details_missing"] * len(warnings)
    for entry, flag in zip(logs, warnings, strict=True):
        assert flag in entry["fix"]
        assert entry["replica"] == "a"
