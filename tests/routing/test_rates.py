import math
import random

import pytest
from levels import slow_except

from gateway.core.replica_state import Rates
from gateway.routing import LearnedRates

START = Rates(0.02, 1 / 4000, 0.02, 2.0)


def test_the_line_is_found_from_noisy_answers():
    rng = random.Random(3)
    learned = LearnedRates(START)
    for _ in range(300):
        tokens = rng.randrange(0, 4000)
        learned.observe_first_token(tokens, (0.05 + tokens / 1500) * rng.uniform(0.9, 1.1))
    assert 1 / learned.rates.prefill_seconds_per_token == pytest.approx(1500, rel=0.1)
    assert learned.rates.base_seconds == pytest.approx(0.05, abs=0.04)


def test_a_machine_that_slows_down_is_noticed_within_some_dozen_answers():
    learned = LearnedRates(START)
    for speed in (8000, 1000):
        for n in range(120):
            learned.observe_first_token(500 + n * 37 % 2000, 0.02 + (500 + n * 37 % 2000) / speed)
    assert 1 / learned.rates.prefill_seconds_per_token == pytest.approx(1000, rel=0.3)


def test_prompts_of_one_length_do_not_turn_the_line_over():
    learned = LearnedRates(START)
    for n in range(200):
        learned.observe_first_token(1000, 0.4 + 0.1 * (n % 2))
    # The line of the start values, scaled: 0.27 s for such a prompt have become 0.45 s.
    assert learned.rates.prefill_seconds_per_token == pytest.approx(0.45 / 0.27 / 4000, rel=0.15)
    total = learned.rates.base_seconds + 1000 * learned.rates.prefill_seconds_per_token
    assert total == pytest.approx(0.45, rel=0.15)


def truth(rng):
    """How an engine answers: its base, its tokens a second, and the prompts that it gets."""
    return (
        rng.choice([0.01, 0.03, 0.1]),
        rng.choice([1000, 4000, 15_000]),
        rng.choice([(100, 3000), (400, 6000), (900, 1100)]),
    )


def answer(learned, rng, engine, factor=1.0):
    base, speed, (fewest, most) = engine
    tokens = rng.randrange(fewest, most)
    learned.observe_first_token(tokens, factor * (base + tokens / speed) * rng.uniform(0.85, 1.15))


def off(learned, engine, factor=1.0):
    """By which factor the cost of usual prompts is wrong."""
    base, speed, (fewest, most) = engine
    worst = 1.0
    for tokens in ((fewest + most) // 2, most):
        rates = learned.rates
        ratio = (rates.base_seconds + tokens * rates.prefill_seconds_per_token) / (factor * (base + tokens / speed))
        worst = max(worst, ratio, 1 / ratio)
    return worst


@pytest.mark.parametrize("seed", slow_except(range(60), range(8)))
@pytest.mark.parametrize("tokens", [10, 1000, 8000])
@pytest.mark.parametrize("before", [0, 1, 2, 3, 6, 12, 40, 150])
def test_one_absurd_answer_is_forgotten_after_five_normal_ones(seed, tokens, before):
    rng = random.Random(seed)
    engine = truth(rng)
    pool = LearnedRates(START)
    struck, twin = LearnedRates(START, pool), LearnedRates(START, pool)
    for _ in range(before):
        answer(struck, rng, engine)
    struck.observe_first_token(tokens, rng.choice([60.0, 500.0, 1e-5]))
    for _ in range(5):
        answer(struck, rng, engine)
    assert max(off(learned, engine) for learned in (struck, twin, pool)) < 1.5


@pytest.mark.parametrize("seed", slow_except(range(40), range(8)))
def test_absurd_answers_now_and_then_do_not_count(seed):
    rng = random.Random(seed)
    engine = truth(rng)
    learned = LearnedRates(START)
    for number in range(300):
        if rng.random() < 0.05:
            learned.observe_first_token(rng.choice([10, 1000]), 30.0)
        else:
            answer(learned, rng, engine)
        assert number < 20 or off(learned, engine) < 1.5


@pytest.mark.parametrize("seed", slow_except(range(40), range(8)))
@pytest.mark.parametrize("factor", [3.0, 1 / 3])
@pytest.mark.parametrize("alone", [True, False])
def test_replicas_that_change_their_speed_for_good_are_believed_after_some_dozen_answers(seed, factor, alone):
    rng = random.Random(seed)
    engine = truth(rng)
    pool = LearnedRates(START)
    learned, *others = [LearnedRates(START, pool) for _ in range(4)]
    for _ in range(100):
        for replica in (learned, *others):
            answer(replica, rng, engine)
    for _ in range(30):
        answer(learned, rng, engine, factor)
        for other in others:
            answer(other, rng, engine, 1.0 if alone else factor)
    assert off(learned, engine, factor) < 1.3
    assert max(off(other, engine, 1.0 if alone else factor) for other in others) < 1.5


@pytest.mark.parametrize("seed", range(20))
def test_prompts_too_short_to_measure_do_not_change_the_prefill_rate(seed):
    rng = random.Random(seed)
    learned = LearnedRates(START)
    for _ in range(50):
        learned.observe_first_token(rng.randrange(64), rng.uniform(0.1, 0.2))
    assert learned.rates.prefill_seconds_per_token == START.prefill_seconds_per_token
    assert learned.rates.base_seconds == pytest.approx(0.15, rel=0.3)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0, 0.0])
def test_what_is_no_time_teaches_nothing(seconds):
    pool = LearnedRates(START)
    learned = LearnedRates(START, pool)
    learned.observe_first_token(500, seconds)
    learned.observe_first_token(-5, 1.0)
    learned.observe_decode(10, seconds)
    learned.observe_decode(0, 1.0)
    learned.observe_request(500, 1, seconds, streamed=False)
    assert learned.rates == pool.rates == START


@pytest.mark.parametrize(("tokens", "seconds"), [(-1, 0.2), (500, 0.0), (500, math.nan), (-1, math.nan)])
def test_first_tokens_that_cannot_be_teach_nothing_however_often(tokens, seconds):
    learned = LearnedRates(START)
    for _ in range(20):
        learned.observe_first_token(tokens, seconds)
    assert learned.rates == START


def test_prompts_that_are_all_cached_teach_the_base():
    learned = LearnedRates(START)
    for _ in range(20):
        learned.observe_first_token(0, 0.2)
    assert learned.rates.base_seconds == pytest.approx(0.2, rel=0.1)
    assert learned.rates.prefill_seconds_per_token == START.prefill_seconds_per_token


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("before", [0, 1, 5, 60])
def test_one_absurd_answer_changes_little_of_decode_and_request_times(seed, before):
    rng = random.Random(seed)
    learned = LearnedRates(START)

    def normal():
        learned.observe_decode(100, 2.0 * rng.uniform(0.8, 1.2))
        learned.observe_request(10, 101, 2.1 * rng.uniform(0.8, 1.2), streamed=True)

    for _ in range(before):
        normal()
    learned.observe_decode(3, 500.0)
    learned.observe_request(10, 4, 500.0, streamed=True)
    for _ in range(5):
        normal()
    assert learned.rates.decode_seconds_per_token == pytest.approx(0.02, rel=0.5)
    assert learned.rates.request_seconds == pytest.approx(2.1, rel=0.5)


def test_answers_that_were_mostly_decoded_teach_no_prefill():
    learned = LearnedRates(START)
    for _ in range(30):
        learned.observe_request(100, 30, 1.0, streamed=False)
    assert learned.rates.prefill_seconds_per_token == START.prefill_seconds_per_token


def test_answers_without_a_stream_teach_the_prefill_only_where_decoding_is_short():
    learned = LearnedRates(START)
    for tokens in range(500, 4000, 50):
        learned.observe_request(tokens, 5, 0.02 + tokens / 1000 + 4 * 0.02, streamed=False)
    assert 1 / learned.rates.prefill_seconds_per_token == pytest.approx(1000, rel=0.2)
    untouched = LearnedRates(START)
    untouched.observe_request(100, 800, 20.0, streamed=False)
    assert untouched.rates.prefill_seconds_per_token == START.prefill_seconds_per_token


def test_decode_and_request_times_follow():
    learned = LearnedRates(START)
    for _ in range(60):
        learned.observe_decode(100, 5.0)
        learned.observe_request(10, 101, 5.1, streamed=True)
    assert learned.rates.decode_seconds_per_token == pytest.approx(0.05, rel=0.05)
    assert learned.rates.request_seconds == pytest.approx(5.1, rel=0.05)


def test_replica_without_answers_believes_what_its_twins_taught():
    pool = LearnedRates(START)
    busy, idle = LearnedRates(START, pool), LearnedRates(START, pool)
    for tokens in range(100, 3000, 50):
        busy.observe_first_token(tokens, 0.01 + tokens / 12_000)
    assert idle.rates.prefill_seconds_per_token == busy.rates.prefill_seconds_per_token
    assert 1 / idle.rates.prefill_seconds_per_token == pytest.approx(12_000, rel=0.2)


def test_noise_does_not_distinguish_equal_machines_but_a_slow_machine_is_distinguished():
    rng = random.Random(5)
    pool = LearnedRates(START)
    replicas = {speed: LearnedRates(START, pool) for speed in (4000, 4300, 1500)}
    for _ in range(200):
        for speed, learned in replicas.items():
            tokens = rng.randrange(100, 3000)
            learned.observe_first_token(tokens, (0.02 + tokens / speed) * rng.uniform(0.8, 1.2))
    first, second, slow = (learned.rates.prefill_seconds_per_token for learned in replicas.values())
    assert first == second
    assert 1 / slow == pytest.approx(1500, rel=0.2)


def test_short_prompts_of_one_length_are_predicted_to_take_what_they_take():
    learned = LearnedRates(START)
    for _ in range(90):
        learned.observe_first_token(208, 0.027)
    assert learned.rates.base_seconds + 208 * learned.rates.prefill_seconds_per_token == pytest.approx(0.027, rel=0.1)


@pytest.mark.parametrize("seed", range(8))
def test_slow_engines_with_odd_answers_are_not_distinguished_by_them(seed):
    rng = random.Random(seed)
    pool = LearnedRates(START)
    both_rates = [LearnedRates(START, pool) for _ in range(2)]
    for _ in range(60):
        for learned in both_rates:
            tokens = rng.randrange(30, 460)
            learned.observe_first_token(tokens, (0.15 + tokens / 220) * rng.uniform(0.7, 1.3))
    assert both_rates[0].rates.base_seconds == both_rates[1].rates.base_seconds
    assert both_rates[0].rates.prefill_seconds_per_token == both_rates[1].rates.prefill_seconds_per_token


@pytest.mark.parametrize(
    ("prefill_tokens", "completion_tokens", "streamed"),
    [(4000, 1, True), (63, 1, False), (4000, 400, False)],
    ids=["streamed", "short prompt", "mostly decode"],
)
def test_a_response_that_does_not_show_its_prefill_does_not_teach_it(prefill_tokens, completion_tokens, streamed):
    learned = LearnedRates(START)
    for _ in range(20):
        learned.observe_request(prefill_tokens, completion_tokens, 8.0, streamed=streamed)
    assert learned.rates.prefill_seconds_per_token == START.prefill_seconds_per_token
    assert learned.rates.base_seconds == START.base_seconds
    assert learned.rates.request_seconds != START.request_seconds


def test_a_response_that_shows_its_prefill_teaches_it():
    learned = LearnedRates(START)
    for _ in range(20):
        learned.observe_request(4000, 1, 8.0, streamed=False)
    assert learned.rates.prefill_seconds_per_token > 4 * START.prefill_seconds_per_token


def test_what_the_twins_teach_counts_at_once_also_after_the_rates_were_read():
    pool = LearnedRates(START)
    one, twin = LearnedRates(START, pool), LearnedRates(START, pool)
    for _ in range(30):
        one.observe_first_token(1000, 0.5)
    before = one.rates
    assert one.rates is before  # worked out once for each observation
    twin.observe_first_token(1000, 0.55)
    assert one.rates != before
    fresh = LearnedRates(START, pool)
    fresh._rates, fresh._evidence = one._rates, one._evidence
    assert one.rates == fresh.rates
