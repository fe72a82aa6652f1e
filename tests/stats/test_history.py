"""What outlives a restart: the sums of a week, totals by day, markers; nothing is lost, and nothing counts twice."""

import zlib

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_requests import NOON, ask, explanation, explanations, finished

from gateway.core.errors import BadRequest
from gateway.core.explanation import MEASUREMENT, Explanation, SkippedTotals, SpaceKey
from gateway.core.reasons import Reason
from gateway.stats import Stats
from gateway.stats.history import HistoryInvalid, sender_of
from gateway.stats.markers import Marker, MarkerKind
from gateway.stats.prices import ComputePrice, TokenPrices

HOUR, DAY = 3600, 86_400
ANSWERED = st.lists(
    st.tuples(
        explanations, st.integers(0, 6 * DAY), st.sampled_from(["acme", "shop"]), st.sampled_from(["web", "mobile"])
    ),
    max_size=15,
)


def journal(name: bytes, since: float = NOON - 6 * DAY, **options: object) -> Stats:
    return Stats(since, name=name, **options)


def fill(stats: Stats, requests: list) -> None:
    for number, (explained, age, tenant, source) in enumerate(sorted(requests, key=lambda each: -each[1])):
        where = SpaceKey("m", template="v1")
        record = finished(f"r{number}", NOON - age, model="m", tenant=tenant, source=source, where=where)
        stats.add(record, explained, 1)


def explanation_of(tokens: int, hits: int = 0) -> Explanation:
    return explanation(hits, {Reason.NEW_CONTENT: tokens - hits})


def saved(stats: Stats) -> bytes:
    return stats.answer("history", {}, NOON)


def stored(version: int, sender: bytes, content: bytes) -> bytes:
    return msgspec.msgpack.encode((version, sender, content))


def parts(data: bytes) -> tuple[int, bytes, bytes]:
    return msgspec.msgpack.decode(data)


@given(ANSWERED, ANSWERED)
def test_a_week_after_a_restart_is_as_without_one(before, after):
    whole, first, second = journal(b"w"), journal(b"1"), journal(b"2", since=NOON)
    fill(whole, before)
    fill(whole, after)
    fill(first, before)
    second.restore(saved(first))
    fill(second, after)

    for question in ("summary", "reasons"):
        found, wanted = (ask(stats, question, NOON, window="7d") for stats in (second, whole))
        # Largest causes and suggestions are not kept.
        for shown in (found, wanted):
            shown.pop("findings", None)
            shown.pop("canonicalization", None)
        assert found == wanted


@given(ANSWERED)
def test_what_was_restored_is_saved_again_and_counts_once(requests):
    first = journal(b"1")
    fill(first, requests)
    second, third = journal(b"2", since=NOON), journal(b"3", since=NOON)
    for _ in range(2):
        second.restore(saved(first))
    second.restore(saved(second))  # its own
    third.restore(saved(second))

    for question, arguments in (("summary", {"window": "7d"}), ("report", {})):
        wanted, *found = (ask(stats, question, NOON, **arguments) for stats in (first, second, third))
        for shown in (wanted, *found):
            shown.pop("findings", None)
            shown.pop("canonicalization", None)
        assert found == [wanted, wanted]


def test_whole_numbers_are_stored_as_such_which_takes_a_fifth():
    stats = journal(b"1")
    fill(stats, [(explanation_of(100), DAY, "acme", "web"), (explanation_of(100), 0, "acme", "web")])
    _, names, hours, *_ = msgspec.msgpack.decode(zlib.decompress(parts(saved(stats))[2]))
    values = {
        names[place]: value for _, ((_, places, values),) in hours for place, value in zip(places, values, strict=True)
    }
    assert all(isinstance(value, int) for name, value in values.items() if "seconds" not in name)


def test_windows_of_a_day_and_less_begin_with_the_process():
    first, second = journal(b"1"), journal(b"2", since=NOON - 60)
    first.add(finished("a", NOON - HOUR / 2, model="m"), explanation_of(100), 1)
    second.restore(saved(first))

    assert ask(second, "summary", NOON, window="1h")["requests"] == 0
    assert ask(second, "summary", NOON, window="1h")["covered_seconds"] == 60
    assert ask(second, "summary", NOON, window="7d")["requests"] == 1


def test_a_reason_of_another_release_becomes_unclassified():
    first, second = journal(b"1"), journal(b"2", since=NOON)
    fill(first, [(explanation_of(100), 0, "acme", "web")])
    version, sender, content = parts(saved(first))
    names = zlib.decompress(content)
    for reason in Reason:
        names = names.replace(b"missed:" + reason.encode(), b"missed:" + b"x" * len(reason))
    second.restore(stored(version, sender, zlib.compress(names)))

    found = ask(second, "summary", NOON, window="7d")
    assert {each["code"] for each in found["reasons"]} <= {"unclassified"}
    assert sum(each["tokens"] for each in found["reasons"]) + found["hits"] == found["prompt_tokens"] == 100


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda data: b"", "no history of this program"),
        (lambda data: data[:-5], "no history of this program"),
        (lambda data: b"hello", "no history of this program"),
        (lambda data: stored(99, *parts(data)[1:]), "format has version 99"),
        (lambda data: stored(*parts(data)[:2], parts(data)[2][:-5]), "incomplete"),
        (lambda data: stored(*parts(data)[:2], b"hello"), "no history of this program"),
        (lambda data: stored(*parts(data)[:2], zlib.compress(b"\x93\x01\x02\x03")), "no history of this program"),
    ],
)
def test_damaged_data_is_refused_and_changes_nothing(damage, problem):
    first, second = journal(b"1"), journal(b"2", since=NOON)
    fill(first, [(explanation_of(100), 0, "acme", "web")])
    before = ask(second, "summary", NOON, window="7d")

    with pytest.raises(HistoryInvalid, match=problem):
        second.restore(damage(saved(first)))

    assert ask(second, "summary", NOON, window="7d") == before


def test_the_sender_is_read_without_the_content():
    assert sender_of(stored(2, b"1", b"cannot be read")) == b"1"


def test_markers_stand_in_the_series_and_outlive_a_restart():
    first, second = journal(b"1"), journal(b"2", since=NOON)
    first.add_marker(Marker(NOON - 2 * DAY, MarkerKind.STARTED, "Prefix Gateway 1"))
    for seconds in range(0, 50, 10):  # one for each tenant's space
        first.add_marker(Marker(NOON - DAY + seconds, MarkerKind.TEMPLATE_CHANGED, "another chat template"))
    second.restore(saved(first))
    second.add_marker(Marker(NOON - 10, MarkerKind.RELOADED, "changed: canon"))

    found = ask(second, "reasons", NOON, window="7d")["markers"]
    assert [(each["kind"], each["at"]) for each in found] == [
        ("started", NOON - 2 * DAY),
        ("template_changed", NOON - DAY),
        ("reloaded", NOON - 10),
    ]
    assert [each["kind"] for each in ask(second, "reasons", NOON, window="15m")["markers"]] == ["reloaded"]


def priced() -> ComputePrice:
    return ComputePrice(currency="EUR", tokens={"": TokenPrices(2.0, 0.5, 8.0), "big": TokenPrices(20.0, 5.0, 80.0)})


def report(stats: Stats, now: float = NOON, others: tuple[bytes, ...] | None = (), **arguments: str) -> dict:
    return orjson.loads(stats.answer("report", arguments, now, others))


def month_of(stats: Stats, *requests: tuple[str, str, int, int, int]) -> Stats:
    for number, (tenant, model, tokens, hits, completion) in enumerate(requests):
        record = finished(f"r{number}", NOON, model=model, tenant=tenant, completion_tokens=completion)
        stats.add(record, explanation_of(tokens, hits), 1)
    return stats


def test_a_month_by_tenant_and_model_with_its_cost():
    stats = month_of(
        journal(b"1", price=priced()),
        ("acme", "small", 1_000_000, 400_000, 100_000),
        ("acme", "small", 1_000_000, 0, 0),
        ("acme", "big", 500_000, 500_000, 0),
        ("shop", "small", 100, 0, 0),
    )
    totals = SkippedTotals(
        at=NOON,
        model="small",
        tenant="shop",
        tenant_label="shop",
        source="web",
        template="",
        requests=3,
        prompt_tokens=300,
        hits=100,
        hits_confirmed=False,
        prefill_seconds=0.1,
        completion_tokens=50,
    )
    stats.add_skipped(totals, 1)

    found = report(stats)

    assert [(row["tenant"], row["model"], row["requests"]) for row in found["rows"]] == [
        ("acme", "big", 1),
        ("acme", "small", 2),
        ("shop", "small", 4),
    ]
    big, small, shop = found["rows"]
    assert (big["cost"], big["saved"]) == (2.5, 7.5)
    assert (small["cost"], small["saved"]) == (4.2, 0.6)  # 1.6 * 2 + 0.4 * 0.5 + 0.1 * 8, and 0.4 * 1.5
    assert (shop["prompt_tokens"], shop["cached_tokens"], shop["completion_tokens"]) == (400, 100, 50)
    assert found["total"]["cost"] == pytest.approx(sum(row["cost"] for row in found["rows"]))
    assert found["currency"] == "EUR"
    assert [row["tenant"] for row in report(stats, tenant="shop")["rows"]] == ["shop"]
    assert report(stats, month="2001-01")["rows"] == []


def test_without_prices_there_is_no_cost():
    (row,) = report(month_of(journal(b"1"), ("acme", "small", 100, 0, 1)))["rows"]

    assert row["cost"] is row["saved"] is None


def test_other_gateways_are_added_and_an_unreadable_one_is_said():
    one, two = (month_of(journal(name), ("acme", "small", 100, 0, 1)) for name in (b"1", b"2"))

    found = report(one, others=(saved(two),), gateways="all")
    assert (found["total"]["requests"], found["gateways"]) == (2, {"counted": 2, "missing": False})
    assert report(one, others=(saved(two), b"x"), gateways="all")["gateways"] == {"counted": 2, "missing": True}
    assert report(one, others=None, gateways="all")["gateways"] == {"counted": 1, "missing": True}


@pytest.mark.parametrize("month", ["2026", "2026-13", "november", "2026-11-01", "2026-1"])
def test_what_is_no_month_is_refused(month):
    with pytest.raises(BadRequest, match="such as 2026-11") as refused:
        report(journal(b"1"), month=month)
    assert refused.value.param == "month"


def test_tenants_of_a_day_are_bounded_and_old_days_are_dropped():
    stats = journal(b"1")
    for number in range(1500):
        stats.add(finished("r", NOON, model="m", tenant=f"t{number}"), explanation_of(10), 1)
    rows = report(stats)["rows"]
    assert len(rows) <= 1002
    assert sum(row["requests"] for row in rows) == 1500

    later = NOON + 500 * DAY
    stats.add(finished("r", later, model="m", tenant="acme"), explanation_of(10), 1)
    assert report(stats)["rows"] == []
    assert len(report(stats, now=later)["rows"]) == 1


def test_requests_that_measure_cost_something_and_are_in_no_summary():
    stats = journal(b"1")
    stats.add(finished("a", NOON, model="m", source=MEASUREMENT, measured=True), explanation_of(100), 1)
    stats.add_skipped(SkippedTotals("m", "acme", "acme", MEASUREMENT, "", True, NOON, 2, 50, 0, 0.1), 1)

    assert ask(stats, "summary", NOON)["requests"] == 0
    assert report(stats)["total"]["requests"] == 3
    assert report(stats)["total"]["prompt_tokens"] == 150
