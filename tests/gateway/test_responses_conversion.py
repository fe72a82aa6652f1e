"""Requests to the Responses API as chat requests, and chat answers as its events, without sockets."""

import json

import pytest

from gateway.api.dialects.response_store import Record, ResponseStore, StoreUnavailable
from gateway.api.dialects.responses import ToolName, chat_of, sealed
from gateway.api.dialects.responses_answer import ResponseAnswer
from gateway.api.dialects.translating_sink import CallDelta, ChatChunk, ChunkChoice, Delta, FunctionDelta
from gateway.config.history_settings import ResponsesSettings
from gateway.core.errors import EngineProblem, NotFound
from gateway.core.portions import finished

USER = {"role": "user", "content": "Hi."}
CALL = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}
CALLED = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}


def said(*texts):
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text} for text in texts],
    }


def messages(*items, **fields):
    return finished(chat_of({"input": list(items), **fields})).fields["messages"]


CONVERTED = [
    ([USER], [USER]),
    ([{"role": "developer", "content": "Be kind."}], [{"role": "developer", "content": "Be kind."}]),
    (
        [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}]}],
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}],
            }
        ],
    ),
    (
        [{"role": "user", "content": [{"type": "input_image", "image_url": "u", "detail": "low"}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u", "detail": "low"}}]}],
    ),
    ([said("a", "b")], [{"role": "assistant", "content": "ab"}]),
    # What an assistant said, thought and called is one message, as far as it fits into one.
    (
        [THOUGHT, said("a"), CALL],
        [{"role": "assistant", "reasoning_content": "Hm.", "content": "a", "tool_calls": [CALLED]}],
    ),
    ([CALL, CALL], [{"role": "assistant", "tool_calls": [CALLED, CALLED]}]),
    ([said("a"), said("b")], [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]),
    (
        [THOUGHT, THOUGHT],
        [{"role": "assistant", "reasoning_content": "Hm."}, {"role": "assistant", "reasoning_content": "Hm."}],
    ),
    (
        [CALL, {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]}],
        [
            {"role": "assistant", "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "x"}]},
        ],
    ),
    (
        [{**CALL, "namespace": "ns"}],
        [{"role": "assistant", "tool_calls": [{**CALLED, "function": {"name": "ns__f", "arguments": "{}"}}]}],
    ),
    (
        [{"type": "custom_tool_call", "name": "f", "input": 'a "ü"', "call_id": "c"}],
        [
            {
                "role": "assistant",
                "tool_calls": [{**CALLED, "function": {"name": "f", "arguments": '{"input": "a \\"ü\\""}'}}],
            }
        ],
    ),
    ([USER, {"type": "reasoning", "summary": [], "encrypted_content": "foreign"}], [USER]),
    (
        [{"type": "reasoning", "summary": [], "encrypted_content": sealed("Hm. ü")}],
        [{"role": "assistant", "reasoning_content": "Hm. ü"}],
    ),
    (
        [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "In short."}]}],
        [{"role": "assistant", "reasoning_content": "In short."}],
    ),
    (
        [{**THOUGHT, "content": [{"type": "reasoning_text", "text": text} for text in ("Hm. ", "So.")]}],
        [{"role": "assistant", "reasoning_content": "Hm. So."}],
    ),
    (
        [{"type": "reasoning", "summary": [{"type": "summary_text", "text": text} for text in ("a", "b", "c")]}],
        [{"role": "assistant", "reasoning_content": "abc"}],
    ),
]


@pytest.mark.parametrize(("items", "expected"), CONVERTED)
def test_items_become_messages(items, expected):
    assert messages(*items) == expected


def test_instructions_come_first_and_what_is_continued_before_the_input():
    chat = finished(chat_of({"input": "Now.", "instructions": "Be brief."}, None, [USER]))
    assert [m["content"] for m in chat.fields["messages"]] == ["Be brief.", "Hi.", "Now."]
    assert chat.places == ["instructions", "previous_response_id", "input[0]"]


FUNCTION = {"type": "function", "name": "f", "parameters": {}, "strict": True}
MEMBERS = [
    ({"max_output_tokens": 5}, {"max_tokens": 5}),
    ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
    ({"text": {"verbosity": "low", "format": {"type": "text"}}}, {"verbosity": "low"}),
    ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
    (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}}},
    ),
    ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
    ({"temperature": 0, "top_p": 1, "parallel_tool_calls": False, "prompt_cache_key": "k", "user": "u"}, None),
    ({"service_tier": "flex"}, None),
    ({"metadata": {"a": "b"}, "truncation": "auto", "client_metadata": {}, "include": [], "store": False}, {}),
    (
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "f"}},
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        },
    ),
    ({"tools": [{"type": "web_search"}], "tool_choice": "auto"}, {}),
    ({"tool_choice": "none"}, {}),
]


@pytest.mark.parametrize(("fields", "expected"), MEMBERS)
def test_members_become_those_of_a_chat_request(fields, expected):
    chat = finished(chat_of({"model": "m", "input": "x", **fields})).fields
    assert chat.pop("messages")
    assert chat.pop("model") == "m"
    assert chat == (fields if expected is None else expected)


def test_tools_that_only_this_api_has():
    space = {"type": "namespace", "name": "ns", "tools": [FUNCTION, {"type": "custom", "name": "c"}]}
    custom = {"type": "custom", "name": "p", "description": "d", "format": {"type": "grammar"}}
    fields = {"input": "x", "tools": [space, custom, {"type": "mcp"}], "tool_choice": {"type": "function", "name": "f"}}
    chat = finished(chat_of(fields))
    assert [tool["function"]["name"] for tool in chat.fields["tools"]] == ["ns__f", "p"]
    assert chat.fields["tool_choice"]["function"]["name"] == "ns__f"
    assert chat.tools == {"ns__f": ToolName("f", "ns"), "p": ToolName("p", custom=True)}
    assert chat.fields["tools"][1]["function"]["parameters"]["required"] == ["input"]
    assert chat.warnings == ["tool ns left out in part", "grammar of tool p not enforced", "tool mcp left out"]


def test_an_answer_that_was_cut_off_is_continued():
    chat = finished(chat_of({"input": [USER, {**said("a"), "status": "incomplete"}]})).fields
    assert (chat["add_generation_prompt"], chat["continue_final_message"]) == (False, True)


# Answers


def answer(**tools):
    return ResponseAnswer({"id": "resp_1"}, "1", tools, seals=True)


def events_of(data):
    return [json.loads(event.partition(b"data: ")[2]) for event in data.split(b"\n\n") if event]


def delta(finish=None, **members):
    return ChatChunk(choices=[ChunkChoice(Delta(**members), finish)])


def call(index, name, arguments, id_=None):
    return CallDelta(index, id_, FunctionDelta(name, arguments))


def test_thoughts_texts_and_interleaved_calls_are_items_in_order():
    converter = answer(ns__g=ToolName("g", "ns"), p=ToolName("p", custom=True))
    chunks = [
        delta(reasoning="Hm"),
        delta(reasoning_content="."),
        delta(content="A"),
        delta(tool_calls=[call(0, "f", "", "a"), call(1, "ns__g", "{", "b")]),
        delta(tool_calls=[call(0, None, "{}"), call(1, None, "}"), call(2, "p", '{"input": "x\\n')]),
        delta("tool_calls", tool_calls=[call(2, None, 'y"}')]),
    ]
    events = events_of(b"".join(map(converter.chunk, chunks)) + converter.end() + converter.final())
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == [
        *("reasoning", "message", "function_call", "function_call", "custom_tool_call")
    ]
    assert output == [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert output[0]["content"][0]["text"] == "Hm."
    assert messages(USER, {**output[0], "content": None})[1]["reasoning_content"] == "Hm."
    assert (output[2]["name"], output[2]["arguments"], output[2]["call_id"]) == ("f", "{}", "a")
    assert (output[3]["name"], output[3]["namespace"], output[3]["arguments"]) == ("g", "ns", "{}")
    assert output[4]["input"] == "x\ny"
    for item in output:
        of_item = [event for event in events if event.get("item_id") == item["id"]]
        deltas = "".join(event["delta"] for event in of_item if event["type"].endswith(".delta"))
        (done,) = (e for e in of_item if e["type"].endswith(".done") and "content_part" not in e["type"])
        assert deltas == (done.get("text") or done.get("arguments") or done.get("input"))
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.completed", "completed")


def test_a_whole_answer_says_what_a_stream_says():
    given = {
        "content": "A",
        "reasoning": "Hm.",
        "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}],
    }
    whole = json.loads(answer().whole({"choices": [{"message": given, "finish_reason": "tool_calls"}], "usage": {}}))
    converter = answer()
    converter.chunk(delta(reasoning="Hm.", content="A", tool_calls=[call(0, "f", "{}", "a")]))
    converter.end()
    assert whole["output"] == converter.output


@pytest.mark.parametrize(
    ("arguments", "text"), [('{"input": "a"}', "a"), ("plain", "plain"), ('{"input": 5}', '{"input": 5}'), ("[]", "[]")]
)
def test_the_input_of_a_custom_tool_is_never_lost(arguments, text):
    converter = answer(p=ToolName("p", custom=True))
    converter.chunk(delta(tool_calls=[call(0, "p", arguments)]))
    converter.end()
    assert converter.output[0]["input"] == text


def test_a_stream_that_breaks_before_its_first_event_is_begun_and_failed():
    converter = answer()
    events = events_of(converter.broken(EngineProblem(429, "Busy.")) + converter.final())
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert events[-1]["response"]["error"] == {"code": "rate_limit_exceeded", "message": "Busy."}


@pytest.mark.parametrize("given", [{}, {"choices": []}, {"choices": [{"message": {"content": 5}}]}, {"choices": 5}])
def test_an_answer_of_another_form_is_a_failed_response(given):
    assert json.loads(answer().whole(given))["status"] == "failed"


def test_usage_of_every_form():
    converter = answer()
    details = {"prompt_tokens_details": {"cached_tokens": 6}, "completion_tokens_details": {"reasoning_tokens": 2}}
    converter.chunk(ChatChunk(usage={"prompt_tokens": 10, "completion_tokens": 3, **details}))
    converter.chunk(ChatChunk(usage={"prompt_tokens": "x", "prompt_tokens_details": None}))
    converter.end()
    usage = converter.response()["usage"]
    assert usage["input_tokens_details"] == {"cached_tokens": 6, "cache_write_tokens": 4}
    assert (usage["output_tokens_details"], usage["total_tokens"]) == ({"reasoning_tokens": 2}, 13)


# The store


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


async def test_the_store_forgets_bounds_and_keeps_tenants_apart():
    clock = Clock()
    limits = ResponsesSettings(ttl_seconds=10, max_mib=2, max_tenant_mib=1)
    store = ResponseStore(limits, clock=clock)
    large = Record(before=["x" * 600_000])
    await store.keep("a", "1", large)
    await store.keep("a", "1", large)  # in place of the first
    with pytest.raises(StoreUnavailable) as full:
        await store.keep("a", "2", large)
    assert full.value.retry_after_seconds == 11
    await store.keep("b", "1", Record(before=["b"]))
    assert (await store.one("b", "1")).before == ["b"]
    clock.now = 9
    await store.one("b", "1")  # its time begins anew
    clock.now = 11
    with pytest.raises(NotFound):
        await store.one("a", "1")
    await store.keep("a", "2", large)
    assert (await store.one("b", "1")).before == ["b"]
    await store.remove("a", "2")
    assert await store.find("a", ["2"]) == [None]
    await store.keep("a", "3", large)
