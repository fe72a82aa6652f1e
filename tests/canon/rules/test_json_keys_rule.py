"""Keys of tools and of tool calls' arguments come in one order; what they hold stays what it is."""

import json
import random

import orjson
import pytest

from gateway.canon.rewrite import rewritten
from gateway.canon.rule import RuleContext, applied
from gateway.canon.rules.json_keys import JsonKeys
from gateway.core.request import Endpoint

GIVEN = RuleContext(now=0)
RULE = JsonKeys()

WELL_WRITTEN = {
    "type": "function",
    "function": {
        "name": "book",
        "description": "Books a room.",
        "parameters": {
            "$schema": "x",
            "type": "object",
            "title": "Booking",
            "description": "What is booked.",
            "properties": {
                "description": {"type": "string"},
                "name": {"type": "string", "enum": ["b", "a"], "default": {"z": 1, "a": [{"y": 1, "x": 2}]}},
                "type": {"$ref": "#/$defs/kind"},
            },
            "required": ["type", "name"],
            "additionalProperties": False,
            "$defs": {
                "kind": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}},
                "type": {"anyOf": [{"type": "array", "items": {"type": "null", "title": "None"}}, {"not": True}]},
            },
        },
        "strict": True,
        "extra": {"b": 1, "name": 2},
    },
    "cache_control": {"ttl": "5m", "type": "ephemeral"},
}
WELL_WRITTEN["function"]["parameters"]["properties"]["name"]["default"] = {"a": [{"x": 2, "y": 1}], "z": 1}


def shuffled(value, chance):
    if isinstance(value, dict):
        names = chance.sample(list(value), len(value))
        return {name: shuffled(value[name], chance) for name in names}
    return [shuffled(item, chance) for item in value] if isinstance(value, list) else value


def after(fields):
    found = RULE.detect(fields, GIVEN)
    done = applied(fields, found.edits)
    assert RULE.detect(done, GIVEN).edits == ()
    return done


def called(arguments, **more):
    """A conversation in which a tool was called with some arguments."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call], **more}]}


def arguments_after(arguments):
    return after(called(arguments))["messages"][1]["tool_calls"][0]["function"]["arguments"]


def test_a_well_written_tool_is_left_alone():
    fields = {"messages": [], "tools": [WELL_WRITTEN]}
    assert after(fields) is fields


@pytest.mark.parametrize("seed", range(20))
def test_every_order_of_keys_becomes_the_same(seed):
    tool = shuffled(WELL_WRITTEN, random.Random(seed))
    assert tool == WELL_WRITTEN
    done = after({"messages": [], "tools": [tool]})
    assert json.dumps(done["tools"]) == json.dumps([WELL_WRITTEN])


def test_tools_are_sorted_however_often_they_come():
    tools = [{"function": {"name": "b"}, "type": "function"}]
    rule = JsonKeys()
    assert [len(rule.detect({"tools": tools}, GIVEN).edits) for _ in range(3)] == [1, 1, 1]
    assert [len(rule.detect({"tools": [WELL_WRITTEN]}, GIVEN).edits) for _ in range(3)] == [0, 0, 0]
    assert len(rule.detect({"tools": [shuffled(WELL_WRITTEN, random.Random(1))]}, GIVEN).edits) == 1


def test_numbers_beyond_64_bits_are_no_hindrance():
    tools = [{"function": {"name": "b", "n": 10**30}, "type": "function"}]
    assert list(after({"tools": tools})["tools"][0]) == ["type", "function"]


def test_flat_tools_are_tools_as_well():
    flat = {"input_schema": {"properties": {"b": {}, "a": {}}, "type": "object"}, "description": "d", "name": "n"}
    assert json.dumps(after({"tools": [flat]})["tools"][0]) == json.dumps(
        {"name": "n", "description": "d", "input_schema": {"type": "object", "properties": {"a": {}, "b": {}}}}
    )


def test_only_the_tool_that_is_not_in_order_is_touched():
    odd = {"function": {"name": "b"}, "type": "function"}
    fields = {"messages": [], "tools": [WELL_WRITTEN, odd, 7, None, "x", [1]]}
    done = after(fields)
    assert all(
        one is other for n, (one, other) in enumerate(zip(done["tools"], fields["tools"], strict=True)) if n != 1
    )
    assert list(done["tools"][1]) == ["type", "function"]


def test_numbers_in_tools_are_written_as_they_were():
    body = b'{"messages":[],"tools":[{"function":{"name":"f","x":1e5,"description":"caf\\u00e9"},"type":"function"}]}'
    fields = orjson.loads(body)
    assert rewritten(body, fields, after(fields)) == (
        b'{"messages":[],"tools":[{"type":"function","function":{"name":"f","description":"caf\\u00e9","x":1e5}}]}'
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"b":1,"a":2}', '{"a":2,"b":1}'),
        ('{"b": 1, "a": 2}', '{"a": 2, "b": 1}'),
        ('{"b": {"d": 1, "c": [{"f": 1, "e": 2}]}}', '{"b": {"c": [{"e": 2, "f": 1}], "d": 1}}'),
        ('{"b":1.50,"a":1e5,"A":-0,"c":100000000000000000000}', '{"A":-0,"a":1e5,"b":1.50,"c":100000000000000000000}'),
        ('{"\\u00e9":"\\u00e9","e":"é"}', '{"e":"é","\\u00e9":"\\u00e9"}'),
        (' { "b" : "}" , "a" : "\\"" } ', ' { "a" : "\\"" , "b" : "}" } '),
    ],
)
def test_arguments_are_sorted_and_stay_written_as_they_were(arguments, expected):
    assert arguments_after(arguments) == expected
    assert json.loads(expected) == json.loads(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        *['{"a": 1,   "b":2}', "{}", "", " ", '{"b":1,"a":2', "[]", '[{"b":1,"a":2}]', '"b"', "7", "null"],
        *['{"b":1,"a":2,"b":3}', '{"b":{"x":1,"x":2},"a":2}', '{"b":NaN,"a":1}', '{"b":"\\ud800","a":1}', '{"b":1}{'],
        *["\ud800", '{"b":"\ud800","a":1}', '{"b":' + "[" * 5000 + "]" * 5000 + ',"a":1}', "{" * 100_000],
        *[None, 7, {"b": 1, "a": 2}, [], True],
    ],
)
def test_ordered_and_unclear_json_is_left_alone(arguments):
    fields = called(arguments)
    assert after(fields) is fields


def test_very_deep_arguments_are_sorted_as_far_as_it_goes():
    deep = '{"b":' * 500 + "1" + ',"a":2}' * 500
    done = arguments_after(deep)
    assert json.loads(done) == json.loads(deep)
    assert done.startswith('{"a":2,"b":{"a":2,"b":')


@pytest.mark.parametrize(
    "calls", [None, 7, "x", {}, [], [None, 7, {}, {"function": None}, {"function": {"name": "f"}}]]
)
def test_odd_tool_calls_are_left_alone(calls):
    fields = {"messages": [{"role": "assistant", "tool_calls": calls}]}
    assert after(fields) is fields


def test_only_what_an_assistant_called_is_looked_at():
    fields = called('{"b":1,"a":2}', role="user")
    assert after(fields) is fields


def test_the_rest_of_a_message_stays_the_same():
    fields = called('{"b":1,"a":2}', content="said", reasoning_content="thought", tool_choice=[])
    done = after(fields)
    before, now = fields["messages"][1], done["messages"][1]
    assert all(now[name] is before[name] for name in before if name != "tool_calls")
    assert done["messages"][0] is fields["messages"][0]


def test_old_functions_and_completions_are_left_alone():
    fields = {"messages": [], "functions": [{"parameters": {}, "name": "b"}]}
    assert after(fields) is fields
    given = RuleContext(now=0, endpoint=Endpoint.COMPLETIONS)
    assert RULE.detect({"prompt": "x", "tools": [{"function": {}, "type": "x"}]}, given).edits == ()


def test_what_is_said_names_the_tool():
    fields = {
        **called('{"b":"secret","a":2}'),
        "tools": [{"function": {"name": "g"}, "type": "function"}, {"z": 1, "a": 2}],
    }
    edits = RULE.detect(fields, GIVEN).edits
    assert [(edit.what, edit.place, edit.summary) for edit in edits] == [
        ("tool_sorted", "tools[0]", "The keys of the tool g are put in order."),
        ("tool_sorted", "tools[1]", "The keys of the tool (no name) are put in order."),
        (
            "arguments_sorted",
            "messages[1].tool_calls[0].function.arguments",
            "The keys of the arguments of a call of f are put in order.",
        ),
    ]


def test_arguments_are_sorted_in_every_turn_and_for_every_tenant_alike():
    long = json.dumps({"b": "x" * 1000, "a": 1})
    for arguments in ('{"b": 1, "a": 2}', '{"a": 1, "b": 2}', long, '{"b": NaN, "a": 1}', "[3, 1]", "no JSON"):
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        fields = {"messages": [{"role": "assistant", "content": None, "tool_calls": [call, call]}]}
        found = [JsonKeys().detect(fields, RuleContext(now=0, tenant=tenant)).edits for tenant in ("a", "b", "a")]
        assert found[0] == found[1] == found[2]
        assert len(found[0]) == (2 if arguments in ('{"b": 1, "a": 2}', long) else 0)
