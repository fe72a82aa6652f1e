"""The rule ``system-order``."""

import itertools

from hypothesis import given
from requests_at_random import chats

from gateway.canon.rule import NOTHING, RuleContext, applied
from gateway.canon.rulebook import RULES, rulebook
from gateway.canon.rules.system_order import SystemOrder
from gateway.config.canon_settings import CanonSettings, RoleOrderSettings
from gateway.core.request import Endpoint

GIVEN = RuleContext(now=0.0)
RULE = SystemOrder(RoleOrderSettings())
QUESTION = {"role": "user", "content": "Hi"}


def system(text):
    return {"role": "system", "content": text}


def sorted_(*messages, later=False):
    fields = {"messages": list(messages)}
    return applied(fields, SystemOrder(RoleOrderSettings(later=later)).detect(fields, GIVEN).edits)["messages"]


def test_every_order_of_system_messages_becomes_the_same():
    orders = itertools.permutations([system("Be kind."), system("You are Eva."), system("Answer in German.")])
    assert {tuple(each["content"] for each in sorted_(*order, QUESTION)) for order in orders} == {
        ("Answer in German.", "Be kind.", "You are Eva.", "Hi")
    }


def test_the_messages_are_the_same_objects():
    one, other = system("b"), system("a")
    after = sorted_(one, other, QUESTION)
    assert after[0] is other
    assert after[1] is one
    assert after[2] is QUESTION


def test_roles_keep_their_places():
    developer = {"role": "developer", "content": "a"}
    assert sorted_(system("c"), developer, system("b")) == [system("c"), developer, system("b")]
    assert sorted_(system("c"), system("b"), developer) == [system("b"), system("c"), developer]


def test_messages_of_users_between_them_stay_where_they_are():
    assert sorted_(system("b"), QUESTION, system("a")) == [system("a"), QUESTION, system("b")]


def test_what_was_sent_behind_the_first_answer_stays_unless_it_moves_to_the_front():
    chat = [system("b"), QUESTION, {"role": "assistant", "content": "Yes?"}, system("a"), QUESTION]
    assert sorted_(*chat) == chat
    assert [each["content"] for each in sorted_(*chat, later=True)] == ["a", "Hi", "Yes?", "b", "Hi"]


def test_messages_that_are_more_than_text_come_last():
    named, parts = {"role": "system", "name": "x", "content": "a"}, {"role": "system", "content": [{"type": "text"}]}
    assert sorted_(named, parts, system("b")) == [system("b"), named, parts]


def test_one_message_and_completions_stay():
    assert RULE.detect({"messages": [system("b"), QUESTION]}, GIVEN) == NOTHING
    assert RULE.detect({"prompt": "b"}, RuleContext(now=0.0, endpoint=Endpoint.COMPLETIONS)) == NOTHING


def test_the_edit_says_how_many_moved():
    (edit,) = RULE.detect({"messages": [system("b"), system("a"), system("c")]}, GIVEN).edits
    assert (edit.what, edit.path) == ("sorted", ("messages",))
    assert edit.summary.startswith("2 messages")


@given(fields=chats())
def test_any_request(fields):
    edits = RULE.detect(fields, GIVEN).edits
    after = applied(fields, edits) if edits else fields
    assert not RULE.detect(after, GIVEN).edits
    assert sorted(map(id, after["messages"])) == sorted(map(id, fields["messages"]))


def test_messages_that_role_order_cannot_join_are_not_sorted_a_second_time():
    settings = CanonSettings(role_order=RoleOrderSettings(merge="all"))
    for third in ("", "A rule.", "```\nno end"):
        for text in ("Be brief.", "```\nx"):
            developer = {"role": "developer", "content": text}
            fields = {"messages": [system("Be brief."), developer, system(third), QUESTION]}
            once = rulebook(settings).canonical(fields, RULES, GIVEN)
            assert not rulebook(settings).canonical(once.fields, RULES, GIVEN).edits
