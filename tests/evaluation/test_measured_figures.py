"""Figures and comparisons of measured requests, and the sentences about them."""

import random

import pytest

from gateway.commands.measure_report import as_json, as_markdown, as_text, sentences
from gateway.core.outcome import Usage
from gateway.evaluation.measurement.measure_plan import MeasuredVariant, PlannedRequest, Temperature
from gateway.evaluation.measurement.measure_result import in_time, measure_result
from gateway.evaluation.measurement.measure_run import MeasuredRequest, RunRecord
from gateway.evaluation.measurement.stream_timing import StreamTiming

COLD, WARM = Temperature.COLD, Temperature.WARM
ONE = MeasuredVariant("", "http://a", "demo")
TWO = [MeasuredVariant("a", "http://a", "demo"), MeasuredVariant("b", "http://b", "demo")]
SETTINGS = {"load": "1 at a time", "prompts": "built in"}


def answered(number, temperature, prompt, ttft, *, variant=0, cached=0, tokens=1000, out=16, error="", waited=0.0):
    """A request that was due at 100 s and sent ``waited`` seconds later."""
    timing = StreamTiming(
        sent_at=100 + waited,
        first_token_at=None if error else 100 + ttft,
        ended_at=100 + ttft + 0.5,
        usage=None if error or (cached is None and tokens is None) else Usage(tokens, out, cached),
        status=500 if error else 200,
        error=error,
    )
    return MeasuredRequest(PlannedRequest(number, variant, temperature, prompt, ""), 100.0, timing)


def paired(count, cold_seconds=0.1, warm_seconds=0.01, *, variant=0, seed=1, warm_cached=960, spread=0.001):
    """Cold and warm requests of as many prompts, with a spread that is the same for both."""
    noise = random.Random(seed)
    found = []
    for prompt in range(count):
        own = noise.uniform(0, spread)
        found.append(answered(2 * prompt, COLD, prompt, cold_seconds + own, variant=variant))
        found.append(answered(2 * prompt + 1, WARM, prompt, warm_seconds + own, variant=variant, cached=warm_cached))
    return found


def result(requests, variants=(ONE,), **options):
    record = RunRecord(requests=list(requests), seconds=1.0, **options.pop("record", {}))
    return measure_result(list(variants), record, is_paired=True, **options)


def test_cold_and_warm_of_the_same_prompts():
    found = result(paired(30))
    cold, warm = found.groups
    assert (cold.name, warm.name) == ("cold", "warm")
    assert cold.ttft_seconds[0.5].value == pytest.approx(0.1005, abs=0.0005)
    assert warm.total_seconds[0.5].value == pytest.approx(0.5105, abs=0.0005)
    assert (cold.hit_rate.value, warm.hit_rate.value) == (0.0, 0.96)
    assert (cold.prefill_tokens, warm.prefill_tokens) == (30_000, 1200)
    (compared,) = found.comparisons
    difference = compared.ttft[0]
    assert difference.seconds.value == pytest.approx(-0.09)
    assert difference.share == pytest.approx(-0.895, abs=0.01)
    assert not difference.seconds.is_noise
    assert compared.hit_rate.value == pytest.approx(0.96)
    assert sentences(found)[0].startswith("TTFT p50: warm is 90.0 ms sooner than cold (")


def test_gpu_seconds_are_computed_tokens_times_what_each_adds_to_ttft():
    found = result(paired(30), gpus=2.0)
    per_token = 0.09 / 960
    assert found.seconds_per_token[0].value == pytest.approx(per_token, rel=0.01)
    cold, warm = found.groups
    assert cold.gpu_seconds.value == pytest.approx(30_000 * per_token * 2, rel=0.01)
    assert warm.gpu_seconds.value == pytest.approx(1200 * per_token * 2, rel=0.01)
    given = result(paired(30), prefill_rate=10_000.0)
    assert given.groups[0].gpu_seconds.value == pytest.approx(3.0)


def test_gpu_seconds_are_not_known_where_ttft_does_not_grow_with_the_tokens():
    found = result(paired(30, 0.05, 0.05, spread=0.02))
    assert [group.gpu_seconds for group in found.groups] == [None, None]
    assert "GPU seconds of prefill" in as_text(found, SETTINGS)


def test_equal_groups_are_noise_and_it_is_said_how_many_requests_are_missing():
    first, second = paired(12, seed=1, spread=0.05), paired(12, variant=1, seed=2, spread=0.05)
    found = result([*first, *second], TWO)
    names = [(each.first, each.second) for each in found.comparisons]
    assert names == [("a cold", "a warm"), ("b cold", "b warm"), ("a cold", "b cold"), ("a warm", "b warm")]
    between = found.comparisons[2].ttft[0]
    assert between.seconds.is_noise
    assert between.needed > 12
    said = [sentence for sentence in sentences(found) if "a cold and b cold is noise" in sentence]
    assert f"about {between.needed - 12:,} more requests of each" in said[0]


def test_rate_of_errors_and_their_first_messages_are_shown():
    failing = [
        answered(2 * prompt, COLD, prompt, 0.1, error=f"status {500 + prompt % 4}" if prompt % 2 else "")
        for prompt in range(20)
    ]
    warm = [answered(2 * prompt + 1, WARM, prompt, 0.01, cached=900) for prompt in range(0, 20, 2)]
    found = result([*failing, *warm], record={"left_out": 10})
    cold = found.groups[0]
    assert (cold.requests, cold.error_rate.value, found.failed) == (20, 0.5, 10)
    assert cold.errors == [("status 501", 5), ("status 503", 5)]
    assert found.comparisons[0].ttft[0].seconds.samples == 10
    assert found.comparisons[0].error_rate.value == -0.5
    text = as_text(found, SETTINGS)
    assert "cold: 5 failed: status 501" in text
    assert "10 warm requests were not sent" in text
    assert "50.0 %" in text


def test_everything_failed_is_a_result():
    found = result([answered(prompt, COLD, prompt, 0.0, error="no connection: refused") for prompt in range(5)])
    assert found.failed == 5
    assert as_json(found, SETTINGS)["groups"][0]["ttft_seconds"]["p50"] is None
    assert "5 (5)" in as_text(found, SETTINGS)
    assert as_markdown(found, SETTINGS)


def test_latency_counts_from_when_a_request_was_due():
    found = result([answered(prompt, COLD, prompt, 0.3, waited=0.2) for prompt in range(10)])
    assert found.groups[0].ttft_seconds[0.5].value == pytest.approx(0.3)
    assert found.groups[0].late_seconds == pytest.approx(0.2)
    assert any(note.startswith("Requests were sent up to 200 ms (p99) after they were due") for note in found.notes)


@pytest.mark.parametrize(
    ("requests", "options", "note"),
    [
        (paired(10, warm_cached=0), {}, "warm: only 0% of the prompt tokens of repeated prompts came from a cache"),
        ([answered(n, COLD, n, 0.1, cached=500) for n in range(9)], {}, "cold: 50% of the prompt tokens came from a"),
        ([answered(n, COLD, n, 0.1, cached=None) for n in range(9)], {}, "--enable-prompt-tokens-details"),
        (
            [answered(n, (COLD, WARM)[n % 2], n // 2, 0.1, out=10 + n % 2) for n in range(9)],
            {},
            "Answers are not equally long (10.0 to 11.0",
        ),
        (
            [answered(n, (COLD, WARM)[n % 2], n // 2, 0.1, tokens=1000 + 50 * (n % 2)) for n in range(9)],
            {},
            "Prompts have 1,000 to 1,050 tokens",
        ),
        (paired(9), {"loop_late_seconds": [0.03] * 9}, "The client itself was late by up to 30.0 ms"),
        (paired(9), {"unsent": 4}, "The time was over before 4 more requests could be sent."),
        (paired(9), {}, "p95 needs 72, p99 needs 368 requests in each group that succeed (--requests), and the"),
    ],
)
def test_what_limits_the_figures_is_said(requests, options, note):
    found = result(requests, record=options)
    assert [each for each in found.notes if note in each]
    if "few" not in note:
        text = as_text(found, SETTINGS)
        assert note in text


def test_good_measurement_has_nothing_to_note():
    assert result(paired(400)).notes == []


def test_unknown_values_are_null_in_json_and_question_marks_in_the_tables():
    found = result([answered(n, COLD, n, 0.1, cached=None) for n in range(9)])
    (group,) = as_json(found, SETTINGS)["groups"]
    assert (group["hit_rate"], group["prefill_tokens"], group["gpu_seconds"]) == (None, None, None)
    assert group["ttft_seconds"]["p99"] == {"value": pytest.approx(0.1), "low": pytest.approx(0.1), "high": None}
    assert "| hit rate | ? |" in as_markdown(found, SETTINGS)
    assert "| TTFT p99 | 100 ms (100 to ?) |" in as_markdown(found, SETTINGS)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0284, "28.4 ms"), (0.2, "200 ms"), (1.234, "1.23 s"), (-0.0005, "-0.5 ms"), (-2.0, "-2.00 s")],
)
def test_times_have_a_fitting_unit(seconds, shown):
    assert in_time(seconds) == shown
