"""The rule ``json-text``."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from requests_at_random import chats, completions
from text_rule_checks import check_idempotent, check_others_untouched, edits_of, text_after

from gateway.canon.rules.json_text import JsonText

RULE = JsonText()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"b":1,"a":2}', '{"a": 2, "b": 1}'),
        ('You are Eva.\n{"b": {"d": [1,2], "c": null}, "a": 2}\nBe kind.',
         'You are Eva.\n{"a": 2, "b": {"c": null, "d": [1, 2]}}\nBe kind.'),
        ('Context: {"b":1}', 'Context: {"b": 1}'),
        ('Here it is:\n\n{\n  "b": 1,\n  "a": [\n    2\n  ]\n}\n\nGo on.',
         'Here it is:\n\n{"a": [2], "b": 1}\n\nGo on.'),
        ('[{"b":1,"a":2},{"d":1,"c":2}]', '[{"a": 2, "b": 1}, {"c": 2, "d": 1}]'),
        ('{"b":1}\n{"a":1}', '{"b": 1}\n{"a": 1}'),
        (r'{"b":1.50e+3,"a":"\u00e9\n  x","0":12345678901234567890}',
         r'{"0": 12345678901234567890, "a": "\u00e9\n  x", "b": 1.50e+3}'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("role", ["system", "developer"])
def test_keys_are_sorted_and_the_spacing_is_one(text, expected, role):
    assert text_after(RULE, text, role) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "b": 2}',
        'Answer with {"b":1,"a":2} and nothing else.',
        '{"b":1,"a":2} is an object.',
        '```json\n{"b":1,"a":2}\n```',
        '{"b":1,"b":2}',
        '{"b":NaN}',
        "{b:1,a:2}",
        '{"b":1,',
        "[1]",
        "[Tea] is grown in Assam.",
        "[" * 3000,
        '{"a":' * 60 + "1" + "}" * 60,
    ],
)
def test_what_is_no_json_of_its_own_stays(text):
    assert text_after(RULE, text) == text


def test_users_texts_stay():
    for role in ("user", "assistant", "tool", ""):
        assert text_after(RULE, '{"b":1,"a":2}', role) == '{"b":1,"a":2}'


def test_codes():
    assert edits_of(RULE, 'x\n{"b":1,"a":2}') == [(2, '{"b":1,"a":2}', '{"a": 2, "b": 1}', "keys")]
    assert edits_of(RULE, '{"a":1}') == [(0, '{"a":1}', '{"a": 1}', "spacing")]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(value=st.dictionaries(st.text(max_size=3), VALUES, max_size=3), indent=st.sampled_from([None, 1]))
def test_the_value_stays_and_its_other_spellings_become_one(value, indent):
    texts = [
        json.dumps(each, indent=indent, separators=None if indent else (",", ":"))
        for each in (value, dict(reversed(value.items())))
    ]
    one, other = (text_after(RULE, f"You are Eva.\n{text}\nBe kind.") for text in texts)
    assert one == other
    assert json.loads(one.split("\n")[1]) == value


@given(fields=chats() | completions())
def test_any_request(fields):
    check_idempotent(RULE, fields)
    check_others_untouched(RULE, fields)


@pytest.mark.parametrize(
    "piece", ["[\n", "{\n", '{"a":\n', '["a",\n', '[{"a": 1},\n', '{"a":1}\n', '{"a"\n', '["\n', "1: [\n"]
)
def test_a_long_text_is_worked_through(piece):
    """Anything quadratic would take minutes here."""
    text = piece * (600_000 // len(piece))
    check_idempotent(RULE, {"messages": [{"role": "system", "content": text}]})
