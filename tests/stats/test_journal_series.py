"""Series separated by model, tenant, client family or template version."""

from hypothesis import given
from hypothesis import strategies as st
from written_requests import NOON, ask, explanation, explanations, finished

from gateway.core.explanation import SpaceKey
from gateway.core.reasons import Reason
from gateway.stats import Stats


def test_every_bucket_has_what_each_group_sent_reused_and_missed():
    journal = Stats(NOON - 25)
    journal.add(finished("a", NOON, source="web"), explanation(600, {Reason.EVICTED: 300, Reason.NEW_CONTENT: 100}), 1)
    journal.add(finished("b", NOON, source="mobile"), explanation(0, {Reason.NEW_CONTENT: 50}), 1)
    journal.add(finished("c", NOON - 10, source="web"), explanation(10, {Reason.NEW_CONTENT: 5}), 1)
    shown = ask(journal, "reasons", by="source")
    assert (shown["by"], shown["groups"]) == ("source", ["web", "mobile"])
    nothing = {"prompt_tokens": 0, "hits": 0, "missed": 0}
    assert [bucket["groups"] for bucket in shown["buckets"]] == [
        {"web": nothing, "mobile": nothing},
        {"web": nothing, "mobile": nothing},
        {"web": {"prompt_tokens": 15, "hits": 10, "missed": 5}, "mobile": nothing},
        {
            "web": {"prompt_tokens": 1000, "hits": 600, "missed": 400},
            "mobile": {"prompt_tokens": 50, "hits": 0, "missed": 50},
        },
    ]


def test_of_one_reason_only_its_tokens_are_missed():
    journal = Stats(NOON - 600)
    journal.add(finished("a", source="web"), explanation(600, {Reason.EVICTED: 300, Reason.NEW_CONTENT: 100}), 1)
    journal.add(finished("b", source="mobile"), explanation(0, {Reason.NEW_CONTENT: 5000}), 1)
    shown = ask(journal, "reasons", by="source", reason="evicted")
    assert shown["groups"] == ["web", "mobile"]
    assert shown["buckets"][-1]["groups"] == {
        "web": {"prompt_tokens": 1000, "hits": 600, "missed": 300},
        "mobile": {"prompt_tokens": 5000, "hits": 0, "missed": 0},
    }


def test_seven_are_shown_separately_and_the_rest_together():
    journal = Stats(NOON - 600)
    for number in range(10):
        reported = finished(f"r{number}", tenant=f"t{number}", source="web")
        journal.add(reported, explanation(1, {Reason.NEW_CONTENT: 100 + number}), 1)
    shown = ask(journal, "reasons", by="tenant")
    assert shown["groups"] == ["t9", "t8", "t7", "t6", "t5", "t4", "t3", "(other)"]
    groups = shown["buckets"][-1]["groups"]
    assert groups["t9"] == {"prompt_tokens": 110, "hits": 1, "missed": 109}
    assert groups["(other)"] == {"prompt_tokens": 306, "hits": 3, "missed": 303}


def test_without_a_part_there_is_one_series():
    journal = Stats(NOON - 600)
    journal.add(finished(), explanation(), 1)
    shown = ask(journal, "reasons")
    assert "groups" not in shown
    assert "groups" not in shown["buckets"][-1]


def test_where_nothing_came_there_are_no_groups():
    shown = ask(Stats(NOON - 25), "reasons", by="model")
    assert (shown["by"], shown["groups"]) == ("model", [])
    assert [bucket["requests"] for bucket in shown["buckets"]] == [0, 0, 0, 0]


@given(
    st.lists(
        st.tuples(explanations, st.floats(0, 90_000), *(st.integers(0, most) for most in (2, 11, 11, 3))), max_size=30
    ),
    st.sampled_from(["15m", "1h", "24h", "7d"]),
    st.sampled_from(["model", "tenant", "source", "template", "prompt"]),
    st.sampled_from([{}, {"reason": "new_content"}, {"tenant": "3"}]),
)
def test_groups_add_up_to_their_bucket(requests, window, part, filters):
    journal = Stats(NOON - 8 * 86400)
    oldest_first = sorted(requests, key=lambda each: -each[1])
    for number, (explained, age, model, tenant, source, template) in enumerate(oldest_first):
        where = SpaceKey(str(model), template=str(template))
        reported = finished(
            f"r{number}", NOON - age, model=str(model), tenant=str(tenant), source=str(source), where=where
        )
        journal.add(reported, explained, 1)
    shown = ask(journal, "reasons", window=window, by=part, **filters)
    plain = ask(journal, "reasons", window=window, **filters)
    assert len(shown["groups"]) == len(set(shown["groups"])) <= 8
    for bucket, same in zip(shown["buckets"], plain["buckets"], strict=True):
        groups = bucket.pop("groups", {})
        assert bucket == same
        assert list(groups) == shown["groups"]
        for name in ("prompt_tokens", "hits"):
            assert sum(group[name] for group in groups.values()) == bucket[name]
        assert sum(group["missed"] for group in groups.values()) == sum(bucket["reasons"].values())
