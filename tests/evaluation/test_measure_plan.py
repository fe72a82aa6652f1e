"""What a measurement sends, and in which order."""

import itertools
import statistics
from collections import Counter

import pytest

from gateway.evaluation.measurement.measure_plan import (
    WINDOW,
    PlannedRequest,
    ReadyRequests,
    Temperature,
    pairs,
    poisson,
    rule_pass,
    trace_passes,
)

COLD, WARM = Temperature.COLD, Temperature.WARM


def test_every_prompt_is_sent_cold_and_then_warm_in_every_variant():
    (planned,) = pairs(50, 2, 1, "n")
    sent = {}
    for at, each in enumerate(planned.requests):
        assert each.number == at
        sent[each.variant, each.prompt, each.temperature] = each
    assert len(sent) == len(planned.requests) == 50 * 2 * 2
    for variant, prompt in itertools.product(range(2), range(50)):
        cold, warm = sent[variant, prompt, COLD], sent[variant, prompt, WARM]
        assert (cold.after, warm.after) == (None, cold.number)
        assert cold.mark == warm.mark
        assert 0 < warm.number - cold.number < WINDOW * 2 * 2
    assert len({each.mark for each in planned.requests}) == 50 * 2


def test_order_depends_on_the_seed_alone_and_no_variant_is_always_first():
    (one,), (same,), (other,) = (pairs(100, 2, seed, nonce) for seed, nonce in ((1, "a"), (1, "b"), (2, "a")))

    def order(planned):
        return [(each.variant, each.prompt, each.temperature) for each in planned.requests]

    assert order(one) == order(same) != order(other)
    first = Counter()
    for prompt in range(100):
        colds = [each for each in one.requests if each.prompt == prompt and each.temperature is COLD]
        first[min(colds, key=lambda each: each.number).variant] += 1
    assert 30 < first[0] < 70


def test_marks_of_two_runs_differ_with_the_same_seed():
    (one,), (other,) = pairs(5, 1, 1, "a"), pairs(5, 1, 1, "b")
    assert not {each.mark for each in one.requests} & {each.mark for each in other.requests}


def test_passes_of_a_trace_keep_its_order_and_only_the_warm_ones_share_a_beginning():
    passes = trace_passes(6, 2, 3, "n", [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert {(each.requests[0].variant, each.requests[0].temperature) for each in passes} == {
        (variant, temperature) for variant in range(2) for temperature in Temperature
    }
    shared = set()
    for each in passes:
        assert [request.prompt for request in each.requests] == list(range(6))
        marks = {request.mark for request in each.requests}
        assert len(marks) == (6 if each.requests[0].temperature is COLD else 1)
        assert not marks & shared
        shared |= marks
    numbers = [request.number for each in passes for request in each.requests]
    assert numbers == list(range(24))
    orders = {
        tuple((each.requests[0].variant, each.requests[0].temperature) for each in trace_passes(1, 2, seed, "n"))
        for seed in range(20)
    }
    assert len(orders) > 5


def test_rules_are_compared_prompt_by_prompt_in_changing_order():
    (planned,) = rule_pass(40, 2, 5, "n")
    couples = [planned.requests[at : at + 2] for at in range(0, 80, 2)]
    assert all({each.variant for each in couple} == {0, 1} for couple in couples)
    assert [couple[0].prompt for couple in couples] == list(range(40))
    assert 10 < sum(couple[0].variant for couple in couples) < 30
    assert len({each.mark for each in planned.requests}) == 2


def test_arrivals_are_poisson():
    times = list(itertools.islice(poisson(5.0, 1), 4000))
    gaps = [b - a for a, b in itertools.pairwise([0.0, *times])]
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.1)  # as of an exponential distribution
    assert times[:3] == list(itertools.islice(poisson(5.0, 1), 3))
    assert times[:3] != list(itertools.islice(poisson(5.0, 2), 3))


def request(number, after=None):
    return PlannedRequest(number, 0, None, number, "", after)


def test_request_that_waits_for_an_answer_is_overtaken():
    first, second, third = request(0), request(1, after=0), request(2)
    ready = ReadyRequests([first, second, third])
    assert ready.take() is first
    assert ready.take() is third
    assert ready.take() is None
    assert len(ready) == 1
    ready.answered(first, succeeded=True)
    assert ready.take() is second
    assert (len(ready), ready.left_out) == (0, 0)


def test_request_whose_prompt_failed_is_left_out():
    ready = ReadyRequests([request(0), request(1, after=0), request(2)])
    first = ready.take()
    ready.answered(first, succeeded=False)
    assert ready.take().number == 2
    assert ready.take() is None
    assert (len(ready), ready.left_out) == (0, 1)
