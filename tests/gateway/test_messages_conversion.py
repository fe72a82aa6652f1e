"""Requests of the Messages API as chat requests: no sockets."""

import json

import pytest

from gateway.api.dialects.messages_api import MessagesChat
from gateway.core.client_places import ClientPlaces
from gateway.core.errors import BadRequest
from gateway.core.portions import finished

TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
FUNCTION = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}


def converted(counts=False, **members) -> MessagesChat:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi."}]} | members
    chat = MessagesChat()
    finished(chat.convert(body, counts=counts))
    return chat


def fields(**members):
    return converted(**members).fields


def text(value):
    return {"type": "text", "text": value}


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def result(content, call="t1", **more):
    return {"type": "tool_result", "tool_use_id": call, "content": content} | more


def use(given, call="t1"):
    return {"type": "tool_use", "id": call, "name": "look", "input": given}


def called(arguments, call="t1"):
    return {"id": call, "type": "function", "function": {"name": "look", "arguments": arguments}}


def image(url):
    return {"type": "image_url", "image_url": {"url": url}}


PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
LINK = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
PAPER = {"type": "document", "title": "Law", "source": {"type": "text", "media_type": "text/plain", "data": "§ 1"}}
BILLING = "x-anthropic-billing-header: cc_version=1.2;"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([{"role": "user", "content": "a"}], [{"role": "user", "content": "a"}]),
        ([user(text("a"))], [{"role": "user", "content": "a"}]),
        ([user(text("a"), text(""), text("b"))], [{"role": "user", "content": [text("a"), text("b")]}]),
        (
            [user(text("a") | {"cache_control": {"type": "ephemeral"}, "citations": []})],
            [{"role": "user", "content": "a"}],
        ),
        ([user(text("a"), PNG)], [{"role": "user", "content": [text("a"), image("data:image/png;base64,QUJD")]}]),
        ([user(LINK)], [{"role": "user", "content": [image("https://example.com/a.png")]}]),
        ([user(PAPER)], [{"role": "user", "content": "Law\n§ 1"}]),
        ([user(), user(text("a"))], [{"role": "user", "content": "a"}]),
        ([{"role": "ctx", "content": "a"}], [{"role": "user", "content": "a"}]),
        ([assistant()], [{"role": "assistant"}]),
        (
            [assistant(text("a"), use({"b": [1, "é"], "c": {}}), use({}, "t2"))],
            [
                {
                    "role": "assistant",
                    "content": "a",
                    "tool_calls": [called('{"b": [1, "\\u00e9"], "c": {}}'), called("{}", "t2")],
                }
            ],
        ),
        (
            [
                assistant(
                    {"type": "thinking", "thinking": "x", "signature": "s"}, {"type": "redacted_thinking", "data": "y"}
                )
            ],
            [{"role": "assistant", "reasoning_content": "x"}],
        ),
        (
            [user(text("a"), result("r"), result([text("b"), text(""), text("c")], "t2", is_error=True))],
            [
                {"role": "tool", "tool_call_id": "t1", "content": "r"},
                {"role": "tool", "tool_call_id": "t2", "content": "b\n\nc"},
                {"role": "user", "content": "a"},
            ],
        ),
        ([user(result(None))], [{"role": "tool", "tool_call_id": "t1", "content": ""}]),
        (
            [user(result([PNG, text("r"), PAPER]))],
            [
                {"role": "tool", "tool_call_id": "t1", "content": "r\nLaw\n§ 1"},
                {"role": "user", "content": [image("data:image/png;base64,QUJD")]},
            ],
        ),
        (
            [user(result([{"type": "tool_reference", "tool_name": "look"}]))],
            [
                {"role": "tool", "tool_call_id": "t1", "content": ""},
                {"role": "tool", "tool_call_id": "t1", "content": [{"type": "tool_reference", "name": "look"}]},
            ],
        ),
        (
            [{"role": "user", "content": "a"}, {"role": "system", "content": [text("b"), text("c")]}],
            [{"role": "user", "content": "a"}, {"role": "system", "content": "bc"}],
        ),
    ],
)
def test_messages(given, expected):
    assert fields(messages=given)["messages"] == expected


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("Be kind.", "Be kind."),
        ([text("a"), text("b") | {"cache_control": {"type": "ephemeral", "ttl": "1h"}}], "ab"),
        ([text(BILLING), text("a")], f"{BILLING}\na"),
        ([text("a"), text(f"{BILLING}\n"), text("b")], f"{BILLING}\nab"),
    ],
)
def test_system(system, expected):
    chat = converted(system=system)
    assert chat.fields["messages"][0] == {"role": "system", "content": expected}
    assert chat.places == ["system", "messages[0]"]


@pytest.mark.parametrize("system", ["", [], [text("")], None])
def test_no_system(system):
    assert fields(system=system)["messages"] == [{"role": "user", "content": "Hi."}]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"stop_sequences": ["x"]}, {"stop": ["x"]}),
        (
            {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1},
            {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1},
        ),
        ({"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, {"reasoning_effort": "high"}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {}),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "json_schema", "schema": {"type": "object"}},
                }
            },
        ),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        ({"metadata": {"user_id": "u"}}, {"metadata": {"user_id": "u"}}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"max_tokens": 0}, {"max_tokens": 1}),
        ({"tools": []}, {}),
        ({"tools": [], "tool_choice": {"type": "any"}}, {}),
        ({"cache_control": {"type": "ephemeral"}, "context_management": {}, "betas": ["x"], "container": "c"}, {}),
        ({"n": 3, "logprobs": True, "stream_options": {"include_usage": False}, "service_tier": "auto"}, {}),
        ({"tools": [TOOL]}, {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "auto"}),
        (
            {"tools": [{"name": "a", "type": "custom", "input_schema": {}, "strict": True, "defer_loading": True}]},
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "a",
                            "parameters": {"type": "object"},
                            "strict": True,
                            "defer_loading": True,
                        },
                    }
                ],
                "tool_choice": "auto",
            },
        ),
    ],
)
def test_members(members, expected):
    plain = {"model": "m", "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 9}
    assert fields(**members) == plain | expected


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"tool_choice": "required", "parallel_tool_calls": False}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "look"}, {"tool_choice": {"type": "function", "function": {"name": "look"}}}),
    ],
)
def test_tool_choice(choice, expected):
    made = fields(tools=[TOOL], tool_choice=choice)
    assert {name: made[name] for name in made if name in ("tool_choice", "parallel_tool_calls")} == expected


def test_what_engines_do_not_take_is_left_out_and_listed():
    chat = converted(tools=[{"type": "web_search_20250305", "name": "web_search"}, TOOL], cache_salt="mine")
    assert [tool["function"]["name"] for tool in chat.fields["tools"]] == ["look"]
    assert "cache_salt" not in chat.fields
    assert chat.left_out == ["tools[0] (web_search_20250305)", "cache_salt (the gateway sets it)"]


def test_a_count_needs_no_max_tokens():
    assert "max_tokens" not in fields(counts=True, max_tokens=None)


def test_arguments_are_written_as_python_does_however_large_they_are():
    given = {"deep": [{"a": [1, 2.5, None, True, "é\n"]}], "text": "x" * 100_000, **{f"k{n}": n for n in range(3000)}}
    (message,) = fields(messages=[assistant(use(given))])["messages"]
    assert message["tool_calls"][0]["function"]["arguments"] == json.dumps(given)


MESSAGES = [
    user(text("a")),
    assistant(text(""), text("b"), text("c"), use({"a": 1})),
    user(result("r"), result([PNG], "t2"), text("d"), text("e")),
]


@pytest.mark.parametrize(
    ("param", "place"),
    [
        ("messages[0].content", "system"),
        ("messages[1].content", "messages[0].content"),
        ("messages[2].content[0].text", "messages[1].content[1].text"),
        ("messages[2].tool_calls[0].function.arguments", "messages[1].content[3].input"),
        ("messages[3].content", "messages[2].content[0].content"),
        ("messages[5].content[0]", "messages[2].content[1].content[0]"),
        ("messages[6].content[1].text", "messages[2].content[3].text"),
        ("messages[99]", "messages[99]"),
        ("stop", "stop_sequences"),
        ("max_tokens", "max_tokens"),
    ],
)
def test_places_are_those_of_the_clients_body(param, place):
    chat = converted(system="s", messages=MESSAGES)
    assert len(chat.places) == len(chat.fields["messages"])
    assert ClientPlaces(chat.places, chat.names).of(param) == place


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": ["a"]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [user("a")]}, "messages[0].content[0].type"),
        ({"messages": [user(text("a")), user(text("a"), {"type": "mcp_tool_use"})]}, "messages[1].content[1].type"),
        ({"messages": [user({"type": {}})]}, "messages[0].content[0].type"),
        ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text"),
        ({"messages": [user(text(5))]}, "messages[0].content[0].text"),
        ({"messages": [user(use({}))]}, "messages[0].content[0].type"),
        ({"messages": [user({"type": "thinking", "thinking": "x"})]}, "messages[0].content[0].type"),
        ({"messages": [assistant(result("r"))]}, "messages[0].content[0].type"),
        ({"messages": [assistant(use([]) | {"input": [1]})]}, "messages[0].content[0].input"),
        ({"messages": [assistant(use({}, None))]}, "messages[0].content[0].id"),
        ({"messages": [user(result("r", None))]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [user(result(5))]}, "messages[0].content[0].content"),
        ({"messages": [user(result([{"type": "audio"}]))]}, "messages[0].content[0].content[0].type"),
        ({"messages": [user({"type": "image", "source": {"type": "file"}})]}, "messages[0].content[0].source.type"),
        ({"messages": [user({"type": "image"})]}, "messages[0].content[0].source.type"),
        ({"messages": [user({"type": "image", "source": {"data": 1}})]}, "messages[0].content[0].source.data"),
        (
            {"messages": [user({"type": "document", "source": {"type": "base64"}})]},
            "messages[0].content[0].source.type",
        ),
        ({"messages": [{"role": "system", "content": [PNG]}]}, "messages[0].content[0].type"),
        ({"system": 5}, "system"),
        ({"system": [PNG]}, "system[0].type"),
        ({"tools": {"a": 1}}, "tools"),
        ({"tools": [TOOL, "x"]}, "tools[1].input_schema"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [TOOL | {"name": None}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "sometimes"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": []}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"thinking": "on"}, "thinking"),
        ({"output_config": 5}, "output_config"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
    ],
)
def test_errors_name_the_place(members, param):
    with pytest.raises(BadRequest) as caught:
        converted(**members)
    assert caught.value.param == param
    assert f"`{param}`" in caught.value.message


@pytest.mark.parametrize(
    "messages",
    [
        [user(*[text("a")] * 20_000)],
        [user(text("a"))] * 20_000,
        [user(*[result("r")] * 20_000)],
        [user(result([text("a")] * 20_000))],
        [assistant(*[use({"a": 1})] * 20_000)],
        [assistant(use({"a": [[1, 2]] * 20_000}))],
    ],
)
def test_a_huge_request_is_converted_in_portions(messages):
    chat, portions = MessagesChat(), 0
    for _ in chat.convert({"model": "m", "max_tokens": 1, "messages": messages}, counts=False):
        portions += 1
    assert portions >= 19
