import random

import pytest

from gateway.placement import LearnedRates
from gateway.values.load import Rates

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
    assert learned.rates.prefill_seconds_per_token > 0
    assert learned.rates.base_seconds >= 0
    total = learned.rates.base_seconds + 1000 * learned.rates.prefill_seconds_per_token
    assert total == pytest.approx(0.45, rel=0.15)


def test_one_absurd_answer_at_the_start_does_not_decide():
    learned = LearnedRates(START)
    learned.observe_first_token(10, 30.0)
    assert learned.rates.prefill_seconds_per_token > 0
    assert learned.rates.base_seconds >= 0


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


def test_noise_does_not_tell_twins_apart_but_a_slow_machine_is_told_apart():
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
def test_slow_engines_with_odd_answers_are_not_told_apart_by_them(seed):
    rng = random.Random(seed)
    pool = LearnedRates(START)
    twins = [LearnedRates(START, pool) for _ in range(2)]
    for _ in range(60):
        for learned in twins:
            tokens = rng.randrange(30, 460)
            learned.observe_first_token(tokens, (0.15 + tokens / 220) * rng.uniform(0.7, 1.3))
    assert twins[0].rates.base_seconds == twins[1].rates.base_seconds
    assert twins[0].rates.prefill_seconds_per_token == twins[1].rates.prefill_seconds_per_token
