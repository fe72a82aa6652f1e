import io
import random
import statistics

import pytest
from rich.console import Console

from gateway.demo import demo_view as view
from gateway.demo.applications import APPLICATIONS
from gateway.demo.demo_client import StreamedAnswer
from gateway.demo.demo_view import as_json, gains
from gateway.demo.score import Score, Times

NAMES = [application.name for application in APPLICATIONS]


def score(*answers, name="RAG"):
    """A score of answers given as (seconds to the first token, prompt tokens, cached tokens)."""
    made = Score.of(NAMES)
    for seconds, prompt, cached in answers:
        made.add(name, StreamedAnswer({}, "replica-1", seconds, prompt, cached))
    return made


def shown(renderable):
    console = Console(width=100, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_quantiles_are_within_a_percent(share):
    rng = random.Random(1)
    times, values = Times(), [rng.lognormvariate(-2, 1.5) for _ in range(2001)]
    for value in values:
        times.add(value)
    exact = statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]
    assert times.quantile(share) == pytest.approx(exact, rel=0.01)


def test_a_time_of_zero_can_be_counted():
    times = Times()
    times.add(0.0)
    assert times.quantile(0.5) == pytest.approx(0, abs=1e-5)


def test_hit_rate_weighs_answers_by_their_tokens():
    made = score((0.1, 1000, 900), (0.4, 3000, 0))
    assert as_json(made) == {
        "requests": 2,
        "errors": 0,
        "hit_rate": 0.225,
        "ttft_ms": {"p50": pytest.approx(100, 0.01), "p90": pytest.approx(400, 0.01), "p99": pytest.approx(400, 0.01)},
        "saved_prefill_tokens": 900,
    }
    assert made.by_application["RAG"].hit_rate == 0.225
    assert made.by_application["briefing"].answers == 0


def test_half_the_prompt_cached_is_warm():
    made = score((0.1, 1000, 500), (0.4, 1000, 499))
    assert made.warm.quantile(1) == pytest.approx(0.1, rel=0.01)
    assert made.cold.quantile(1) == pytest.approx(0.4, rel=0.01)


def test_errors_are_requests_too_and_the_first_is_kept():
    made = score((0.1, 1000, 500))
    made.add_error("status 500")
    made.add_error("status 429")
    assert (as_json(made)["requests"], as_json(made)["errors"]) == (3, 2)
    page = shown(view.summary(made, score((0.1, 10, 0)), 3.0))
    assert "first error of the gateway side: status 500" in page
    assert "first error of the round robin side" not in page


def test_the_gain_is_reported_as_it_is_also_when_it_is_a_loss():
    better, worse = score((0.1, 1000, 900)), score((0.25, 1000, 400))
    p50, _, hits, prefill = gains(better, worse)
    assert p50.startswith("2.5x lower p50 TTFT: 1")
    assert hits == "hit rate 90% instead of 40%"
    assert prefill == "6.0x lower prefill per request: 100 prompt tokens computed instead of 600"
    p50, *_, prefill = gains(worse, better)
    assert p50.startswith("2.5x higher p50 TTFT: ")
    assert prefill.startswith("6.0x higher prefill per request")
    assert next(gains(better, better)).startswith("about the same p50 TTFT")
    assert list(gains(Score.of(NAMES), better)) == []


def test_the_page_can_be_drawn_before_anything_was_measured():
    page = shown(view.live(Score.of(NAMES), Score.of(NAMES), 0.0, 30.0))
    assert "of 30 s" in page
    for name in NAMES:
        assert name in page
    assert len(page.splitlines()) <= 24
