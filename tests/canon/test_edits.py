"""Changes to a prompt, made on a copy that shares everything else."""

import pytest

from gateway.canon.rule import REMOVED, Edit, applied
from gateway.core.canonical import RuleName

RULE = RuleName.WHITESPACE


def fields():
    return {
        "messages": [
            {"role": "system", "content": "one two three", "cache_control": {"type": "ephemeral"}},
            {"role": "user", "content": [{"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {}}]},
        ],
        "tools": [{"a": 1}, {"b": 2}],
    }


def piece(path, start, before, after):
    return Edit(RULE, "x", path, before, after, start)


def test_pieces_of_one_text_are_replaced_in_any_order():
    path = ("messages", 0, "content")
    found = applied(fields(), [piece(path, 8, "three", "3"), piece(path, 0, "one", "1"), piece(path, 13, "", "!")])
    assert found["messages"][0]["content"] == "1 two 3!"


def test_what_is_given_is_not_changed_and_the_rest_is_shared():
    before = fields()
    found = applied(before, [piece(("messages", 1, "content", 0, "text"), 0, "h", "H")])
    assert before == fields()
    assert found["messages"][1]["content"][0]["text"] == "Hello"
    assert found["messages"][0] is before["messages"][0]
    assert found["messages"][1]["content"][1] is before["messages"][1]["content"][1]
    assert found["tools"] is before["tools"]


def test_a_whole_value_is_replaced():
    tools = [{"b": 2}, {"a": 1}]
    assert applied(fields(), [Edit(RULE, "x", ("tools",), None, tools)])["tools"] is tools


def test_a_member_is_taken_out():
    found = applied(fields(), [Edit(RULE, "x", ("messages", 0, "cache_control"), None, REMOVED)])
    assert found["messages"][0] == {"role": "system", "content": "one two three"}


def test_nothing_to_do_gives_the_same_object():
    before = fields()
    assert applied(before, []) is before


def test_a_path_that_leads_nowhere_is_an_error():
    with pytest.raises(IndexError):
        applied(fields(), [piece(("messages", 7, "content"), 0, "x", "y")])


def test_an_edit_never_shows_its_texts_in_its_repr():
    assert "secret" not in repr(piece(("messages", 0, "content"), 0, "secret", "more secret"))


def test_a_place_is_reported_in_the_dotted_form_of_the_api():
    assert piece(("messages", 1, "content", 0, "text"), 0, "", "").place == "messages[1].content[0].text"
