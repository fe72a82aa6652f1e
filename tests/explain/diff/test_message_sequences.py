"""Whole messages: put in, taken out, moved, cut off the front; and what of a prompt is looked at first."""

import pytest
from differing import answered, chat, code, completion, difference, tool

S = ("system", "You are the support agent of a shop for lamps. Be brief, be kind, never guess.")
S2 = ("system", "Prices are in euros and hold until the end of the month. Shipping is free from 50 on.")
U1, A1 = ("user", "Where is my order?"), ("assistant", "It left the warehouse this morning.")
U2, A2 = ("user", "When will it arrive?"), ("assistant", "The day after tomorrow, before noon.")
U3, A3 = ("user", "Can I change the address?"), ("assistant", "Yes, in your account, until tonight.")
U4 = ("user", "Thank you, that was all.")
FRONT = ("system", "Service message: the client is a phone, keep tables out of the answer.")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([S, U1], [S, U1]),
        ([S, U1], [S, U1, A1, U2]),
        ([S, U1], [S, U1, U2]),
        ([U1], [U1, A1, U2, A2, U3]),
        ([S, U1, A1, U2], [S, U1]),
        ([], [S, U1]),
        ([], []),
        ([S, S2, U1], [S, S2, U1, A1, ("system", "Be brief now."), U2]),
    ],
)
def test_appending_is_no_difference(before, after):
    assert difference(chat(*before), chat(*after)) is None
    assert difference(chat(*before), chat(*after), same_conversation=False) is None


CONVERSATION = [
    ([S, U1], [U1, S], ("role_order", "message_order")),
    ([S, S2, U1], [S2, S, U1], ("role_order", "system_order")),
    ([S, U1, A1, U2], [U1, A1, U2, S], ("role_order", "message_order")),
    ([S, U1], [U1, A1, U2, S], ("role_order", "message_order")),
    ([U1, S], [S, U1, A1, U2], ("role_order", "message_order")),
    ([S, U1, A1, U2], [S, U1, U2, A1], ("role_order", "message_order")),
    ([S, U1], [S, S2, U1], ("system_changed", "message_added")),
    ([S, U1], [FRONT, S, U1, A1, U2], ("system_changed", "message_added")),
    ([U1, A1, U2], [S, U1, A1, U2], ("system_changed", "message_added")),
    ([S, S2, U1], [S, U1, A1, U2], ("system_changed", "message_removed")),
    ([S, S2, U1], [S2, U1], ("system_changed", "message_removed")),
    ([S, U1], [("developer", S[1]), U1], ("system_changed", "role")),
    (
        [S, U1],
        [("system", "Write poems about rivers, and nothing else, in four lines."), U1],
        ("system_changed", "edited"),
    ),
    ([S, U1, A1, U2, A2, U3], [S, U2, A2, U3], ("history_trimmed", "trimmed")),
    ([S, U1, A1, U2, A2, U3], [S, A1, U2, A2, U3, A3, U4], ("history_trimmed", "trimmed")),
    ([U1, A1, U2, A2, U3], [U2, A2, U3, A3, U4], ("history_trimmed", "trimmed")),
    ([S, U1, A1, U2, A2, U3], [S, U3, A3, U4], ("history_trimmed", "trimmed")),
    (
        [S, U1, A1, U2, A2, U3],
        [S, ("system", "Summary: they asked about an order."), U3, A3, U4],
        ("history_trimmed", "summarized"),
    ),
    (
        [S, U1, A1, U2, A2, U3],
        [S, ("user", "Summary: they asked about an order."), A2, U3, A3, U4],
        ("history_trimmed", "summarized"),
    ),
    (
        [S, ("user", "Summary: greeting."), A1, U2, A2, U3],
        [S, ("user", "Summary: greeting, order."), A2, U3],
        ("history_trimmed", "summarized"),
    ),
    ([S, U1, A1, U2], [S, ("user", "Where is my parcel?"), A1, U2], ("history_edited", "edited")),
    ([S, U1, A1, U2], [S, U1, ("assistant", "It left yesterday evening."), U2], ("history_edited", "edited")),
    ([S, U1, A1, U2], [S, U1, A1, ("user", "When will it arrive here?")], ("history_edited", "edited")),
    ([S, U1, A1, U2], [S, U1, ("user", "Note to self."), A1, U2], ("history_edited", "message_added")),
    ([S, U1, A1, U2, A2, U3], [S, U1, U2, A2, U3], ("history_edited", "message_removed")),
    ([S, U1, A1, U2, A2, U3], [S, U1, A1, A2, U3], ("history_edited", "message_removed")),
    ([S, U1, A1, U2, A2, U3, A3, U4], [S, U1, A1, U2, A2, U4], ("history_edited", "message_removed")),
    ([S, U1, A1, U2, A2, U3, A3, U4], [S, U1, A1, U3, A3, U4], ("history_edited", "message_removed")),
    ([S, U1, A1, U2, A2, U3, A3, U4], [S, U1, U2, A2, ("user", "Why?"), A3], ("history_edited", "message_removed")),
    ([S, U1, A1, U2, A2, U3], [S, U1, A2], ("history_edited", "message_removed")),
    ([S, U1, A1, U2, A2, U3], [S, U1, A2, U3], ("history_trimmed", "trimmed")),
    ([S, U1, A1, U2, A2, U3], [S, U1, U3, A3, U4], ("history_trimmed", "trimmed")),
    ([S, U1, A1, U2, A2, U3], [S, U1, A1, U3, A3, U4], ("history_trimmed", "trimmed")),
    ([U1, A1, U2, A2, U3], [U1, U3, A3, U4], ("history_trimmed", "trimmed")),
    ([S, U1, A1, U2], [S, U1, A1, ("user", "Tell me a joke about cats and dogs in the rain")], ("user_data", "words")),
    ([S, ("wizard", "Abracadabra"), U1], [S, ("wizard", "Simsalabim"), U1], ("unclassified", "edited")),
]


@pytest.mark.parametrize(("before", "after", "expected"), CONVERSATION)
def test_within_a_conversation(before, after, expected):
    assert code(difference(chat(*before), chat(*after))) == expected


OTHERS = [
    ([S, U1], [S, U2], ("user_data", "words")),
    ([S, U1, A1, U2], [S, U3, A3, U4], ("user_data", "words")),
    ([S, ("user", "What is 17 plus 4?")], [S, ("user", "What is 23 plus 4?")], ("user_data", "words")),
    ([S, U1, A1, U2], [S, U1, A2, U2], ("user_data", "conversation")),
    (
        [S, ("user", "[2026-11-21 12:00] Where is my order? Please tell me.")],
        [S, ("user", "[2026-11-21 12:07] Where is my order? Please tell me.")],
        ("dynamic_time", "iso_datetime"),
    ),
    ([S, ("user", "Where is  it?")], [S, ("user", "Where is it?")], ("whitespace", "blanks")),
    ([S, U1], [U2, S], ("role_order", "message_order")),
]


@pytest.mark.parametrize(("before", "after", "expected"), OTHERS)
def test_between_conversations(before, after, expected):
    assert code(difference(chat(*before), chat(*after), same_conversation=False)) == expected


def test_another_family_with_a_message_more():
    found = difference(chat(S, U1), chat(S, FRONT, U2), sources=("web", "mobile"), same_conversation=False)
    assert code(found) == ("system_changed", "message_added")
    assert found.said == "mobile sends 1 message more at position 1 than web"
    assert (found.path, found.message, found.role) == ("messages[1]", 1, "system")
    back = difference(chat(S, FRONT, U2), chat(S, U1), sources=("mobile", "web"), same_conversation=False)
    assert code(back) == ("system_changed", "message_removed")
    assert back.said == "web sends 1 message fewer at position 1 than mobile"


DEVICE = ("user", "context: device ios, app 17.2, screen 390x844")
HELLO = ("assistant", "Hello! How can I help?")


@pytest.mark.parametrize("question", [U1, U2])
@pytest.mark.parametrize("behind", [[], [A1, U3]])
def test_another_family_with_a_hidden_message_of_the_user_more(question, behind):
    web, mobile = chat(S, U1, *behind), chat(S, DEVICE, question)
    found = difference(web, mobile, sources=("web", "mobile"), same_conversation=False)
    assert code(found) == ("system_changed", "message_added")
    assert found.said == "mobile sends 1 message more at position 1 than web"
    assert (found.path, found.message, found.role) == ("messages[1]", 1, "user")
    back = difference(mobile, web, sources=("mobile", "web"), same_conversation=False)
    assert code(back) == ("system_changed", "message_removed")
    assert back.said == "web sends 1 message fewer at position 1 than mobile"


def test_hidden_messages_of_the_user_are_counted_from_the_first_that_differs():
    web, mobile = chat(S, DEVICE, U1), chat(S, DEVICE, U2, U3, U4, A1)
    found = difference(web, mobile, sources=("web", "mobile"), same_conversation=False)
    assert found.said == "mobile sends 2 messages more at position 2 than web"


@pytest.mark.parametrize(
    ("before", "after", "sources"),
    [
        ([S, U1], [S, U2, U3], ("web", "web")),
        ([S, U1, U2], [S, U3], ("web", "web")),
        ([S, U1, A1, U2], [S, U3, A2, U4], ("web", "mobile")),
        ([S, U1, A1, U2, U3], [S, U2, A2, U3], ("web", "mobile")),
        ([S, U1, U2], [S, U3, U4], ("web", "mobile")),
        ([S, HELLO, U1], [S, U2, U3], ("web", "mobile")),
        ([S, *[U1] * 5], [S, *[U2] * 8], ("web", "mobile")),
    ],
)
def test_other_questions_are_no_hidden_message(before, after, sources):
    found = difference(chat(*before), chat(*after), sources=sources, same_conversation=False)
    assert found.reason == "user_data"


def test_a_message_put_into_a_conversation_is_no_hidden_one_of_a_family():
    found = difference(chat(S, U1, A1), chat(S, DEVICE, U1, A1, U2), sources=("web", "mobile"))
    assert code(found) == ("history_edited", "message_added")


def test_a_message_more_in_the_same_family():
    assert difference(chat(S, U1), chat(S, FRONT, S2, U1)).said == "2 system messages more at position 1"


def test_another_familys_format():
    other = chat(("system", "# Rules\n* answer in one line\n* no jokes"), U2)
    found = difference(chat(S, U1), other, sources=("web", "mobile"), same_conversation=False)
    assert code(found) == ("system_changed", "client_format")
    assert "web" in found.said
    assert "mobile" in found.said


def test_the_same_text_in_parts():
    parts = {"role": "system", "content": [{"type": "text", "text": S[1]}]}
    assert code(difference(chat(S, U1), chat(parts, U1))) == ("system_changed", "content_form")
    user_parts = {
        "role": "user",
        "content": [{"type": "text", "text": "Where is"}, {"type": "text", "text": "my order?"}],
    }
    assert code(difference(chat(S, U1), chat(S, user_parts))) == ("history_edited", "content_form")


def test_the_form_counts_only_if_nothing_else_differs():
    parts = {"role": "system", "content": [{"type": "text", "text": S[1]}]}
    found = difference(chat(S, U1, A1, U2), chat(parts, U1, ("assistant", "It left yesterday evening."), U2))
    assert (found.path, found.detail) == ("messages[2].content", "edited")


def test_a_cut_says_how_many():
    found = difference(chat(S, U1, A1, U2, A2, U3), chat(S, U2, A2, U3))
    assert found.said.startswith("2 messages cut at the front")
    assert found.message == 1


def test_a_cut_behind_what_is_kept_says_how_many_and_where():
    found = difference(chat(S, U1, A1, U2, A2, U3), chat(S, U1, U3, A3, U4))
    assert found.said == "3 messages cut behind the kept beginning of the conversation, from messages[2] on"
    assert (found.path, found.message) == ("messages[2]", 2)


def test_everything_cut_behind_the_kept_first_question_but_the_reply():
    before, after = chat(S, U1, A1, U2, A2, U3), chat(S, U1, A3, U4)
    assert code(difference(before, after, replies=[answered(A3[1])])) == ("history_trimmed", "trimmed")
    assert code(difference(before, after, replies=[answered("No.")])) == ("history_edited", "edited")


def test_json_keys_in_another_order():
    config = 'Config:\n{"city": "Berlin", "limits": {"a": 1, "b": 2}}\nBe brief.'
    swapped = 'Config:\n{"limits": {"a": 1, "b": 2}, "city": "Berlin"}\nBe brief.'
    inner = 'Config:\n{"city": "Berlin", "limits": {"b": 2, "a": 1}}\nBe brief.'
    for other in (swapped, inner):
        found = difference(chat(("system", config), U1), chat(("system", other), U1))
        assert code(found) == ("whitespace", "json_key_order")
        found = difference(chat(S, ("tool", config), U1), chat(S, ("tool", other), U1))
        assert code(found) == ("history_edited", "json_key_order")
    changed = config.replace('"b": 2', '"b": true')
    assert code(difference(chat(("system", config), U1), chat(("system", changed), U1))) == ("system_changed", "edited")


@pytest.mark.parametrize(("one", "other"), [("-", "•"), ("*", "-"), ("–", "-")])
def test_other_bullets_in_front_of_the_same_lines(one, other):
    rules = "Rules:\n{0} Be brief.\n  {0} Be kind.\n{0} Never guess.\nThank you."
    before, after = rules.format(one), rules.format(other)
    for pair in ((before, after), (after, before)):
        found = difference(*(chat(("system", text), U1) for text in pair))
        assert code(found) == ("whitespace", "bullets")
        assert found.line == 2


def test_other_bullets_in_front_of_other_lines_are_an_edit():
    before, after = "Rules:\n- Be brief.\n- Be kind.", "Rules:\n• Be brief.\n• Be polite."
    assert code(difference(chat(("system", before), U1), chat(("system", after), U1))) == ("system_changed", "edited")


def test_place_of_the_first_difference():
    before = chat(S, ("system", "Be brief.\n\nNow: 2026-11-21T12:00:01Z\nBe kind."), U1)
    after = chat(S, ("system", "Be brief.\n\nNow: 2026-11-21T12:00:07Z\nBe kind."), U1)
    found = difference(before, after)
    assert (found.path, found.message, found.role, found.line, found.column) == (
        "messages[1].content",
        1,
        "system",
        3,
        24,
    )
    assert found.after == "Xx xxxxx.\n\nXxx: ‹date and time›\nXx xxxx."
    assert found.said == "messages[1].content, line 3: a date and time that changes"


# Tools.

WEATHER, TIME = tool("get_weather", "Tells the weather."), tool("get_time", "Tells the time.")
MAIL = tool("send_mail", "Sends a mail.")
PROPERTIES = {"city": {"type": "string"}, "day": {"type": "string"}}
TOOLS = [
    ([WEATHER, TIME], [TIME, WEATHER], ("tools_reordered", "tool_order"), "tools[0]"),
    ([WEATHER, TIME, MAIL], [WEATHER, MAIL, TIME], ("tools_reordered", "tool_order"), "tools[1]"),
    ([WEATHER, TIME], [TIME, WEATHER, MAIL], ("tools_reordered", "tool_order"), "tools[0]"),
    (
        [tool("a", properties=PROPERTIES)],
        [tool("a", properties=dict(reversed(PROPERTIES.items())))],
        ("tools_reordered", "key_order"),
        "tools[0].function.parameters.properties",
    ),
    ([WEATHER], [dict(reversed(WEATHER.items()))], ("tools_reordered", "key_order"), "tools[0]"),
    ([WEATHER], [WEATHER, TIME], ("tools_changed", "added"), "tools[1]"),
    ([], [WEATHER, TIME], ("tools_changed", "added"), "tools[0]"),
    ([WEATHER, TIME], [WEATHER], ("tools_changed", "removed"), "tools[1]"),
    ([WEATHER, TIME], [TIME], ("tools_changed", "removed"), "tools[0]"),
    ([WEATHER, TIME], [MAIL, WEATHER, TIME], ("tools_changed", "added"), "tools[0]"),
    ([WEATHER, TIME], [WEATHER, MAIL], ("tools_changed", "added"), "tools[1]"),
    (
        [WEATHER, TIME],
        [WEATHER, tool("get_time", "Tells the time of day.")],
        ("tools_changed", "changed"),
        "tools[1].function.description",
    ),
    ([WEATHER], [tool("weather_of", "Tells the weather.")], ("tools_changed", "changed"), "tools[0].function.name"),
    (
        [WEATHER],
        [tool("get_weather", "Tells the weather.", properties={"city": {"type": "number"}})],
        ("tools_changed", "changed"),
        "tools[0].function.parameters.properties.city.type",
    ),
    (
        [WEATHER],
        [tool("get_weather", "Tells the weather.", strict=True)],
        ("tools_changed", "changed"),
        "tools[0].function.strict",
    ),
    (
        [tool("now", "It is 2026-11-21 12:00.")],
        [tool("now", "It is 2026-11-21 12:01.")],
        ("dynamic_time", "iso_datetime"),
        "tools[0].function.description",
    ),
    (
        [tool("q", "Session 3f2b8c1e-9d4a-4b6f-8a21-0c5d7e9f1a2b.")],
        [tool("q", "Session 7a2b8c1e-9d4a-4b6f-8a21-0c5d7e9f1a2b.")],
        ("dynamic_id", "uuid"),
        "tools[0].function.description",
    ),
    ([tool("q", "Does  it.")], [tool("q", "Does it.")], ("whitespace", "blanks"), "tools[0].function.description"),
    ([WEATHER, WEATHER], [WEATHER], ("tools_changed", "removed"), "tools[1]"),
    (
        [WEATHER, tool("get_weather", "Other.")],
        [tool("get_weather", "Other."), WEATHER],
        ("tools_reordered", "tool_order"),
        "tools[0]",
    ),
    (
        [{"type": "browser"}, {"type": "code"}],
        [{"type": "code"}, {"type": "browser"}],
        ("tools_reordered", "tool_order"),
        "tools[0]",
    ),
    ([{"type": "browser"}], [{"type": "code"}], ("tools_changed", "changed"), "tools[0].type"),
    ([{"type": "b"}], [{"type": "c"}, {"type": "b"}], ("tools_changed", "added"), "tools[0]"),
]


@pytest.mark.parametrize(("before", "after", "expected", "path"), TOOLS)
def test_tools(before, after, expected, path):
    found = difference(chat(S, U1, tools=before), chat(S, U1, A1, U2, tools=after))
    assert code(found) == expected
    assert found.path == path


def test_what_is_said_of_tools():
    found = difference(chat(S, U1, tools=[WEATHER]), chat(S, U1, tools=[tool("get_weather", "Another text, all new.")]))
    assert found.said == "tool get_weather: function.description changed"
    found = difference(chat(S, U1, tools=[WEATHER]), chat(S, U1, tools=[WEATHER, TIME, MAIL]))
    assert found.said == "2 tools added: get_time, send_mail"


def test_the_same_tools_are_no_difference():
    assert difference(chat(S, U1, tools=[WEATHER, TIME]), chat(S, U1, A1, U2, tools=[WEATHER, TIME])) is None


def test_what_is_printed_first_is_the_first_difference():
    other_system = ("system", S[1] + " Ask back.")
    before = chat(S, U1, tools=[WEATHER])
    both = chat(other_system, U1, tools=[TIME, WEATHER])
    assert difference(before, both).path == "messages[0].content"
    assert difference(before, both, tools_first=True).path == "tools[0]"
    assert difference(before, chat(S, U2, tools=[TIME, WEATHER])).path == "tools[0]"
    assert difference(chat(U1, tools=[WEATHER]), chat(U2, tools=[TIME])).path == "tools[0]"
    second = difference(chat(S, S2, U1, tools=[WEATHER]), chat(S, FRONT, U1, tools=[TIME]))
    assert second.path == "tools[0]"


# Arguments.


def test_template_arguments():
    def kwargs(**values):
        return chat(S, U1, chat_template_kwargs=values)

    found = difference(kwargs(enable_thinking=True), kwargs(enable_thinking=False))
    assert code(found) == ("arguments_changed", "arguments")
    assert found.path == "chat_template_kwargs.enable_thinking"
    assert difference(chat(S, U1), kwargs(enable_thinking=False)).path == "chat_template_kwargs.enable_thinking"
    assert difference(kwargs(a=1, b=2), kwargs(b=2, a=1)) is None
    found = difference(kwargs(date_string="21 Nov 2026"), kwargs(date_string="22 Nov 2026"))
    assert code(found) == ("dynamic_time", "date")
    found = difference(chat(S, U1), chat(S, U1, reasoning_effort="high"))
    assert (code(found), found.path) == (("arguments_changed", "arguments"), "reasoning_effort")
    found = difference(chat(S, U1, chat_template="{{ a }}"), chat(S, U1, chat_template="{{ b }}"))
    assert (code(found), found.path) == (("arguments_changed", "arguments"), "chat_template")


def test_arguments_without_effect_on_what_came_before():
    assert difference(chat(S, U1), chat(S, U1, A1, U2, add_generation_prompt=False)) is None
    assert code(difference(chat(S, U1), chat(S, U1, add_generation_prompt=False))) == ("arguments_changed", "arguments")
    assert (
        difference(chat(S, U1, tools=[TIME], tool_choice="auto"), chat(S, U1, tools=[TIME], tool_choice="required"))
        is None
    )
    found = difference(chat(S, U1, tools=[TIME]), chat(S, U1, tools=[TIME], tool_choice="none"))
    assert (code(found), found.path) == (("arguments_changed", "arguments"), "tool_choice")


def test_other_documents():
    before = chat(S, U1, documents=[{"title": "Lamps", "text": "About lamps."}])
    after = chat(S, U1, documents=[{"title": "Ships", "text": "About ships."}])
    found = difference(before, after)
    assert (code(found), found.path) == (("user_data", "documents"), "documents")


# What many templates do not print.


def test_calls_and_trimmings():
    def called(arguments, name="get_weather", **more):
        call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
        return {"role": "assistant", "content": None, "tool_calls": [call], **more}

    one, swapped = called('{"city": "Oslo", "day": 1}'), called('{"day": 1, "city": "Oslo"}')
    found = difference(chat(S, U1, one, U2), chat(S, U1, swapped, U2))
    assert code(found) == ("reply_rerendered", "tool_calls_redumped")
    assert found.path == "messages[2].tool_calls[0].function.arguments"
    assert found.said == f"{found.path}, line 1: the same arguments, written differently"
    tight = called('{"city":"Oslo","day":1}')
    assert difference(chat(S, U1, one, U2), chat(S, U1, tight, U2)).said == found.said
    other = called('{"city": "Rome", "day": 1}')
    found = difference(chat(S, U1, one, U2), chat(S, U1, other, U2))
    assert code(found) == ("history_edited", "edited")
    assert "the same" not in found.said
    other = called('{"city": "Oslo", "day": 1}', name="get_time")
    assert code(difference(chat(S, U1, one, U2), chat(S, U1, other, U2))) == ("history_edited", "tool_calls")
    thought = called('{"city": "Oslo", "day": 1}', reasoning_content="Let me see.")
    found = difference(chat(S, U1, thought, U2), chat(S, U1, one, U2))
    assert (code(found), found.path) == (("reply_rerendered", "reasoning_dropped"), "messages[2].reasoning")
    named = {"role": "user", "content": U1[1], "name": "anna"}
    assert code(difference(chat(S, named), chat(S, {**named, "name": "bob"}))) == ("user_data", "name")


# Replies.


@pytest.mark.parametrize(
    ("reply", "message", "detail"),
    [
        (answered("It left."), ("assistant", "It left."), None),
        (answered(" It left.\n"), ("assistant", "It left."), "stripped"),
        (answered("It left.\r\nBye."), ("assistant", "It left.\nBye."), "whitespace"),
        (answered("It\u2019s here."), ("assistant", "It's here."), "unicode_form"),
        (answered("It left. It will come."), ("assistant", "It left."), "truncated"),
        (answered("It left."), ("assistant", "It has not left yet."), "edited"),
        (answered("<think>Hm.</think>\n\nIt left."), ("assistant", "It left."), "reasoning_dropped"),
        (answered(has_reasoning=True), ("assistant", "It left."), "reasoning_dropped"),
        (answered(has_reasoning=True), {"role": "assistant", "content": "It left.", "reasoning": "Hm."}, "parsed"),
        (answered(has_reasoning=True), ("assistant", "<think>Hm.</think>It left."), "parsed"),
        (answered(has_calls=True), ("assistant", "It left."), "tool_calls_dropped"),
        (
            answered(has_calls=True),
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
            "parsed",
        ),
        (answered("It left."), ("user", "It left."), "role"),
        (answered("It left."), ("user", "Something else."), None),
        (answered(None), ("assistant", "It left."), None),
    ],
)
def test_the_reply_sent_back(reply, message, detail):
    found = difference(chat(S, U1), chat(S, U1, message, U2), replies=[reply])
    assert code(found) == (None if detail is None else ("reply_rerendered", detail))
    if found:
        assert (found.message, found.path) == (2, "messages[2].content")


def test_any_of_several_replies_may_come_back():
    replies = [answered("One."), answered("Two.")]
    assert difference(chat(S, U1), chat(S, U1, ("assistant", "Two."), U2), replies=replies) is None
    assert difference(chat(S, U1), chat(S, U1, ("assistant", "Two. "), U2), replies=replies).detail == "stripped"


def test_an_unknown_reply_is_no_difference():
    assert difference(chat(S, U1), chat(S, U1, ("assistant", "Anything."), U2), replies=[]) is None


def test_everything_cut_but_the_reply():
    found = difference(chat(S, U1), chat(S, ("assistant", "It left."), U2), replies=[answered("It left.")])
    assert code(found) == ("history_trimmed", "trimmed")


# Completions.


def test_completions():
    prompt = "Today is {}.\nYou translate into German.\nQuestion: {}\nAnswer:"
    one = completion(prompt.format("2026-11-21", "What is a lamp?"))
    assert difference(one, one) is None
    found = difference(one, completion(prompt.format("2026-11-22", "What is a lamp?")), same_conversation=False)
    assert (code(found), found.path, found.role) == (("dynamic_time", "date"), "prompt", "prompt")
    other = completion(prompt.format("2026-11-21", "How does a bird of prey find what it eats at night?"))
    assert code(difference(one, other, same_conversation=False)) == ("user_data", "words")
    edited = completion(
        "Today is 2026-11-21.\nYou answer in rhymes and nothing else.\nQuestion: What is a lamp?\nAnswer:"
    )
    assert code(difference(one, edited, same_conversation=False)) == ("system_changed", "edited")


def test_a_completion_that_goes_on():
    assert difference(completion("Once upon"), completion("Once upon a time")) is None
    assert (
        difference(completion("Once upon"), completion("Once upon a time there"), replies=[answered(" a time")]) is None
    )
    found = difference(completion("Once upon"), completion("Once upona time there"), replies=[answered(" a time")])
    assert code(found) == ("reply_rerendered", "stripped")
    found = difference(completion(["Same", "One thing"]), completion(["Same", "Other things"]))
    assert found.path == "prompt[1]"
