"""How much of the prompts in flight is left to compute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing import PrefillsInFlight

RATE = 0.001
"""Seconds for a token."""


@pytest.fixture
def prefills():
    return PrefillsInFlight()


def test_oldest_prompt_counts_less_with_time_and_never_less_than_nothing(prefills):
    assert prefills.left(5.0, RATE) == 0
    first = prefills.add(1000, 10.0)
    assert [prefills.left(now, RATE) for now in (10.0, 10.25, 10.5, 11.0, 11.2)] == [1000, 750, 500, 0, 0]
    assert prefills.tokens == 1000
    prefills.done(first, 60.0)
    assert (prefills.tokens, prefills.left(60.0, RATE)) == (0, 0)


def test_prompts_behind_it_count_in_full_until_it_is_over(prefills):
    first = prefills.add(1000, 10.0)
    second = prefills.add(400, 10.5)
    assert prefills.left(10.5, RATE) == 900
    assert prefills.left(11.2, RATE) == 400
    prefills.done(first, 11.2)
    assert prefills.left(11.3, RATE) == 300
    prefills.done(second, 11.4)
    assert prefills.left(11.4, RATE) == 0


def test_late_prompt_counts_in_full_again_because_its_replica_may_hang(prefills):
    prefills.add(1000, 10.0)
    prefills.add(400, 10.0)
    assert [prefills.left(now, RATE) for now in (11.2, 11.3, 60.0)] == [400, 1400, 1400]


def test_prompt_that_is_over_before_older_ones_does_not_end_their_progress(prefills):
    prefills.add(1000, 10.0)
    second = prefills.add(400, 10.0)
    prefills.add(200, 10.0)
    prefills.done(second, 10.5)
    assert prefills.left(10.5, RATE) == 700


def test_clock_before_the_beginning_counts_in_full(prefills):
    prefills.add(1000, 10.0)
    assert prefills.left(9.0, RATE) == 1000


def test_an_idle_time_is_no_progress_of_the_next_prompt(prefills):
    prefills.done(prefills.add(1000, 10.0), 11.0)
    prefills.add(1000, 100.0)
    assert prefills.left(100.5, RATE) == 500


steps = st.tuples(st.sampled_from(["add", "done", "look"]), st.integers(0, 3000), st.floats(0, 2))


@given(order=st.lists(steps, max_size=40))
def test_what_is_left_lies_between_nothing_and_all_and_only_the_oldest_is_begun(order):
    prefills, sent, now = PrefillsInFlight(), [], 0.0
    for what, number, seconds in order:
        now += seconds
        if what == "add":
            sent.append((prefills.add(number, now), number))
        elif what == "done" and sent:
            prefills.done(sent.pop(number % len(sent))[0], now)
        total = sum(tokens for _, tokens in sent)
        assert prefills.tokens == total
        assert total - (sent[0][1] if sent else 0) <= prefills.left(now, RATE) <= total
