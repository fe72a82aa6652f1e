"""Messages of the system and the developer come to the front, and become one where that is wanted."""

import pytest

from gateway.canon.rule import RuleContext, applied
from gateway.canon.rules.role_order import RoleOrder
from gateway.config.canon_settings import RoleOrderSettings
from gateway.core.request import Endpoint

GIVEN = RuleContext(now=0)


def chat(*turns):
    """A chat from ``("user", "text")`` pairs, or whole messages."""
    return {"messages": [turn if isinstance(turn, dict) else {"role": turn[0], "content": turn[1]} for turn in turns]}


def ordered(fields, **settings):
    rule = RoleOrder(RoleOrderSettings(**settings))
    found = rule.detect(fields, GIVEN)
    after = applied(fields, found.edits)
    assert rule.detect(after, GIVEN).edits == ()
    return after


def contents(fields):
    return [(message["role"], message["content"]) for message in fields["messages"]]


@pytest.mark.parametrize("merge", ["none", "same_role", "all"])
@pytest.mark.parametrize("later", [False, True])
def test_a_conversation_in_order_is_left_alone(merge, later):
    fields = chat(("system", "a"), ("user", "b"), ("assistant", "c"), ("user", "d"))
    assert ordered(fields, merge=merge, later=later) is fields


def test_instructions_come_to_the_front_in_their_order():
    fields = chat(("user", "1"), ("system", "2"), ("user", "3"), ("developer", "4"), ("assistant", "5"), ("user", "6"))
    after = ordered(fields)
    assert "".join(text for _, text in contents(after)) == "241356"
    assert after["messages"][0] is fields["messages"][1]


def test_what_comes_behind_the_first_answer_stays_unless_it_is_wanted():
    fields = chat(("system", "1"), ("user", "2"), ("assistant", "3"), ("system", "4"), ("user", "5"))
    assert ordered(fields) is fields
    assert "".join(text for _, text in contents(ordered(fields, later=True))) == "14235"


def test_a_tool_call_keeps_its_result():
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "42"}
    fields = chat(("user", "a"), call, result, ("system", "b"), ("user", "c"))
    after = ordered(fields, later=True)
    assert [message["role"] for message in after["messages"]] == ["system", "user", "assistant", "tool", "user"]
    assert after["messages"][2] is call
    assert after["messages"][3] is result


def test_neighbours_of_one_role_become_one():
    fields = chat(
        ("system", "a"), ("system", "b"), ("developer", "c"), ("developer", "d"), ("system", "e"), ("user", "u")
    )
    assert contents(ordered(fields, merge="same_role")) == [
        ("system", "a\n\nb"),
        ("developer", "c\n\nd"),
        ("system", "e"),
        ("user", "u"),
    ]


def test_all_become_one_under_the_role_of_the_first():
    fields = chat(("developer", "a"), ("user", "u"), ("system", "b"), ("system", "c"))
    assert contents(ordered(fields, merge="all")) == [("developer", "a\n\nb\n\nc"), ("user", "u")]


def test_users_are_never_joined():
    fields = chat(("user", "a"), ("user", "b"))
    assert ordered(fields, merge="all") is fields


@pytest.mark.parametrize(
    "odd",
    [
        {"role": "system", "content": "b", "name": "policy"},
        {"role": "system", "content": "b", "cache_control": {"type": "ephemeral"}},
        {"role": "system", "content": [{"type": "text", "text": "b"}]},
        {"role": "system", "content": None},
        {"role": "system"},
        {"role": "system", "content": ""},
        {"role": "system", "content": " \n\u200b "},
    ],
)
def test_a_message_that_says_more_than_a_text_stays_as_it_is(odd):
    a, c = {"role": "system", "content": "a"}, {"role": "system", "content": "c"}
    fields = chat(a, odd, c, ("system", "d"), ("user", "u"))
    after = ordered(fields, merge="all")
    assert after["messages"] == [a, odd, {"role": "system", "content": "c\n\nd"}, {"role": "user", "content": "u"}]
    assert after["messages"][1] is odd


@pytest.mark.parametrize(
    ("above", "below", "joined"),
    [
        ("a\n", "b", "a\n\nb"),
        ("a", "\nb", "a\n\nb"),
        ("a\n", "\nb", "a\n\nb"),
        ("a\n\n\n", "b", "a\n\n\nb"),
        ("a ", " b", "a \n\n b"),
        ("```\ncode\n```", "b", "```\ncode\n```\n\nb"),
    ],
)
def test_one_empty_line_stands_between(above, below, joined):
    assert contents(ordered(chat(("system", above), ("system", below)), merge="all")) == [("system", joined)]


@pytest.mark.parametrize(
    ("open_", "rest"), [("```\ncode", "text"), ("~~~~\n~~~\ncode", "text"), ("a <pre> b", "c </pre>")]
)
def test_unclosed_code_does_not_extend_into_other_texts(open_, rest):
    fields = chat(("system", "a"), ("system", open_), ("system", rest), ("user", "u"))
    after = ordered(fields, merge="all")
    assert contents(after) == [("system", f"a\n\n{open_}"), ("system", rest), ("user", "u")]


def test_what_follows_such_a_text_is_joined_again():
    fields = chat(("system", "a <pre> b"), ("system", "c </pre>"), ("system", "d"), ("user", "u"))
    assert contents(ordered(fields, merge="all")) == [
        ("system", "a <pre> b"),
        ("system", "c </pre>\n\nd"),
        ("user", "u"),
    ]


def test_code_that_is_closed_is_joined():
    texts = ["a", "b", "c", "d", "```\n1\n```", "e", "```\n2\n```\n", "f"]
    after = ordered(chat(*(("system", text) for text in texts)), merge="all")
    assert contents(after) == [("system", "a\n\nb\n\nc\n\nd\n\n```\n1\n```\n\ne\n\n```\n2\n```\n\nf")]


def test_what_is_said_counts_messages_and_quotes_nothing():
    fields = chat(("user", "secret"), ("system", "hidden"), ("system", "hidden"), ("system", "hidden"))
    (edit,) = RoleOrder(RoleOrderSettings(merge="all")).detect(fields, GIVEN).edits
    assert (edit.what, edit.place) == ("moved_and_joined", "messages")
    assert edit.summary == (
        "3 messages of the system or developer put in front of the conversation. 2 messages joined to the one in front."
    )
    (edit,) = RoleOrder(RoleOrderSettings()).detect(chat(("user", "u"), ("system", "s")), GIVEN).edits
    assert (edit.what, edit.summary) == (
        "moved",
        "One message of the system or developer put in front of the conversation.",
    )


def test_a_completion_has_no_messages():
    fields = {"prompt": "x", **chat(("user", "u"), ("system", "s"))}
    assert not RoleOrder(RoleOrderSettings()).detect(fields, RuleContext(now=0, endpoint=Endpoint.COMPLETIONS)).edits
    assert ordered({"prompt": "x"}) == {"prompt": "x"}
