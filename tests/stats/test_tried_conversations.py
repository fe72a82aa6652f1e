"""Sums of rules over a sample of conversations, and how far they may be off."""

import random

import pytest
from written_requests import NOON, ask, explanation, finished

from gateway.core.canonical import RuleMode, RuleOutcome
from gateway.stats import Stats

SHARE = 0.125
TOKENS = 1000


def tried(saved: int = 0, observed: float = 1, conversation: str = ""):
    outcomes = (RuleOutcome("whitespace", RuleMode.OBSERVE, 1, max(saved, 0), max(-saved, 0)),) if saved else ()
    return explanation(observed=observed, canonical=outcomes, conversation=conversation)


def canonicalization(journal: Stats, **arguments: str) -> dict:
    return ask(journal, "summary", **arguments)["canonicalization"]


def test_a_request_of_the_sample_counts_for_those_that_were_left_out():
    journal = Stats(NOON - 600)
    journal.add(finished("sampled"), tried(100, 1 / SHARE, "a"), 1)
    journal.add(finished("avoidable"), tried(300, 1, "b"), 1)
    for number in range(10):
        journal.add(finished(f"r{number}"), explanation(left_out=True, conversation=f"c{number}"), 1)
    shown = canonicalization(journal)
    assert shown["looked_at"] == {"requests": 12, "prompt_tokens": 12 * TOKENS, "conversations": {"tried": 2, "of": 12}}
    [rule] = shown["rules"]
    assert (rule["requests"], rule["saved_tokens"]) == (9, 8 * 100 + 300)
    assert rule["points"] == pytest.approx(100 * 1100 / (12 * TOKENS), abs=1e-4)


def test_a_rule_changes_no_more_requests_than_there_are():
    journal = Stats(NOON - 600)
    journal.add(finished("sampled"), tried(100, 1 / SHARE, "a"), 1)
    [rule] = canonicalization(journal)["rules"]
    assert rule["requests"] == 1


def test_shares_that_are_no_part_of_a_whole_number_lose_nothing_over_time():
    journal = Stats(NOON - 6 * 3600)
    for number in range(30):
        journal.add(finished(f"r{number}", NOON - 600 * number), tried(7, 1 / 0.3, f"c{number}"), 1)
    for window in ("24h", "7d"):
        [rule] = canonicalization(journal, window=window)["rules"]
        assert rule["saved_tokens"] == 30 * 7 / 0.3


def test_an_exact_figure_has_no_interval():
    journal = Stats(NOON - 600)
    for number in range(50):
        journal.add(finished(f"r{number}"), tried(100 + number, 1, f"c{number}"), 1)
    [rule] = canonicalization(journal)["rules"]
    assert rule["points_interval"] is None


def test_the_interval_is_of_the_selected_requests():
    journal = Stats(NOON - 600)
    for number in range(60):
        journal.add(finished(f"r{number}", model="m"), tried(100 + number, 8, f"c{number}"), 1)
        journal.add(finished(f"other-{number}", model="other"), tried(100 + number, 1, f"o{number}"), 1)
    assert canonicalization(journal, model="m")["rules"][0]["points_interval"] is not None
    assert canonicalization(journal, model="other")["rules"][0]["points_interval"] is None


@pytest.mark.parametrize("rare", [1.0, 0.05])
def test_intervals_hold_the_figure_of_all_requests_nearly_always(rare):
    held, runs = 0, 40
    for seed in range(runs):
        rng, journal, exact, requests = random.Random(seed), Stats(NOON - 600), 0, 0
        for number in range(300):
            chosen, changes = rng.random() < SHARE, rng.random() < rare
            for turn in range(rng.randint(1, 3)):
                saved = rng.choice([-50, 100, 200, 300]) if changes else 0
                avoidable = turn > 0 and rng.random() < 0.2
                observed = 1 if avoidable else 1 / SHARE if chosen else 0
                explained = (
                    tried(saved, observed, f"c{number}")
                    if observed
                    else explanation(left_out=True, conversation=f"c{number}")
                )
                journal.add(finished(f"r{number}-{turn}"), explained, 1)
                exact, requests = exact + saved, requests + 1
        [rule] = canonicalization(journal)["rules"]
        bounds = rule["points_interval"]
        held += bounds["low"] <= 100 * exact / (requests * TOKENS) <= bounds["high"]
    assert held >= 0.85 * runs
