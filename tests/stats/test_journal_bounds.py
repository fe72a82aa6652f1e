"""Memory is bounded for any names of clients."""

import tracemalloc

import pytest
from written_requests import NOON, ask, difference, explanation, finished

from gateway.core.explanation import SpaceKey
from gateway.core.reasons import Reason
from gateway.stats import Stats, StatsLimits


def explained(number: int):
    place = difference(path=f"messages[{number % 1000}].content", line=number)
    return explanation(640, {Reason.DYNAMIC_TIME: 300, Reason.NEW_CONTENT: 60}, difference=place)


def test_five_thousand_requests_of_as_many_clients():
    limits = StatsLimits(requests=500, keys=50, sources=10)
    journal = Stats(NOON, limits)
    for number in range(5_000):
        reported = finished(f"r{number}", NOON + number / 40, tenant=f"t{number % 2000}", source=f"s{number}")
        journal.add(reported, explained(number), 1)
    now = NOON + 5_000 / 40
    shown = ask(journal, "summary", now, window="1h")
    assert shown["requests"] == 5_000
    assert shown["prompt_tokens"] == 5_000_000
    assert shown["hits"] + sum(each["tokens"] for each in shown["reasons"]) == shown["prompt_tokens"]
    assert len(shown["by_source"]) <= 2 * limits.keys
    assert len(shown["by_tenant"]) <= 2 * limits.keys
    assert sum(each["requests"] for each in shown["by_source"]) == 5_000
    other = next(each for each in shown["by_tenant"] if each["tenant"] == "(other)")
    assert other["requests"] > 4_500
    assert len(shown["findings"]) == 20
    assert ask(journal, "requests", now, limit="1000")["requests"][0]["id"] == "r4999"
    assert len(ask(journal, "requests", now, limit="1000")["requests"]) == 500


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_clients():
    limits = StatsLimits(requests=200, keys=20, sources=10, findings=20)
    journal = Stats(NOON, limits)

    def flood(begin: int, count: int) -> int:
        for number in range(begin, begin + count):
            reported = finished(f"r{number}", NOON + 10 * number, tenant=f"t{number}", source=f"s{number}")
            journal.add(reported, explained(number), 1)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        # A request every ten seconds: after 400 the finest rings are full, the others hold only dozens of buckets.
        first = flood(0, 400) - before
        second = flood(400, 400) - before
    finally:
        tracemalloc.stop()
    assert second < 1.5 * first
    assert second < 16 * 2**20


@pytest.mark.parametrize("minutes", [10, pytest.param(60, marks=pytest.mark.slow)])
def test_a_busy_hour_takes_little_memory(minutes):
    journal = Stats(NOON, StatsLimits(requests=10, findings=20))
    tracemalloc.start()
    try:
        for number in range(minutes * 120):
            reported = finished("r", NOON + number / 2, source=f"s{number % 20}")
            journal.add(reported, explanation(640, {Reason.EVICTED: 300, Reason.NEW_CONTENT: 60}, turn=3), 1)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # 20 clients in six buckets a minute, some 400 bytes each.
    assert taken < minutes * 0.1 * 2**20


def test_a_client_that_was_there_first_is_not_pushed_out_by_a_flood_of_names():
    journal = Stats(NOON, StatsLimits(keys=20, sources=5))
    journal.add(finished("mine", NOON), explanation(), 1)
    for number in range(300):
        journal.add(finished(f"r{number}", NOON + number, source=f"random-{number}"), explanation(), 1)
    journal.add(finished("mine-again", NOON + 300), explanation(), 1)
    shown = {each["source"]: each["requests"] for each in ask(journal, "summary", NOON + 300)["by_source"]}
    assert shown["web"] == 2
    assert shown["(other)"] >= 290
    assert len(shown) <= 6


def test_one_tenants_flood_of_names_does_not_displace_other_tenants():
    journal = Stats(NOON, StatsLimits(keys=20, sources=5))
    for number in range(300):
        journal.add(finished(f"r{number}", source=f"random-{number}"), explanation(), 1)
    journal.add(finished("shop", tenant="shop", source="web"), explanation(), 1)
    shown = {each["source"] for each in ask(journal, "summary", tenant="shop")["by_source"]}
    assert shown == {"web"}


def test_a_new_version_of_the_template_takes_the_place_of_the_old_one():
    journal = Stats(NOON, StatsLimits(keys=10, sources=10))
    for at, version in ((NOON, "v3"), (NOON + 90, "v4")):
        for number in range(10):
            reported = finished(
                f"{version}-{number}", at, source=f"app-{number}", where=SpaceKey("m", template=version)
            )
            journal.add(reported, explanation(), 1)
    shown = ask(journal, "summary", NOON + 90)
    assert {each["template"]: each["requests"] for each in shown["by_template"]} == {"v3": 10, "v4": 10}
    assert {each["source"] for each in shown["by_source"]} == {f"app-{number}" for number in range(10)}


def test_versions_beyond_the_bound_are_folded_last():
    journal = Stats(NOON, StatsLimits(keys=4, sources=4))
    for number in range(200):
        where = SpaceKey("m", template=f"v{number}")
        journal.add(
            finished(f"r{number}", NOON, tenant=f"t{number}", source=f"s{number}", where=where), explanation(), 1
        )
    shown = ask(journal, "summary")
    assert {each["model"] for each in shown["by_model"]} <= {"m", "(other)"}
    assert len(shown["by_template"]) <= 8
    assert sum(each["requests"] for each in shown["by_template"]) == 200


@pytest.mark.slow
def test_a_week_of_new_names_has_a_bounded_summary():
    journal = Stats(NOON, StatsLimits(keys=30, sources=30))
    for number in range(24 * 6 * 8):
        reported = finished(f"r{number}", NOON + number * 450, tenant=f"t{number}", source=f"s{number}")
        journal.add(reported, explanation(), 1)
    for hour in range(24 * 6):
        journal.add(finished(f"mine-{hour}", NOON + hour * 3600, source="mine"), explanation(), 1)
    shown = ask(journal, "summary", NOON + 24 * 6 * 3600, window="7d")
    assert shown["requests"] == 24 * 6 * 9
    assert len(shown["by_source"]) <= 1001
    assert {each["source"]: each["requests"] for each in shown["by_source"]}["mine"] == 24 * 6


def test_names_that_are_not_used_any_more_are_replaced():
    journal = Stats(NOON, StatsLimits(keys=5, sources=5))
    for number in range(5):
        journal.add(finished(f"r{number}", source=f"old-{number}"), explanation(), 1)
    journal.add(finished("new", NOON + 7300, source="new"), explanation(), 1)
    shown = {each["source"] for each in ask(journal, "summary", NOON + 7300, window="24h")["by_source"]}
    assert shown == {"new", *(f"old-{number}" for number in range(5))}
