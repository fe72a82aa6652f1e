"""What a window covers, when things leave it, and clocks that do as they please."""

import pytest
from written_requests import NOON, ask, explanation, finished

from gateway.core.reasons import RUNGS, Reason, Rung
from gateway.stats import Stats

DAY = 86400
LENGTHS = {"15m": 900, "1h": 3600, "24h": DAY, "7d": 7 * DAY}
STEPS = {"15m": 10, "1h": 10, "24h": 300, "7d": 3600}


def make(since: float = NOON - 30 * DAY) -> Stats:
    return Stats(since)


@pytest.mark.parametrize("window", LENGTHS)
def test_a_request_is_in_a_window_as_long_as_it_is_that_young(window):
    journal = make()
    journal.add(finished(at=NOON), explanation(), 1)
    length, step = LENGTHS[window], STEPS[window]
    assert ask(journal, "summary", NOON, window=window)["requests"] == 1
    assert ask(journal, "summary", NOON + length - step, window=window)["requests"] == 1
    assert ask(journal, "summary", NOON + length, window=window)["requests"] == 0


def test_the_window_is_a_quarter_of_an_hour_unless_another_is_asked_for():
    shown = ask(make(), "summary")
    assert shown["window"] == "15m"
    assert ask(make(), "reasons")["window"] == "15m"


def test_a_busy_week_leaves_nothing_behind():
    journal = make()
    for hour in range(24 * 9):
        journal.add(finished(f"r{hour}", NOON + 3600 * hour), explanation(), 1)
    now = NOON + 3600 * (24 * 9 - 1)
    found = {window: ask(journal, "summary", now, window=window)["requests"] for window in LENGTHS}
    assert found == {"15m": 1, "1h": 1, "24h": 24, "7d": 168}


def test_what_is_covered_is_shown_when_the_journal_is_younger_than_the_window():
    journal = make(since=NOON - 100)
    assert ask(journal, "summary", window="1h")["covered_seconds"] == 100
    assert ask(journal, "summary", window="1h")["since"] == NOON - 100
    assert ask(journal, "summary", NOON + DAY, window="1h")["covered_seconds"] == 3590
    assert ask(journal, "summary", NOON + DAY + 9, window="1h")["covered_seconds"] == 3599


@pytest.mark.parametrize(("window", "points"), [("15m", 90), ("1h", 360), ("24h", 288), ("7d", 168)])
def test_a_series_has_a_point_for_every_step_also_where_nothing_happened(window, points):
    journal = make()
    journal.add(finished(at=NOON), explanation(640, {Reason.EVICTED: 360}), 1)
    shown = ask(journal, "reasons", NOON, window=window)
    step = STEPS[window]
    assert shown["step_seconds"] == step
    starts = [bucket["start"] for bucket in shown["buckets"]]
    assert starts == [NOON - step * (points - 1 - number) for number in range(points)]
    assert shown["buckets"][-1]["reasons"] == {"evicted": 360}
    assert shown["buckets"][-1]["hits"] == 640
    assert shown["buckets"][0] == {"start": starts[0], "requests": 0, "prompt_tokens": 0, "hits": 0, "reasons": {}}


def test_a_series_begins_with_the_journal():
    shown = ask(make(since=NOON - 25), "reasons", NOON)
    assert [bucket["start"] for bucket in shown["buckets"]] == [NOON - 30, NOON - 20, NOON - 10, NOON]


def test_a_series_of_one_reason_has_only_that():
    journal = make()
    journal.add(finished(), explanation(0, {Reason.EVICTED: 360, Reason.NEW_CONTENT: 40}), 1)
    shown = ask(journal, "reasons", reason="evicted")
    assert shown["reason"] == "evicted"
    assert shown["buckets"][-1]["reasons"] == {"evicted": 360}
    assert shown["buckets"][-1]["prompt_tokens"] == 400


def test_a_series_brings_the_texts_of_all_reasons():
    catalog = {each["code"]: each for each in ask(make(), "reasons")["catalog"]}
    assert set(catalog) == set(Reason)
    assert catalog["evicted"].keys() == {"code", "title", "meaning", "advice", "rung", "remedy", "rules"}


def test_a_series_brings_the_texts_of_all_rungs():
    shown = ask(make(), "reasons")["rungs"]
    assert shown == [{"rung": rung, "title": text.title, "meaning": text.meaning} for rung, text in RUNGS.items()]
    assert [each["rung"] for each in shown] == list(Rung)


def test_what_comes_late_is_counted_where_it_belongs():
    journal = make()
    for at in (NOON, NOON + 35, NOON + 1, NOON + 36, NOON + 21):
        journal.add(finished(str(at), at), explanation(), 1)
    buckets = ask(journal, "reasons", NOON + 36)["buckets"]
    assert [bucket["requests"] for bucket in buckets[-4:]] == [2, 0, 1, 2]


def test_figures_stay_as_they_are_when_time_goes_on():
    journal = make()
    for number in range(50):
        reported = finished(f"r{number}", ttft_seconds=0.01 * number, prefill_seconds_per_token=1.23456789)
        journal.add(reported, explanation(640 + number, {Reason.EVICTED: 10**9 + number}, turn=number % 13), 3)
    before = ask(journal, "summary", window="7d", source="web")
    reused = sum(640 + number for number in range(50))
    assert before["saved"]["prefill_seconds"] == pytest.approx(reused * 1.23456789, rel=1e-9)
    for at in (NOON + 10, NOON + 300, NOON + 3600, NOON + 12 * 3600):
        journal.add(finished("later", at, source="mobile"), explanation(), 1)
    after = ask(journal, "summary", NOON + 12 * 3600, window="7d", source="web")
    changing = ("covered_seconds", "since", "findings")
    assert {name: before[name] for name in before if name not in changing} == {
        name: after[name] for name in after if name not in changing
    }


def test_what_comes_an_hour_late_does_not_push_out_what_is_new():
    journal = make()
    journal.add(finished("new", NOON), explanation(), 1)
    journal.add(finished("late", NOON - 3600), explanation(), 1)
    assert ask(journal, "summary")["requests"] == 1
    assert ask(journal, "summary", window="24h")["requests"] == 2


def test_a_clock_that_was_ahead_for_a_while_does_no_lasting_harm():
    journal = make()
    journal.add(finished("astray", NOON + 399 * DAY), explanation(), 1)
    journal.add(finished("right", NOON), explanation(), 1)
    journal.add(finished("again", NOON + 20), explanation(), 1)
    for window in LENGTHS:
        assert ask(journal, "summary", NOON + 30, window=window)["requests"] == 2
