"""What can be asked, and how a wrong question is answered."""

import pytest
from written_requests import NOON, ask, asked, explanation, finished

from gateway.core.errors import BadRequest, NotFound
from gateway.core.explanation import SpaceKey
from gateway.core.reasons import Reason
from gateway.stats import Stats


@pytest.fixture
def journal() -> Stats:
    """Three requests that differ in everything that can be filtered by."""
    made = Stats(NOON - 3600)
    made.add(finished("a", NOON - 3, model="m", tenant="acme", source="web", session="s1"), explanation(), 1)
    evicted = explanation(0, {Reason.EVICTED: 10})
    other = SpaceKey("n", template="v3", prompt="own-name@1")
    made.add(
        finished("b", NOON - 2, model="n", tenant="acme", source="mobile", session="s2", where=other, prompt="(other)"),
        evicted,
        1,
    )
    rolled_out = SpaceKey("m", template="v4", prompt="support@v2")
    made.add(
        finished(
            "c", NOON - 1, model="m", tenant="shop", source="web", session="s1", where=rolled_out, prompt="support@v2"
        ),
        evicted,
        1,
    )
    return made


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ({}, "cba"),
        ({"model": "m"}, "ca"),
        ({"tenant": "acme"}, "ba"),
        ({"source": "web"}, "ca"),
        ({"template": "v3"}, "ba"),
        ({"template": "v4"}, "c"),
        ({"model": "m", "tenant": "acme", "source": "web", "template": "v3"}, "a"),
        ({"model": "m", "tenant": "acme", "source": "web", "template": "v4"}, ""),
        ({"model": "", "tenant": "", "source": "", "template": ""}, "cba"),
        ({"prompt": "support"}, "c"),
        ({"prompt": "support@v2"}, "c"),
        ({"prompt": "support@v1"}, ""),
        ({"prompt": "(other)"}, "b"),
        ({"model": "nobody"}, ""),
        ({"tenant": "ACME"}, ""),
    ],
)
def test_whose_requests(journal, filters, ids):
    assert [each["id"] for each in asked(journal, "requests", NOON, filters)["requests"]] == list(ids)
    assert asked(journal, "summary", NOON, filters)["requests"] == len(ids)
    series = asked(journal, "reasons", NOON, filters)
    assert sum(bucket["requests"] for bucket in series["buckets"]) == len(ids)


@pytest.mark.parametrize(
    ("filters", "ids"),
    [({"session": "s1"}, "ca"), ({"reason": "evicted"}, "cb"), ({"session": "s1", "reason": "evicted"}, "c")],
)
def test_lists_go_by_session_and_reason_too(journal, filters, ids):
    assert [each["id"] for each in asked(journal, "requests", NOON, filters)["requests"]] == list(ids)


def test_a_list_is_as_long_as_asked_for_and_says_whether_there_is_more(journal):
    shown = ask(journal, "requests", limit="2")
    assert ([each["id"] for each in shown["requests"]], shown["more"]) == (["c", "b"], True)
    assert ask(journal, "requests", limit="3")["more"] is False
    for number in range(200):
        journal.add(finished(f"x{number}"), explanation(), 1)
    assert len(ask(journal, "requests")["requests"]) == 100
    assert len(ask(journal, "requests", limit="1000")["requests"]) == 203


@pytest.mark.parametrize(
    ("question", "arguments", "param", "code", "possible"),
    [
        ("summary", {"window": "2h"}, "window", "invalid_value", "15m, 1h, 24h, 7d"),
        ("summary", {"window": "15M"}, "window", "invalid_value", "15m"),
        ("reasons", {"window": "week"}, "window", "invalid_value", "7d"),
        ("reasons", {"reason": "eviction"}, "reason", "invalid_value", "evicted"),
        ("reasons", {"by": "session"}, "by", "invalid_value", "model, tenant, source, template"),
        ("summary", {"by": "source"}, "by", "unknown_parameter", "template"),
        ("requests", {"reason": "eviction"}, "reason", "invalid_value", "evicted"),
        ("requests", {"limit": "0"}, "limit", "invalid_value", "1 to 1000"),
        ("requests", {"limit": "1001"}, "limit", "invalid_value", "1 to 1000"),
        ("requests", {"limit": "-1"}, "limit", "invalid_value", "1 to 1000"),
        ("requests", {"limit": "ten"}, "limit", "invalid_value", "1 to 1000"),
        ("requests", {"limit": "٣"}, "limit", "invalid_value", "1 to 1000"),
        ("requests", {"limit": "9" * 5000}, "limit", "invalid_value", "1 to 1000"),
        ("summary", {"modle": "m"}, "modle", "unknown_parameter", "window, model, tenant, source"),
        ("summary", {"reason": "evicted"}, "reason", "unknown_parameter", "model"),
        ("summary", {"modle": ""}, "modle", "unknown_parameter", "model"),
        ("reasons", {"limit": "3"}, "limit", "unknown_parameter", "reason"),
        ("requests", {"window": "1h"}, "window", "unknown_parameter", "session"),
        ("request", {"id": "a", "window": "1h"}, "window", "unknown_parameter", "id"),
    ],
)
def test_the_answer_to_a_wrong_query_lists_what_is_possible(journal, question, arguments, param, code, possible):
    with pytest.raises(BadRequest) as refused:
        journal.answer(question, arguments, NOON)
    assert (refused.value.param, refused.value.code) == (param, code)
    assert possible in refused.value.message
    assert len(refused.value.message) < 1000


@pytest.mark.parametrize("arguments", [{"id": "nobody"}, {"id": ""}, {}])
def test_a_request_that_is_not_there(journal, arguments):
    with pytest.raises(NotFound) as refused:
        journal.answer("request", arguments, NOON)
    assert refused.value.code == "unknown_request"


def test_a_question_that_does_not_exist(journal):
    with pytest.raises(NotFound) as refused:
        journal.answer("secrets", {}, NOON)
    assert refused.value.code == "unknown_question"
