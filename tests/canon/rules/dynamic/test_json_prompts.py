"""A system prompt that is one JSON object: its times move, and what stays is valid JSON."""

import json

import pytest
from moving import NOW, left, moved

from gateway.canon.rules.dynamic.near_misses import near_misses
from gateway.canon.rules.dynamic.not_taken import NotTaken
from gateway.config.canon_settings import DynamicSuffixSettings

TIME = "2026-11-21T10:02:00Z"
RULES = {"rules": "You are Eva. Be brief, and be kind."}


@pytest.mark.parametrize(
    ("prompt", "values"),
    [
        ({"now": TIME} | RULES, [TIME]),
        (RULES | {"now": TIME}, [TIME]),
        ({"role": "support", "now": TIME} | RULES, [TIME]),
        ({"now": TIME}, [TIME]),
        ({"now": 1795255320} | RULES, ["1795255320"]),
        ({"now": 1795255320.25, "timezone": "UTC"} | RULES, ["1795255320.25"]),
        ({"current_time": "10:02", "today": "2026-11-21"} | RULES | {"now": TIME}, ["10:02", "2026-11-21", TIME]),
        ({"context": {"currentTime": TIME, "tz": "UTC"}} | RULES, [TIME]),
        ({"app": {"env": {"clock": {"now": TIME}}}} | RULES, [TIME]),
        ({"date": "2026-11-21", "time": "10:02"} | RULES, ["2026-11-21", "10:02"]),
        ({"company": "ACME", "answers": {"format": "markdown"}, "now": TIME}, [TIME]),
        ({"rules": 'Say "now": "2026-11-21" \\', "now": TIME}, [TIME]),
        ({"now": TIME, "log": [{"now": "2026-11-20T09:00:00Z"}]} | RULES, [TIME]),
        ({"request_id": 123456789, "session_id": "8f7a6b5c4d"} | RULES, ["123456789", "8f7a6b5c4d"]),
    ],
)
@pytest.mark.parametrize("written", [{}, {"indent": 2}, {"separators": (",", ":")}], ids=["line", "lines", "compact"])
def test_values_move_and_valid_json_stays(prompt, values, written):
    text = json.dumps(prompt, **written)
    assert moved(text) == values
    rest = json.loads(left(text))
    assert list(rest) == list(prompt)
    assert {name: rest[name] for name in ("rules", "log") if name in rest}.items() <= prompt.items()
    # Another time leaves the same text.
    assert left(text.replace("10:02:00", "11:07:31").replace("1795255320", "1795259251")) == left(text)


def test_escapes_that_json_dumps_writes_are_read():
    text = json.dumps({"現在時刻": "2026年11月21日 10:02", "rules": "短く。"})
    assert moved(text) == [r"2026\u5e7411\u670821\u65e5 10:02"]
    assert json.loads(left(text)) == {"現在時刻": "[context 1]", "rules": "短く。"}


def test_the_mark_of_a_number_is_a_text_in_any_object():
    assert json.loads(left('{"current_time": 1795255320, "timezone": "UTC"}\nBe kind.').splitlines()[0])


STAYS = [
    (json.dumps({"log": [{"now": TIME}, {"now": TIME}]} | RULES), NotTaken.IN_DATA),
    (json.dumps({"a": {"now": TIME}, "b": {"now": TIME}} | RULES), NotTaken.IN_DATA),
    (json.dumps([{"now": TIME} | RULES]), NotTaken.IN_DATA),
    (json.dumps({"data": {"now": TIME}} | RULES), NotTaken.IN_DATA),
    (json.dumps({"examples": {"current_time": TIME}} | RULES), NotTaken.HYPOTHETICAL),
    (json.dumps({"date": TIME, "order": 12, "total": 4}), NotTaken.IN_DATA),
    (json.dumps({"user": {"date": TIME}} | RULES), NotTaken.IN_DATA),
    (json.dumps({"order": 12, "now": "2020-03-12T10:02:00Z"}), NotTaken.FAR),
    (json.dumps({"today": "2020-03-12"} | RULES), NotTaken.FAR),
    (json.dumps({"times": [TIME]} | RULES), NotTaken.NO_LABEL),
    (json.dumps({"rules": f"The current time is {TIME}. Be kind."}), NotTaken.IN_DATA),
    (f'{{"now": "{TIME}", "rules": "Be kind.",}}', NotTaken.IN_DATA),
    (f'{{"now": "{TIME}", "rules": "Be kind."', NotTaken.IN_DATA),
    (f"You are Eva.\n{json.dumps({'now': TIME, 'total': 4})}", NotTaken.IN_DATA),
    (f"{{now: {TIME}, rules: be kind}}", NotTaken.IN_SENTENCE),
]


@pytest.mark.parametrize(("text", "reason"), STAYS)
def test_what_may_be_data_stays_and_the_report_says_why(text, reason):
    assert moved(text) == []
    assert near_misses(text, NOW, DynamicSuffixSettings())[0].reason is reason


def test_a_moved_value_is_no_near_miss():
    text = json.dumps({"now": TIME} | RULES)
    at = text.index(TIME)
    assert near_misses(text, NOW, DynamicSuffixSettings(), [(at, at + len(TIME))]) == []


def test_a_very_long_prompt_in_one_line():
    text = json.dumps({"rules": 'Say "x": 1. ' * 40_000, "now": TIME})
    assert moved(text) == [TIME]


def test_more_members_than_a_prompt_has_are_data():
    assert moved(json.dumps({"now": TIME} | {f"key {number}": number for number in range(5000)})) == []


@pytest.mark.parametrize("text", [r"\ue00099", r"\uE0000", r"\ue000-1", "\ue0000"])
def test_no_text_is_taken_for_a_mark_of_the_search(text):
    assert moved(f'{{"a": "{text}", "now": "{TIME}", "rules": "Be kind."}}') == []
