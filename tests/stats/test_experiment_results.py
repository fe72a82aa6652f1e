"""The comparison of an experiment's groups: what was planted lies within the intervals, and noise is called noise."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest

from gateway.core.experiment_group import ExperimentGroup, ExperimentSample
from gateway.stats.cluster_bootstrap import Draws, interval
from gateway.stats.experiment_results import MIN_SESSIONS, ExperimentResults
from gateway.stats.prices import ComputePrice

SETTINGS = {"cold_share": 0.2, "by": "session", "held_out": "round_robin", "since": 0.0}
PRICE = ComputePrice(3.6, "USD")
PER_TOKEN = 0.001


def sample(group: ExperimentGroup, session: int, **changed: object) -> ExperimentSample:
    values = {
        "at": 0.0,
        "model": "m",
        "group": group,
        "session": session,
        "failed": False,
        "complete": True,
        "prompt_tokens": 1000,
        "cached_tokens": 0,
        "confirmed": True,
        "ttft_seconds": 0.5,
        "seconds": 1.0,
        "prefill_seconds_per_token": PER_TOKEN,
    }
    return ExperimentSample(**values | changed)


def traffic(seed: int, *, gain: float, sessions: int = 100, share: float = 0.3) -> Iterator[ExperimentSample]:
    """Sessions whose requests resemble each other; ``gain`` seconds of TTFT and tokens by the thousand are planted."""
    chance = random.Random(seed)
    for session in range(sessions):
        group = ExperimentGroup.HELD_OUT if session < share * sessions else ExperimentGroup.GATEWAY
        helped = group is ExperimentGroup.GATEWAY
        own = chance.gauss(0, 0.1)
        for _ in range(chance.randint(1, 8)):
            ttft = 2 + own + chance.gauss(0, 0.1) - gain * helped
            cached = round(1000 * (0.2 + gain / 2 * helped + own / 4))
            yield sample(group, session, ttft_seconds=ttft, seconds=ttft + 1, cached_tokens=cached)


def results(samples: Iterator[ExperimentSample], gpus: float = 1) -> ExperimentResults:
    found = ExperimentResults(SETTINGS)
    for each in samples:
        found.add(each, gpus)
    return found


def compared(samples: Iterator[ExperimentSample], gpus: float = 1) -> dict[str, Any]:
    """The answer as the admin API gives it."""
    return orjson.loads(orjson.dumps(results(samples, gpus).answer({}, PRICE)))


def difference(seed: int, name: str, gain: float) -> dict[str, float | str]:
    return compared(traffic(seed, gain=gain))["difference"][name]


RUNS = 120
FEWEST_COVERED = 108
"""Of 120 intervals at 95 %, fewer than 108 are right once in 90 times; the seeds are fixed."""


def test_the_intervals_cover_what_was_planted():
    planted = {"ttft_mean": 0.5, "ttft_p50": 0.5, "ttft_p95": 0.5, "gpu_seconds": 0.25, "hit_rate": -0.25}
    runs = [compared(traffic(seed, gain=0.5))["difference"] for seed in range(RUNS)]

    for name, value in planted.items():
        found = [run[name] for run in runs]
        assert sum(each["low"] <= value <= each["high"] for each in found) >= FEWEST_COVERED, name
        assert {each["verdict"] for each in found} == {"differs"}, name
        # Intervals that cover everything say nothing.
        assert max(each["high"] - each["low"] for each in found) < abs(value), name


def test_equal_groups_are_seldom_called_different():
    verdicts = [difference(seed, "ttft_p50", gain=0.0)["verdict"] for seed in range(100)]

    assert verdicts.count("noise") >= 92


def test_requests_of_one_session_count_for_less_than_independent_ones():
    values = [float(session) for session in range(40) for _ in range(25)]
    together = [session for session in range(40) for _ in range(25)]
    by_session = interval(Draws(together, 300).mean(np.array(values)), 40)
    by_request = interval(Draws(range(1000), 300).mean(np.array(values)), 1000)

    assert by_session.value == by_request.value == 19.5
    assert by_session.high - by_session.low > 4 * (by_request.high - by_request.low)


def test_too_few_sessions_are_not_compared():
    shown = compared(traffic(1, gain=0.5, sessions=MIN_SESSIONS))

    assert shown["enough"] is False
    assert shown["needed_sessions"] == MIN_SESSIONS - 6
    assert shown["verdict"].startswith("Too few sessions to compare: 6 in the smaller group, 20 are needed.")
    assert set(shown["difference"].values()) == {None}


def test_failed_requests_count_as_errors_and_their_times_do_not_count():
    kept = [sample(ExperimentGroup.GATEWAY, session) for session in range(30)]
    failed = [
        sample(ExperimentGroup.GATEWAY, session, failed=True, complete=False, seconds=600.0, ttft_seconds=None)
        for session in range(30, 40)
    ]

    group = compared(iter(kept + failed))["groups"]["gateway"]

    assert (group["requests"], group["failed"]) == (40, 10)
    assert group["error_share"]["value"] == 0.25
    assert group["total_p99"]["value"] == 1.0
    assert group["prompt_tokens"] == 30_000


def test_money_and_gpus():
    shown = compared(traffic(3, gain=0.5), gpus=2)

    saved, difference = shown["saved_gpu_seconds"]["value"], shown["difference"]["gpu_seconds"]["value"]
    assert saved == pytest.approx(difference * shown["groups"]["gateway"]["requests"], rel=1e-3)
    assert shown["saved_cost"]["value"] == pytest.approx(saved / 1000, rel=1e-3)  # 3.6 USD for 3,600 seconds
    assert difference == pytest.approx(0.5, abs=0.15)  # 250 tokens, a millisecond each, two GPUs


def test_memory_is_bounded_and_sessions_stay_whole():
    found = ExperimentResults(SETTINGS)
    for number in range(30_000):
        found.add(sample(ExperimentGroup.GATEWAY, number // 3), 1)

    group = found.answer({}, PRICE)["groups"]["gateway"]

    assert group["requests"] == 30_000
    assert 4_000 <= group["sampled_requests"] <= 10_000
    assert group["sampled_requests"] == 3 * group["sampled_sessions"]


def test_other_settings_begin_a_new_experiment():
    found = results(traffic(1, gain=0.5))

    found.configure(SETTINGS | {"since": 4.0})
    assert found.answer({}, PRICE)["groups"]["gateway"]["requests"] > 0
    found.configure(SETTINGS | {"cold_share": 0.1, "since": 5.0})

    assert found.answer({}, PRICE)["groups"]["gateway"]["requests"] == 0
    assert found.answer({}, PRICE)["since"] == 5.0
    found.add(sample(ExperimentGroup.GATEWAY, 1, at=4.9), 1)
    found.add(sample(ExperimentGroup.GATEWAY, 1, at=5.1), 1)
    assert found.answer({}, PRICE)["groups"]["gateway"]["requests"] == 1


def test_without_an_experiment_the_answer_names_the_setting():
    shown = ExperimentResults({}).answer({}, PRICE)

    assert shown["running"] is False
    assert "experiment.cold_share" in shown["verdict"]


def test_models_are_not_mixed():
    found = results(traffic(1, gain=0.5))
    found.add(sample(ExperimentGroup.GATEWAY, 1, model="other"), 1)

    assert found.answer({}, PRICE)["models"] == ["m", "other"]
    assert found.answer({}, PRICE)["model"] == "m"
    assert found.answer({"model": "other"}, PRICE)["groups"]["gateway"]["requests"] == 1


def test_one_busy_session_displaces_no_other_one():
    found = ExperimentResults(SETTINGS)
    for number in range(5000):
        found.add(sample(ExperimentGroup.GATEWAY, number % 1000), 1)
    for _ in range(20_000):
        found.add(sample(ExperimentGroup.GATEWAY, 1_000_000), 1)

    group = found.answer({}, PRICE)["groups"]["gateway"]

    assert group["requests"] == 25_000
    assert group["sampled_sessions"] == 1001


def test_without_failures_the_share_of_errors_is_still_uncertain():
    shown = compared(sample(group, session) for group in ExperimentGroup for session in range(50))

    assert shown["groups"]["gateway"]["error_share"] == {"value": 0.0, "low": 0.0, "high": 0.071348}
    assert shown["difference"]["error_share"]["low"] < 0 < shown["difference"]["error_share"]["high"]
    assert shown["difference"]["error_share"]["verdict"] == "noise"


def test_quantiles_without_enough_values_have_no_interval():
    group = compared(sample(group, session) for group in ExperimentGroup for session in range(50))["groups"]["gateway"]

    assert group["total_p50"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert group["total_p95"] == group["total_p99"] == {"value": 1.0, "low": None, "high": None}
