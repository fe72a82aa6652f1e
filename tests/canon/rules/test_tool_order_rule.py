"""Tools come in one order for any order they were sent in."""

import itertools

import pytest

from gateway.canon.rule import RuleContext, applied
from gateway.canon.rules.tool_order import ToolOrder
from gateway.core.request import Endpoint

GIVEN = RuleContext(now=0)
RULE = ToolOrder()


def function(name, **more):
    return {"type": "function", "function": {"name": name, **more}}


def ordered(tools):
    fields = {"messages": [], "tools": tools, "tool_choice": {"type": "function", "function": {"name": "b"}}}
    after = applied(fields, RULE.detect(fields, GIVEN).edits)
    assert after["tool_choice"] is fields["tool_choice"]
    assert RULE.detect(after, GIVEN).edits == ()
    return after["tools"]


def test_every_order_becomes_the_same():
    tools = [function("a"), function("b"), function("c"), {"type": "retrieval", "name": "a"}]
    for order in itertools.permutations(tools):
        after = ordered(list(order))
        assert after == tools
        assert {id(tool) for tool in after} == {id(tool) for tool in tools}


def test_tools_in_order_are_left_alone():
    tools = [function("a"), function("b")]
    assert ordered(tools) is tools


def test_a_name_given_twice_keeps_the_order_it_was_sent_in():
    first, second = function("b", description="first"), function("b", description="second")
    assert ordered([first, second, function("a")]) == [function("a"), first, second]
    assert ordered([second, first, function("a")]) == [function("a"), second, first]


def test_what_has_no_name_comes_last_in_the_order_it_was_sent_in():
    odd = [{"type": "web_search"}, 7, None, "b", [], {"function": "x"}, {"function": {"name": 3}}, {"name": None}, True]
    assert ordered([*odd[:4], function("b"), *odd[4:], function("a")]) == [function("a"), function("b"), *odd]


def test_a_type_that_is_no_text_is_none():
    assert ordered([{"type": 7, "name": "b"}, {"name": "a"}]) == [{"name": "a"}, {"type": 7, "name": "b"}]


@pytest.mark.parametrize("tools", [None, "tools", 7, {}, {"b": 1}, [], [1]])
def test_what_is_no_list_of_tools_is_left_alone(tools):
    assert ordered(tools) is tools


def test_old_functions_are_left_alone():
    fields = {"messages": [], "functions": [{"name": "b"}, {"name": "a"}]}
    assert RULE.detect(fields, GIVEN).edits == ()


def test_a_completion_has_no_tools():
    given = RuleContext(now=0, endpoint=Endpoint.COMPLETIONS)
    assert RULE.detect({"prompt": "x", "tools": [function("b"), function("a")]}, given).edits == ()


def test_what_is_said_names_the_tools_but_no_end_of_them():
    (edit,) = RULE.detect({"tools": [function("b"), {}, function("a")]}, GIVEN).edits
    assert (edit.what, edit.place) == ("sorted", "tools")
    assert edit.summary == "The tools are put in the order of their names: a, b."
    (edit,) = RULE.detect({"tools": [function("x" * 10_000), *(function(f"t{n}") for n in range(99))]}, GIVEN).edits
    assert edit.summary.endswith(" and 88 more.")
    (edit,) = RULE.detect({"tools": [function("x" * 10_000), function("a")]}, GIVEN).edits
    assert len(edit.summary) < 200
