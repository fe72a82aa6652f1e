"""Numbered placeholders: the same one for the same value within a conversation."""

import json

import pytest
from pydantic import ValidationError
from screening import SECRET, chat, parsed, request, screening, system

from gateway.canon.pii import placeholders
from gateway.config.personal_data_settings import PersonalDataSettings
from gateway.core.request import Endpoint

OTHER = "bob@example.com"
NUMBERED = {"where": "all", "placeholders": "numbered"}
RESTORING = NUMBERED | {"restore": True}


async def contents(screen, messages, **other):
    result = await screen.inspect(chat(messages, mode="mask", **other))
    assert parsed(result.body) == result.fields
    return [message["content"] for message in result.fields["messages"]]


async def test_values_are_numbered_by_kind_in_their_order():
    async with screening(**NUMBERED) as (screen, _):
        text = f"{SECRET} {OTHER} {SECRET} 4111111111111111"
        assert await contents(screen, system(text, f"{OTHER} 10.0.0.1")) == [
            "[email-1] [email-2] [email-1] [card-1]",
            "[email-2] [ipv4-1]",
        ]


async def test_turns_of_a_conversation_have_the_same_placeholders_so_that_its_prefix_is_reused():
    turns = [*system("Be kind.", f"I am {SECRET}."), {"role": "assistant", "content": f"Hello {SECRET}."}]
    turns.append({"role": "user", "content": f"Write to {OTHER} and {SECRET}."})
    async with screening(**NUMBERED) as (screen, _):
        first = await contents(screen, turns[:2])
        later = await contents(screen, turns)
    assert later[:2] == first
    assert later[2:] == ["Hello [email-1].", "Write to [email-2] and [email-1]."]
    async with screening(**NUMBERED) as (screen, _):  # another process
        assert await contents(screen, turns) == later


async def test_a_session_whose_middle_was_cut_keeps_its_numbers():
    async with screening(**NUMBERED) as (screen, _):
        opening = system("Be kind.", "Hello.")
        await contents(screen, [*opening, {"role": "assistant", "content": SECRET}], session="s-1")
        cut = [*opening, {"role": "user", "content": f"{OTHER} {SECRET}"}]
        assert (await contents(screen, cut, session="s-1"))[2] == "[email-2] [email-1]"
        for session in (None, "another"):
            assert (await contents(screen, cut, session=session))[2] == "[email-1] [email-2]"


async def test_conversations_of_other_users_that_begin_alike_change_no_number():
    async with screening(**NUMBERED) as (screen, _):
        opening = system("Be kind.", "Hi")
        mine = [*opening, {"role": "user", "content": SECRET}]
        first = await contents(screen, mine)
        for number in range(placeholders.MAX_VALUES + 1):
            await contents(screen, [*opening, {"role": "user", "content": f"a{number}@example.com"}])
        later = await contents(screen, [*mine, {"role": "user", "content": f"{OTHER} {SECRET}"}])
    assert later == [*first, "[email-2] [email-1]"]
    assert first[2] == "[email-1]"


async def test_only_values_of_the_request_itself_are_restored():
    async with screening(**RESTORING) as (screen, _):
        opening = system("Be kind.", "Hello.")
        one = await screen.inspect(chat([*opening, {"role": "user", "content": SECRET}], mode="mask", session="s"))
        two = await screen.inspect(chat([*opening, {"role": "user", "content": OTHER}], mode="mask", session="s"))
    assert (one.restores, two.restores) == ({"[email-1]": SECRET}, {"[email-2]": OTHER})


async def test_without_restore_no_value_is_kept():
    async with screening(**NUMBERED) as (screen, _):
        assert (await screen.inspect(chat(system(SECRET), mode="mask"))).restores is None


async def test_what_has_nothing_is_the_same_request():
    async with screening(**RESTORING) as (screen, _):
        original = chat(system("Be kind."), mode="mask")
        assert await screen.inspect(original) is original


async def test_escapes_in_arguments_are_no_part_of_the_value():
    pattern = {"kind": "zoe", "regex": r"Zo(ë|\\u00eb)"}
    call = {"function": {"name": "f", "arguments": json.dumps({"full_name": "Zoë"}, ensure_ascii=True)}}
    messages = [{"role": "user", "content": "Full name: Zoë"}, {"role": "assistant", "tool_calls": [call]}]
    async with screening(patterns=(pattern,), **RESTORING) as (
        screen,
        _,
    ):
        result = await screen.inspect(chat(messages, mode="mask"))
    assert result.restores == {"[zoe-1]": "Zoë"}
    assert json.loads(result.fields["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {
        "full_name": "[zoe-1]"
    }


async def test_completions_are_numbered_too():
    async with screening(**RESTORING) as (screen, _):
        original = request({"prompt": [SECRET, f"{OTHER} {SECRET}"]}, endpoint=Endpoint.COMPLETIONS, mode="mask")
        result = await screen.inspect(original)
    assert result.fields["prompt"] == ["[email-1]", "[email-2] [email-1]"]


async def test_values_beyond_the_limit_have_no_number():
    text = " ".join(f"a{number}@example.com" for number in range(placeholders.MAX_VALUES + 1))
    async with screening(**RESTORING) as (screen, _):
        result = await screen.inspect(chat(system(text), mode="mask"))
    written = result.fields["messages"][0]["content"].split()
    assert written[-2:] == [f"[email-{placeholders.MAX_VALUES}]", "[email]"]
    assert len(result.restores) == placeholders.MAX_VALUES


def test_a_long_session_keeps_the_numbers_of_what_its_requests_still_have():
    numbered = placeholders.Placeholders()
    kept = []
    for number in range(3 * placeholders.MAX_VALUES):
        values = [("email", "first"), ("email", str(number)), ("email", str(number - 1))]
        names = list(numbered.named("t", "s", values).values())
        assert not kept or [names[0], names[2]] == kept
        kept = names[:2]
        assert len(set(names)) == 3
        assert len(numbered) <= placeholders.MAX_VALUES
    assert names[0] == "[email-1]"


def test_what_is_remembered_is_bounded_and_holds_no_value():
    numbered = placeholders.Placeholders()
    values = [("email", f"{SECRET}{number}") for number in range(100)]
    for session in range(2100):
        numbered.named("t", f"session {session}", values)
    numbered.named("t", None, [("email", "of no session")])
    assert len(numbered) == placeholders.MAX_REMEMBERED
    assert SECRET not in repr(list(numbered._numbers.items())[-1])
    assert numbered.named("other", "session 2099", values[5:6]) == {values[5]: "[email-1]"}
    assert numbered.named("t", "session 2099", values[5:6]) == {values[5]: "[email-6]"}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"restore": True}, "add placeholders: numbered"),
        ({"restore": True, "where": "all"}, "add placeholders: numbered"),
        ({"restore": True, "placeholders": "numbered"}, "add where: all"),
        ({"placeholders": "names"}, "'kind' or 'numbered'"),
        ({"where": "user"}, "'leading' or 'all'"),
    ],
)
def test_mistakes_are_named(wrong, problem):
    with pytest.raises(ValidationError, match=problem):
        PersonalDataSettings(**wrong)
