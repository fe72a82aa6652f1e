"""What costs most, in a sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_requests import NOON, ask, difference, explanation, finished

from gateway.core.canonical import Canonicalized, RuleMode, RuleName
from gateway.core.reasons import REASONS, Reason, Remedy
from gateway.stats import ComputePrice, Stats, StatsLimits


def timed(tokens: int = 360, **fields):
    """An explanation by a time in the prompt."""
    return explanation(640, {Reason.DYNAMIC_TIME: tokens}, difference=difference(**fields))


def test_a_finding_says_what_it_costs_a_day():
    # The journal is ten minutes old; in them 41 requests lost 2,500 tokens each, of 1 ms, on one GPU: 102.5 GPU
    # seconds, which is 14,760 a day or 4.1 hours.
    journal = Stats(NOON - 600)
    for number in range(41):
        journal.add(finished(f"r{number}", NOON - 500 + number, source="mobile"), timed(2500), 1)
    (found,) = ask(journal, "summary")["findings"]
    assert found["sentence"] == "The time in messages[0].content, line 2 (mobile) costs 4.1 GPU hours a day."
    assert found["gpu_seconds"] == pytest.approx(102.5)
    assert found["gpu_seconds_per_day"] == pytest.approx(14760)
    assert found["covered_seconds"] == 600
    assert (found["requests"], found["tokens"], found["example"]) == (41, 102500, "r40")
    assert (found["model"], found["tenant"], found["source"], found["template"]) == ("m", "acme", "mobile", "v3")
    assert (found["reason"], found["detail"]) == ("dynamic_time", "iso_datetime")
    assert (found["path"], found["line"]) == ("messages[0].content", 2)
    assert found["said"] == "The time changed."
    assert found["advice"] == REASONS[Reason.DYNAMIC_TIME].advice
    assert (found["money"], found["money_per_day"]) == (None, None)


def test_a_finding_says_what_share_of_the_prompts_it_is():
    journal = Stats(NOON - 600)
    journal.add(finished("a", source="web"), timed(160), 1)
    journal.add(finished("b", source="mobile"), explanation(600, {Reason.NEW_CONTENT: 600}), 1)
    (found,) = ask(journal, "summary")["findings"]
    assert found["share"] == 0.08
    (found,) = ask(journal, "summary", source="web")["findings"]
    assert found["share"] == 0.2


def asked_first(tokens, **fields):
    """An explanation by a question in front of the documents."""
    differing = difference(
        Reason.USER_DATA, detail="question_first", path="messages[1].content", line=1, said="A question.", **fields
    )
    return explanation(640, {Reason.USER_DATA: tokens, Reason.NEW_CONTENT: 20}, difference=differing)


def test_a_question_in_front_of_documents_is_a_finding_with_its_gain():
    journal = Stats(NOON - 600)
    for number in range(3):
        journal.add(finished(f"r{number}", source="rag"), asked_first(1000), 1)
    journal.add(finished("other", source="rag"), explanation(640, {Reason.USER_DATA: 10}), 1)
    found, other = ask(journal, "summary")["findings"]
    assert found["sentence"].startswith("The question in front of documents in messages[1].content, line 1 (rag) costs")
    assert (found["reason"], found["detail"], found["tokens"]) == ("user_data", "question_first", 3000)
    assert found["hint"] == {
        "code": "question_first",
        "tokens": 3000,
        "gain": "With the documents first, up to 3,000 tokens more could be reused.",
        "advice": found["advice"],
    }
    assert found["advice"].startswith("Put the documents first")
    assert (other["hint"], other["advice"]) == (None, REASONS[Reason.USER_DATA].advice)


def test_findings_of_a_week_are_all_there_and_once():
    journal = Stats(NOON - 8 * 86400)
    for hour in reversed(range(24 * 7 - 1)):
        journal.add(finished(f"r{hour}", NOON + 5000 - 3600 * hour), timed(100), 1)
    found = {w: ask(journal, "summary", NOON + 5000, window=w)["findings"][0]["requests"] for w in ("1h", "24h", "7d")}
    assert found == {"1h": 1, "24h": 24, "7d": 24 * 7 - 1}


def test_a_finding_says_the_money_where_there_is_a_price():
    journal = Stats(NOON - 600, price=ComputePrice(2.0, "EUR"))
    journal.add(finished(), timed(1000), 25)  # 25 GPU seconds in 600 seconds: an hour a day
    (found,) = ask(journal, "summary")["findings"]
    assert found["sentence"].endswith("costs 1.0 GPU hours (2.00 EUR) a day.")
    assert found["money_per_day"] == 2.0


def test_less_than_a_minute_is_not_drawn_out_to_a_day():
    journal = Stats(NOON - 59)
    journal.add(finished(), timed(1000), 1)
    (found,) = ask(journal, "summary")["findings"]
    assert found["sentence"] == "The time in messages[0].content, line 2 (web) cost 1.0 GPU seconds in 59 s."
    assert found["gpu_seconds_per_day"] is None
    (later,) = ask(journal, "summary", NOON + 1)["findings"]
    assert later["gpu_seconds_per_day"] == pytest.approx(1440)


def test_a_day_is_reckoned_from_what_the_window_covers_not_from_its_name():
    journal = Stats(NOON - 600)
    journal.add(finished(), timed(1000), 1)
    for window in ("15m", "1h", "24h", "7d"):
        (found,) = ask(journal, "summary", window=window)["findings"]
        assert found["gpu_seconds_per_day"] == pytest.approx(144)


def test_places_and_clients_are_distinguished():
    journal = Stats(NOON - 600)
    journal.add(finished("a", source="web"), timed(100), 1)
    journal.add(finished("b", source="mobile"), timed(300), 1)
    journal.add(finished("c", source="web"), timed(200, line=9), 1)
    journal.add(finished("d", source="web"), timed(50, path="tools[0].function.description", line=1), 1)
    found = ask(journal, "summary")["findings"]
    assert [each["example"] for each in found] == ["b", "c", "a", "d"]
    assert [each["example"] for each in ask(journal, "summary", source="mobile")["findings"]] == ["b"]


def test_one_fault_in_many_turns_is_one_finding():
    journal = Stats(NOON - 600)
    for turn in range(6):
        edited = difference(
            Reason.HISTORY_EDITED, detail="edited", path=f"messages[{turn * 2}].content", line=turn, said="Edited."
        )
        explained = explanation(0, {Reason.HISTORY_EDITED: 100}, difference=edited)
        journal.add(finished(f"r{turn}"), explained, 1)
    (found,) = ask(journal, "summary")["findings"]
    assert (found["requests"], found["path"], found["line"]) == (6, "messages[…].content", 0)


def test_what_cannot_be_fixed_is_no_finding():
    journal = Stats(NOON - 600)
    for number, reason in enumerate(Reason):
        journal.add(finished(f"r{number}"), explanation(0, {reason: 100}), 1)
    found = {each["reason"] for window in ("1h",) for each in ask(journal, "summary", window=window)["findings"]}
    mendable = {reason for reason, text in REASONS.items() if text.remedy is not Remedy.NONE}
    assert found <= mendable
    assert len(found) == 20


def test_a_reason_without_a_place_is_reported_by_its_title():
    journal = Stats(NOON - 3600)
    journal.add(finished(), explanation(0, {Reason.EVICTED: 1000}), 1)
    (found,) = ask(journal, "summary")["findings"]
    assert found["sentence"].startswith("“Evicted” (web) costs ")
    assert found["said"] == REASONS[Reason.EVICTED].meaning


def test_the_difference_is_the_cause_only_of_its_own_reason():
    journal = Stats(NOON - 600)
    missed = {Reason.EVICTED: 100, Reason.DYNAMIC_TIME: 50}
    journal.add(finished(), explanation(0, missed, difference=difference()), 1)
    places = {each["reason"]: each["path"] for each in ask(journal, "summary")["findings"]}
    assert places == {"evicted": "", "dynamic_time": "messages[0].content"}


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 500), st.integers(0, 899)), min_size=1, max_size=60))
def test_the_costliest_come_first_with_all_their_tokens(requests):
    journal = Stats(NOON - 3600)
    tokens: dict[int, int] = {}
    for number, (line, lost, age) in enumerate(sorted(requests, key=lambda each: -each[2])):
        journal.add(finished(f"r{number}", NOON - age), timed(lost, line=line + 1), 1)
        tokens[line + 1] = tokens.get(line + 1, 0) + lost
    found = ask(journal, "summary", window="1h")["findings"]
    assert len(found) == min(len(tokens), 20)
    assert [each["tokens"] for each in found] == sorted(tokens.values(), reverse=True)[:20]
    assert all(each["tokens"] == tokens[each["line"]] for each in found)


def test_what_comes_late_is_added_to_its_finding():
    journal = Stats(NOON - 3600)
    for at in (NOON, NOON + 7200, NOON + 1, NOON + 7201):
        journal.add(finished(str(at), at), timed(100), 1)
    (found,) = ask(journal, "summary", NOON + 7210, window="24h")["findings"]
    assert (found["requests"], found["tokens"]) == (4, 400)


def test_the_largest_stay_when_there_are_too_many_to_keep():
    journal = Stats(NOON - 3600, StatsLimits(findings=20))
    for number in range(80):
        journal.add(finished(f"r{number}", NOON + number / 10), timed(1 + number, line=number + 1), 1)
    journal.add(finished("next", NOON + 7200), timed(5, line=999), 1)
    found = ask(journal, "summary", NOON + 7200, window="24h")["findings"]
    assert [each["line"] for each in found] == list(range(80, 60, -1))


APPLIED = tuple(RuleMode.APPLY if rule is RuleName.DYNAMIC_SUFFIX else RuleMode.OBSERVE for rule in RuleName)


@pytest.mark.parametrize("reason", [Reason.DYNAMIC_TIME, Reason.DYNAMIC_ID, Reason.USER_DATA])
def test_a_rule_is_advised_where_it_can_help_and_is_not_on_yet(reason):
    def advised(role, modes=()):
        journal = Stats(NOON - 600)
        explained = explanation(640, {reason: 360}, difference=difference(reason, detail="other", role=role))
        journal.add(finished(canonical=Canonicalized(modes=modes)), explained, 1)
        (found,) = ask(journal, "summary")["findings"]
        (missed,) = ask(journal, "request", id="r1")["missed"]
        assert missed["advice"] == found["advice"]
        return found["advice"]

    assert "{dynamic-suffix: apply}" in advised("system")
    assert "dynamic-suffix" not in advised("user")
    assert "dynamic-suffix" not in advised("prompt")
    assert "dynamic-suffix" not in advised("user", APPLIED)
    on = advised("system", APPLIED)
    assert "apply" not in on
    assert "declare the place as a slot" in on
