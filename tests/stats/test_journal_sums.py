"""Every token once: what the journal adds up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_requests import NOON, ask, difference, explanation, explanations, finished

from gateway.core.explanation import SkippedTotals, SpaceKey
from gateway.core.reasons import REASONS, RUNGS, Reason, Rung
from gateway.stats import ComputePrice, Stats

WEEK = 7 * 86400
LEAST_SECONDS = {"15m": 890, "1h": 3590, "24h": 86400 - 300, "7d": WEEK - 3600}
"""Of which a window has everything."""


def make(**fields) -> Stats:
    return Stats(NOON - 2 * WEEK, **fields)


def check_identity(figures: dict, missed: int) -> None:
    assert figures["hits"] + missed == figures["prompt_tokens"]
    assert figures["hits_confirmed"] + figures["hits_predicted"] == figures["hits"]


answered = st.lists(
    st.tuples(
        explanations,
        st.floats(0, 3600) | st.floats(0, 86400) | st.floats(0, 8 * 86400),
        st.sampled_from(["m", "n"]),
        st.sampled_from(["acme", "shop"]),
        st.sampled_from(["web", "mobile", "curl"]),
        st.sampled_from(["v3", "v4"]),
    ),
    max_size=25,
)


@given(answered, st.sampled_from(["15m", "1h", "24h", "7d"]), st.integers(0, 86400))
def test_hits_and_reasons_are_the_prompt_tokens_in_every_sum(requests, window, later):
    now = NOON + later
    journal = make()
    oldest_first = sorted(requests, key=lambda each: -each[1])
    for number, (explained, age, model, tenant, source, template) in enumerate(oldest_first):
        where = SpaceKey(model, template=template)
        reported = finished(f"r{number}", now - age, model=model, tenant=tenant, source=source, where=where)
        journal.add(reported, explained, 1)
    whole = ask(journal, "summary", now, window=window)
    check_identity(whole, sum(each["tokens"] for each in whole["reasons"]))
    assert whole["ladder"][0]["tokens"] == whole["hits"]
    assert whole["ladder"][-1]["tokens"] == whole["prompt_tokens"]
    assert all(rung["more"] >= 0 for rung in whole["ladder"])
    for rung in Rung:
        if rung is not Rung.CONFIRMED:
            more = next(each["more"] for each in whole["ladder"] if each["rung"] == rung)
            missed = sum(each["tokens"] for each in whole["reasons"] if REASONS[each["code"]].rung is rung)
            assert more == missed
    for name in ("source", "model", "tenant", "template", "prompt"):
        parts = whole[f"by_{name}"]
        for part in parts:
            check_identity(part, sum(part["reasons"].values()))
            alone = ask(journal, "summary", now, window=window, **{name: part[name]})
            assert alone["prompt_tokens"] == part["prompt_tokens"]
            assert alone["hits"] == part["hits"]
        assert sum(part["prompt_tokens"] for part in parts) == whole["prompt_tokens"]
        assert sum(part["requests"] for part in parts) == whole["requests"]
    series = ask(journal, "reasons", now, window=window)
    for bucket in series["buckets"]:
        assert bucket["hits"] + sum(bucket["reasons"].values()) == bucket["prompt_tokens"]
    assert sum(bucket["prompt_tokens"] for bucket in series["buckets"]) == whole["prompt_tokens"]
    kept = [explained for explained, age, *_ in requests if age < LEAST_SECONDS[window]]
    assert whole["prompt_tokens"] >= sum(explained.prompt_tokens for explained in kept)


def test_what_was_avoidable_in_all_requests_is_estimated_from_those_whose_text_was_compared():
    journal = make()
    elsewhere, compared = {Reason.LOAD_BALANCED: 40}, {Reason.DYNAMIC_TIME: 30, Reason.NEW_CONTENT: 30}
    for number in range(10):
        journal.add(finished(f"explained-{number}"), explanation(0, elsewhere | compared), 1)
    assert ask(journal, "summary")["avoidable"]["estimated"] is None
    left_out = explanation(0, elsewhere | {Reason.UNCLASSIFIED: 60}, was_skipped=True)
    for number in range(30):
        journal.add(finished(f"left-out-{number}"), left_out, 1)
    avoidable = ask(journal, "summary")["avoidable"]
    assert (avoidable["tokens"], avoidable["estimated"]["tokens"]) == (40 * 40 + 10 * 30, 40 * 40 + 40 * 30)


def test_nothing_is_estimated_where_no_text_was_compared():
    journal = make()
    journal.add(finished(), explanation(0, {Reason.UNCLASSIFIED: 60}, was_skipped=True), 1)
    assert ask(journal, "summary")["avoidable"]["estimated"] is None


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4000), st.integers(0, 4000), st.booleans()), max_size=8),
    explanations,
)
def test_requests_that_were_only_counted_are_in_the_sums(sums, explained):
    journal = make()
    journal.add(finished(), explained, 1)
    for requests, hits, missed, confirmed in sums:
        totals = SkippedTotals(
            at=NOON,
            model="m",
            tenant="acme",
            tenant_label="acme",
            source="web",
            template="v3",
            requests=requests,
            prompt_tokens=hits + missed,
            hits=hits,
            hits_confirmed=confirmed,
            prefill_seconds=(hits + missed) * 0.001,
        )
        journal.add_skipped(totals, 2)
    whole = ask(journal, "summary")
    check_identity(whole, sum(each["tokens"] for each in whole["reasons"]))
    assert whole["prompt_tokens"] == explained.prompt_tokens + sum(hits + missed for _, hits, missed, _ in sums)
    assert whole["requests"] == 1 + sum(requests for requests, *_ in sums)
    assert whole["skipped"] == explained.was_skipped + sum(requests for requests, *_ in sums)
    assert whole["ladder"][-1]["tokens"] == whole["prompt_tokens"]
    rungs = {rung["rung"]: rung["more"] for rung in whole["ladder"]}
    assert rungs["reusable"] == sum(
        each["tokens"] for each in whole["reasons"] if REASONS[each["code"]].rung is Rung.REUSABLE
    )
    assert whole["ladder"][0]["tokens"] == whole["hits"]
    assert whole["saved"]["prefill_seconds"] == pytest.approx(whole["hits"] * 0.001)
    assert whole["lost"]["prefill_seconds"] == pytest.approx((whole["prompt_tokens"] - whole["hits"]) * 0.001)
    mine = sum(each.tokens for each in explained.missed if each.reason is Reason.UNCLASSIFIED)
    found = {each["code"]: each["tokens"] for each in whole["reasons"]}
    assert found.get("unclassified", 0) == mine + sum(missed for _, _, missed, _ in sums)


def test_a_rung_has_its_title():
    journal = make()
    journal.add(finished(), explanation(), 1)
    shown = ask(journal, "summary")["ladder"]
    assert [(each["rung"], each["title"]) for each in shown] == [(rung, RUNGS[rung].title) for rung in Rung]


@pytest.mark.parametrize("purpose", ["warming", "measured"])
def test_requests_that_fill_caches_or_measure_are_in_no_figure(purpose):
    journal = make()
    journal.add(finished(**{purpose: True}), explanation(), 1)
    assert ask(journal, "summary")["requests"] == 0
    assert ask(journal, "requests")["requests"] == []


def test_reasons_are_reported_with_their_texts_largest_first():
    journal = make()
    journal.add(finished(), explanation(600, {Reason.NEW_CONTENT: 100, Reason.EVICTED: 300}), 1)
    shown = ask(journal, "summary")["reasons"]
    assert [(each["code"], each["tokens"], each["share"]) for each in shown] == [
        ("evicted", 300, 0.3),
        ("new_content", 100, 0.1),
    ]
    text = REASONS[Reason.EVICTED]
    assert (shown[0]["title"], shown[0]["advice"], shown[0]["remedy"]) == (text.title, text.advice, "capacity")


def test_hit_rate_distinguishes_confirmed_from_predicted():
    journal = make()
    journal.add(finished("a"), explanation(600, {Reason.NEW_CONTENT: 400}), 1)
    journal.add(finished("b"), explanation(200, {Reason.NEW_CONTENT: 800}, hits_confirmed=False), 1)
    shown = ask(journal, "summary")
    assert (shown["hits"], shown["hits_confirmed"], shown["hits_predicted"], shown["hit_rate"]) == (800, 600, 200, 0.4)


def test_nothing_yet_is_no_division_by_zero():
    shown = ask(make(), "summary")
    assert (shown["requests"], shown["prompt_tokens"], shown["hit_rate"]) == (0, 0, None)
    assert shown["ttft"]["cold"] == {"requests": 0, "p50": None, "p90": None, "p95": None, "p99": None}
    assert shown["reasons"] == shown["findings"] == shown["by_source"] == shown["turns"] == []


# Value


def test_gpu_seconds_are_prefill_seconds_times_the_gpus_of_a_replica():
    journal = make(price=ComputePrice(3.6, "EUR"))
    missed = {Reason.DYNAMIC_TIME: 200, Reason.EXPIRED: 50, Reason.LOAD_BALANCED: 30, Reason.NEW_CONTENT: 20}
    journal.add(finished(prefill_seconds_per_token=0.01), explanation(700, missed), 4)
    shown = ask(journal, "summary")
    assert shown["price"] == {"per_gpu_hour": 3.6, "currency": "EUR"}
    # 700 tokens of 10 ms on 4 GPUs, which cost 3.60 an hour: 28 GPU seconds, 0.1 cent each.
    assert shown["saved"] == {"tokens": 700, "prefill_seconds": 7, "gpu_seconds": 28, "money": 0.028}
    assert shown["lost"] == {"tokens": 300, "prefill_seconds": 3, "gpu_seconds": 12, "money": 0.012}
    found = {each["code"]: (each["gpu_seconds"], each["money"]) for each in shown["reasons"]}
    assert found == {
        "dynamic_time": (8, 0.008),
        "expired": (2, 0.002),
        "load_balanced": (1.2, 0.0012),
        "new_content": (0.8, 0.0008),
    }
    avoidable = shown["avoidable"]
    assert (avoidable["tokens"], avoidable["gpu_seconds"], avoidable["money"]) == (280, 11.2, 0.0112)
    assert {remedy: each["tokens"] for remedy, each in avoidable["by_remedy"].items()} == {
        "application": 200,
        "gateway": 50,
        "capacity": 30,
    }
    assert shown["by_source"][0]["saved"]["money"] == 0.028


def test_without_a_price_there_is_no_money():
    journal = make()
    journal.add(finished(), explanation(0, {Reason.EVICTED: 1000}), 1)
    shown = ask(journal, "summary")
    assert shown["price"]["per_gpu_hour"] is None
    assert shown["lost"] == {"tokens": 1000, "prefill_seconds": 1, "gpu_seconds": 1, "money": None}
    assert shown["findings"][0]["money"] is None


def test_replicas_of_different_sizes_and_speeds_are_added_up_each_with_its_own():
    journal = make()
    journal.add(finished("a", prefill_seconds_per_token=0.01), explanation(0, {Reason.EVICTED: 100}), 8)
    journal.add(finished("b", prefill_seconds_per_token=0.001), explanation(0, {Reason.EVICTED: 100}), 1)
    assert ask(journal, "summary")["reasons"][0]["gpu_seconds"] == pytest.approx(8.1)


# Times, turns, and what conversations lose


def test_first_tokens_are_distinguished_by_whether_half_was_reused():
    journal = make()
    for number in range(100):
        warm = finished(f"w{number}", ttft_seconds=0.1 if number < 90 else 1.0)
        journal.add(warm, explanation(16, {Reason.NEW_CONTENT: 16}), 1)
    journal.add(finished("c", ttft_seconds=4.0), explanation(15, {Reason.NEW_CONTENT: 17}), 1)
    journal.add(finished("d", ttft_seconds=None), explanation(0, {Reason.FIRST_SEEN: 10}), 1)
    shown = ask(journal, "summary")["ttft"]
    assert shown["warm"]["requests"] == 100
    assert shown["warm"]["p50"] == pytest.approx(0.1, rel=0.05)
    assert shown["warm"]["p90"] == pytest.approx(0.1, rel=0.05)
    assert shown["warm"]["p95"] == pytest.approx(1.0, rel=0.05)
    assert shown["warm"]["p99"] == pytest.approx(1.0, rel=0.05)
    assert shown["cold"]["requests"] == 1
    assert shown["cold"]["p50"] == pytest.approx(4.0, rel=0.05)


@given(st.lists(st.floats(0.0005, 3000), min_size=1, max_size=60))
def test_percentiles_are_right_within_five_percent(times):
    journal = make()
    for number, ttft in enumerate(times):
        journal.add(finished(f"r{number}", ttft_seconds=ttft), explanation(0, {Reason.FIRST_SEEN: 1}), 1)
    shown = ask(journal, "summary")["ttft"]["cold"]
    ranked = sorted(times)
    for name, part in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
        exact = next(each for rank, each in enumerate(ranked, 1) if rank >= part * len(times))
        assert shown[name] == pytest.approx(exact, rel=0.05, abs=1e-6)


def test_hit_rate_by_turn():
    journal = make()
    for turn, hits in ((0, 0), (1, 0), (2, 600), (2, 800), (11, 900), (40, 1000)):
        journal.add(finished(f"{turn}-{hits}"), explanation(hits, {Reason.NEW_CONTENT: 1000 - hits}, turn=turn), 1)
    assert ask(journal, "summary")["turns"] == [
        {"turn": "1", "prompt_tokens": 1000, "hits": 0, "hit_rate": 0},
        {"turn": "2", "prompt_tokens": 2000, "hits": 1400, "hit_rate": 0.7},
        {"turn": "11+", "prompt_tokens": 2000, "hits": 1900, "hit_rate": 0.95},
    ]


def test_tokens_lost_to_rounding_and_to_replies_that_come_back_differently():
    journal = make()
    missed = {Reason.BLOCK_BOUNDARY: 7, Reason.REPLY_RERENDERED: 40, Reason.NEW_CONTENT: 100}
    journal.add(finished("a"), explanation(800, missed), 1)
    journal.add(finished("b"), explanation(0, {Reason.TOO_SHORT: 9}), 1)
    shown = ask(journal, "summary")
    assert (shown["rounding_tokens"], shown["rerendered_tokens"]) == (16, 40)


def test_families_come_from_their_source_and_get_the_filters():
    asked = []

    def families(now, model=None, tenant=None):
        asked.append((now, model, tenant))
        return [{"source": "mobile", "than": "web", "difference": {"said": "1 message more"}}]

    journal = make(families=families)
    journal.add(finished(), explanation(difference=difference()), 1)
    shown = ask(journal, "summary", NOON + 5, model="m", tenant="acme")
    assert shown["families"] == [{"source": "mobile", "than": "web", "difference": {"said": "1 message more"}}]
    assert asked == [(NOON + 5, "m", "acme")]
