"""Which messages are searched: the leading ones, or all."""

import json

import pytest
from screening import SECRET, chat, parsed, request, screening, system
from test_screen import idle

from gateway.config.personal_data_settings import PersonalDataSettings
from gateway.core.errors import BadRequest
from gateway.core.request import Endpoint

TEXT = f"Write to {SECRET}."
MASKED = "Write to [email]."


def call(arguments):
    return {"id": "c", "type": "function", "function": {"name": "send", "arguments": arguments}}


CONVERSATION = [
    {"role": "system", "content": TEXT},
    {"role": "user", "content": [{"type": "text", "text": TEXT}]},
    {"role": "assistant", "content": None, "tool_calls": [call(json.dumps({"to": SECRET, "n": 1}))]},
    {"role": "tool", "tool_call_id": "c", "content": TEXT},
    {"role": "user", "content": TEXT},
]


async def inspected(original, **settings):
    async with screening(**settings) as (screen, _):
        result = await screen.inspect(original)
        assert parsed(result.body) == result.fields
        return result


async def test_all_messages_are_masked_with_the_arguments_of_tool_calls():
    result = await inspected(chat(CONVERSATION, mode="mask"), where="all")
    assert SECRET.encode() not in result.body
    assert json.loads(result.body)["messages"] == json.loads(json.dumps(CONVERSATION).replace(SECRET, "[email]"))


async def test_leading_is_the_default_and_leaves_what_follows():
    result = await inspected(chat(CONVERSATION, mode="mask"))
    assert result.fields["messages"] == [{"role": "system", "content": MASKED}, *CONVERSATION[1:]]


async def test_arguments_stay_json():
    arguments = (
        '{"phone": "+49 170 1234567", "card": 4111111111111111, "cards":[4111111111111111,5500000000000004 ], "n": 7}'
    )
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call(arguments)]}]
    result = await inspected(chat(messages, mode="mask"), where="all")
    masked = json.loads(result.fields["messages"][1]["tool_calls"][0]["function"]["arguments"])
    assert masked == {"phone": "[phone]", "card": "[card]", "cards": ["[card]", "[card]"], "n": 7}


@pytest.mark.parametrize("calls", [None, 7, [None], [{}], [{"function": 3}], [{"function": {"arguments": {"a": 1}}}]])
async def test_odd_tool_calls_are_left(calls):
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": TEXT, "tool_calls": calls}]
    result = await inspected(chat(messages, mode="mask"), where="all")
    assert result.fields["messages"][1] == {"role": "assistant", "content": MASKED, "tool_calls": calls}


@pytest.mark.parametrize(("prompt", "masked"), [(TEXT, MASKED), (["none", TEXT], ["none", MASKED])])
async def test_prompts_of_completions_are_masked_too(prompt, masked):
    result = await inspected(request({"prompt": prompt}, endpoint=Endpoint.COMPLETIONS, mode="mask"), where="all")
    assert result.fields["prompt"] == masked


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1], [2]], None, []])
async def test_prompts_of_token_ids_pass(prompt):
    original = request({"prompt": prompt}, endpoint=Endpoint.COMPLETIONS, mode="mask")
    assert await inspected(original, where="all") is original


async def test_block_refuses_it_in_the_users_message():
    with pytest.raises(BadRequest) as refused:
        await inspected(chat(system("Be kind.", f"{TEXT} {SECRET}"), mode="block"), where="all")
    assert (refused.value.code, refused.value.param) == ("personal_data_in_prompt", "messages[1].content")
    assert "1 more in the request" in refused.value.message
    assert "user message" not in refused.value.message
    assert SECRET not in refused.value.message


async def test_what_is_too_long_is_named():
    for fields, endpoint, param in (
        ({"messages": system("Be kind.", "x" * 1001)}, Endpoint.CHAT, "messages"),
        ({"messages": [{"role": "user", "content": ["x"] * 20_001}]}, Endpoint.CHAT, "messages"),
        ({"messages": [{"role": "user", "tool_calls": [call("")] * 20_001}]}, Endpoint.CHAT, "messages"),
        ({"prompt": "x" * 1001}, Endpoint.COMPLETIONS, "prompt"),
    ):
        original = request({"model": "m", **fields}, endpoint=endpoint, mode="mask")
        with pytest.raises(BadRequest) as refused:
            await inspected(original, where="all", max_characters=1000)
        assert (refused.value.code, refused.value.param) == ("too_long_to_search", param)
        assert "in the request" in refused.value.message
        if endpoint is Endpoint.CHAT:
            assert await inspected(original, max_characters=1000) is original


async def test_findings_everywhere_are_counted_and_the_conversation_stays_the_same():
    async with screening(where="all", shared_by=2) as (screen, observer):
        for turn, findings in ((1, 1), (3, 1 + 3), (5, 1 + 3 + 5)):
            screen.answered(chat(CONVERSATION[:turn]), "s")
            await idle(screen, observer, findings)
        paths = [finding.path for _, finding, _, _ in observer.seen[-5:]]
        assert "messages[2].tool_calls[0].function.arguments" in paths
        assert "messages[4].content" in paths
        # The first turn has no user message: it is a conversation of its own, and the others are one.
        assert not any(shared for _, finding, shared, _ in observer.seen if finding.path != "messages[0].content")


async def test_where_can_change():
    async with screening() as (screen, _):
        original = chat(system("Be kind.", TEXT), mode="mask")
        assert await screen.inspect(original) is original
        screen.configure(PersonalDataSettings(where="all"))
        assert (await screen.inspect(original)).fields["messages"][1]["content"] == MASKED
