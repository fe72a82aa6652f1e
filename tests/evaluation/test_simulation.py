"""The simulation against cases computed by hand: blocks of 10 tokens, 10 tokens of prefill a second."""

import pytest

from gateway.config.routing_settings import PlacementSettings, QueueSettings
from gateway.evaluation.simulation import LIMITS, POLICIES, FleetShape, SimulationResult, Workload, ladder, simulate
from gateway.evaluation.workload_trace import TraceRequest

SIZE = 10


def request(at: float, ids: str, *, tokens: int = 0, output: int = 1, session: str = "") -> TraceRequest:
    """A prompt whose blocks are the letters; the last block has one token if ``tokens`` does not say more."""
    return TraceRequest(at, tokens or (len(ids) - 1) * SIZE + 1, output, [ord(letter) for letter in ids], session)


def run(requests: list[TraceRequest], policy: str = "round_robin", **shape: object) -> SimulationResult:
    shape = {"replicas": 1, "blocks": 100, "prefill_rate": 10.0, "decode_seconds": 0.0} | shape
    return simulate(Workload.of(requests, SIZE), FleetShape(**shape), policy)


def test_a_repeated_prompt_is_a_hit_up_to_its_last_full_block() -> None:
    found = run([request(0, "abcd"), request(100, "abce")])
    assert (found.hit_blocks, found.blocks, found.cached_tokens, found.prompt_tokens) == (3, 8, 30, 62)
    # 31 tokens take 3.1 s; then one token takes 0.1 s.
    assert found.ttft_seconds == (pytest.approx(0.1), pytest.approx(3.1), pytest.approx(3.1))


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    twice = [request(0, "ab", tokens=20), request(100, "ab", tokens=20)]
    assert run(twice).hit_blocks == 1
    # As blocks of the trace, both are repeated.
    ideal = run(twice, "ideal")
    assert (ideal.hit_blocks, ideal.cached_tokens) == (2, 10)


def test_prompts_are_computed_one_after_the_other() -> None:
    found = run([request(0, "ab"), request(0, "cd"), request(0, "ef")])
    assert found.ttft_seconds == (pytest.approx(2.2), pytest.approx(3.3), pytest.approx(3.3))


def test_a_shared_cache_has_one_prefill_for_each_replica() -> None:
    both = [request(0, "ab"), request(0, "cd")]
    assert run(both, "capacity", replicas=2).ttft_seconds == (pytest.approx(1.1),) * 3


def test_a_hit_is_possible_as_soon_as_a_block_is_scheduled() -> None:
    assert run([request(0, "abc"), request(0, "abd")]).hit_blocks == 2


def test_the_least_recently_used_prompt_is_evicted_its_end_first() -> None:
    # Room for 4 blocks: c takes the place of the end of ab, and b of a.
    prompts = [request(0, "abX"), request(100, "abY"), request(200, "cdX"), request(300, "abZ")]
    assert [run(prompts[:count], blocks=4).hit_blocks for count in (2, 3, 4)] == [2, 2, 3]


def test_generated_tokens_take_room() -> None:
    # zX and aX take 3 of 4 blocks and leave one without content; with 11 generated tokens aX takes 3 of its own.
    def prompts(output: int) -> list[TraceRequest]:
        return [request(0, "zX"), request(100, "aX", output=output), request(200, "bX"), request(300, "zY")]

    assert run(prompts(1), blocks=4).hit_blocks == 1
    assert run(prompts(11), blocks=4).hit_blocks == 0


def test_a_request_waits_for_a_slot() -> None:
    # 5 tokens after the first take 5 s, so the second prompt starts after 1.1 + 5 s.
    both = [request(0, "ab", output=6), request(0, "cd")]
    assert run(both, slots=1, decode_seconds=1.0).ttft_seconds[-1] == pytest.approx(7.2)
    assert run(both, slots=2, decode_seconds=1.0).ttft_seconds[-1] == pytest.approx(2.2)


def test_a_request_waits_for_blocks_that_are_in_use() -> None:
    both = [request(0, "abc", output=6), request(0, "def")]
    assert run(both, blocks=5, decode_seconds=1.0).ttft_seconds[-1] == pytest.approx(2.1 + 5 + 2.1)
    assert run(both, blocks=6, decode_seconds=1.0).ttft_seconds[-1] == pytest.approx(4.2)


def test_a_request_that_no_replica_can_hold_is_left_out() -> None:
    found = run([request(0, "abc"), request(1, "abcd")], blocks=3)
    assert (found.requests, found.refused, found.prompt_tokens) == (1, 1, 21)


def test_long_answers_without_decode_time_end() -> None:
    assert run([request(0, "a", output=95)] * 3, blocks=10).requests == 3


def test_round_robin_takes_turns() -> None:
    same = [request(100.0 * number, "abcd") for number in range(4)]
    assert run(same, replicas=2).hit_blocks == 6
    assert run(same, replicas=4).hit_blocks == 0
    assert run(same, replicas=4).largest_share == 0.25


def test_expected_ttft_follows_the_prefix_until_waiting_costs_more() -> None:
    first = request(0, "abcdX")
    # Alone, the same prefix goes where it is; behind 20 s of work it is computed again at the idle replica.
    assert run([first, request(100, "abcdY")], "expected_ttft", replicas=2).hit_blocks == 4
    busy = [request(100, "abcd" + "efghijklmnopqrstuvw"), request(100, "abcdZ")]
    found = run([first, *busy], "expected_ttft", replicas=2)
    assert (found.hit_blocks, found.largest_share) == (4, pytest.approx(2 / 3))


def test_perfect_routing_ignores_the_load() -> None:
    busy = [request(0, "abcdX"), request(100, "abcd" + "efghijklmnopqrstuvw"), request(100, "abcdZ")]
    found = run(busy, "perfect", replicas=2)
    assert (found.hit_blocks, found.largest_share) == (8, 1.0)


def test_perfect_routing_uses_all_caches_although_all_prompts_share_a_block() -> None:
    prompts = [request(0, "sabcdefghijklmnopqrtuX"), request(100, "sABCDEFGHIJKLMNOPQRTUX")]
    assert run(prompts, "perfect", replicas=2).largest_share == 0.5


def test_a_load_gate_follows_a_large_share_only() -> None:
    # The second prompt has 4 of 5 blocks at one replica, the third 1 of 5 and goes to the other one.
    prompts = [request(0, "abcdX"), request(100, "abcdY"), request(200, "aefgZ")]
    found = run(prompts, "load_gate", replicas=2)
    assert (found.hit_blocks, found.largest_share) == (4, pytest.approx(2 / 3))


def test_a_load_gate_opens_when_the_loads_differ() -> None:
    burst = [request(0, "abcdX")] * 100
    found = run(burst, "load_gate", replicas=2)
    # 65 go to the first replica; then it has 64 more than the other one, and these take turns.
    assert found.largest_share == pytest.approx(0.82, abs=0.02)


def test_sessions_stay_on_one_replica() -> None:
    prompts = [request(100.0 * n, f"{chr(65 + n)}X", session=f"s{n % 2}") for n in range(8)]
    shares = [run(prompts, "session", replicas=2).largest_share, run(prompts, "session", replicas=64).largest_share]
    assert shares[0] in {0.5, 1.0}
    assert shares[1] == 0.5


def queued(requests: list[TraceRequest], replicas: int = 1, **settings: float) -> SimulationResult:
    fleet = FleetShape(replicas, 100, prefill_rate=10.0, decode_seconds=0.0)
    return simulate(Workload.of(requests, SIZE), fleet, "expected_ttft", queue=QueueSettings(**settings))


def test_the_queue_changes_nothing_for_one_replica() -> None:
    prompts = [request(number * 0.5, f"{chr(65 + number)}bX") for number in range(20)]
    found = queued(prompts)
    assert found.ttft_seconds == run(prompts, "expected_ttft").ttft_seconds
    assert found.rejected == 0


def queued_behind(tokens: int) -> SimulationResult:
    """ABZ and uvw wait for a replica that computes the beginning of ABZ, and for one that is free at 18.1 s."""
    long = request(0, "ABCDEFGHIJKLMNOPQRSTUVWXYZ12345", tokens=tokens)
    other = request(0, "cdefghijklmnopqrstx")
    return queued([long, other, request(1, "ABZ"), request(1, "uvw", tokens=21)], replicas=2, busy_seconds=1)


def test_a_queued_request_goes_where_capacity_is_first() -> None:
    # At 18.1 s the first replica still has 12 s of work: more than the 2 s for the beginning count (three times).
    found = queued_behind(301)
    assert found.hit_blocks == 0
    assert found.ttft_seconds[:2] == (pytest.approx(18.1 - 1 + 2.1), pytest.approx(30.1))


def test_a_queued_request_waits_for_its_prefix_if_most_of_the_work_before_it_is_done() -> None:
    # At 18.1 s the first replica has 2 s of work left, though it has computed only one prompt of 20.1 s.
    found = queued_behind(201)
    assert found.hit_blocks == 2
    assert found.ttft_seconds[:2] == (pytest.approx(20.1 - 1 + 0.1), pytest.approx(20.1))


@pytest.mark.parametrize("letter", "mnopqrst")
def test_of_two_replicas_that_compute_the_one_that_is_done_sooner_is_chosen(letter: str) -> None:
    # In full, both have a prompt of 6.1 s; at 6 s one of them has 0.1 s of it left, the other one 5.1 s.
    found = run([request(0, "abcdefX"), request(5, "ghijklX"), request(6, f"{letter}X")], "expected_ttft", replicas=2)
    # Behind the other one, its first token would be the last of all, 6.2 s after it arrived.
    assert found.backlog_seconds == pytest.approx(5.1)


def test_a_full_queue_rejects() -> None:
    found = queued([request(0, f"{chr(65 + number)}bcX") for number in range(10)], max_requests=3)
    # One is sent, and three wait.
    assert (found.requests, found.rejected) == (4, 6)


def test_a_request_does_not_wait_longer_than_allowed() -> None:
    # 3.1 s each, the second one waits 3.1 s and the third one 6.2 s.
    found = queued([request(0, f"{chr(65 + number)}bcX") for number in range(4)], max_seconds=5)
    assert (found.requests, found.rejected) == (2, 2)


def test_weights_of_the_configuration_apply() -> None:
    workload = Workload.of(
        [request(0, "abcdX"), request(100, "abcd" + "efghijklmnopqrstuvw"), request(100, "abcdZ")], SIZE
    )
    fleet = FleetShape(2, 100, prefill_rate=10.0)
    found = simulate(workload, fleet, "expected_ttft", settings=PlacementSettings(miss_weight=1000.0))
    assert found.hit_blocks == 8


def test_the_ladder_has_the_limits_first() -> None:
    prompts = [request(float(number), f"ab{chr(99 + number % 7)}X") for number in range(40)]
    rungs = ladder(Workload.of(prompts, SIZE), FleetShape(2, 6, prefill_rate=1000.0))
    assert [rung.policy for rung in rungs] == [*LIMITS, *POLICIES]
    assert rungs[0].hit_blocks > max(rung.hit_blocks for rung in rungs[1:])


def test_a_faster_trace_has_the_same_requests() -> None:
    workload = Workload.of([request(0, "ab"), request(10, "cd")], SIZE)
    assert (workload.faster(2).seconds, Workload.of([request(0, "ab"), request(10, "cd")], SIZE, speed=2).seconds) == (
        5.0,
        5.0,
    )


def test_no_requests() -> None:
    found = run([])
    assert (found.requests, found.block_share, found.token_share, found.busy_share) == (0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "value"), [("replicas", 0), ("blocks", 0), ("prefill_rate", 0.0), ("slots", -1), ("decode_seconds", -1.0)]
)
def test_impossible_shapes(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        FleetShape(**{"replicas": 1, "blocks": 1, name: value})
