"""Chat completions as answers of the Messages API: no sockets."""

import json
from unittest.mock import Mock

import msgspec
import pytest

from gateway.api.dialects.messages_answer import MessageConverter, error_of, model_entry, model_page
from gateway.api.dialects.translating_sink import ChatChunk, TranslatingSink
from gateway.core import errors

HEADERS = {b"x-gateway-prompt-tokens": b"100", b"x-gateway-prefix-tokens": b"64"}
USED = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 80}}


def events(out: bytes):
    found = []
    for block in out.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def converter(**options):
    made = MessageConverter("m", "id-1", **options)
    made.begin(HEADERS)
    return made


def streamed(*deltas, finish=None, end=True, usage=USED, **options):
    """The events of a stream of these deltas."""
    made = converter(**options)
    chunks = [
        {"model": "m2", "choices": [{"delta": delta}]} for delta in ({"role": "assistant", "content": ""}, *deltas)
    ]
    if finish is not None:
        chunks.append({"choices": [{"delta": {}} | finish]})
    if usage:
        chunks.append({"choices": [], "usage": usage})
    out = b"".join(made.chunk(msgspec.convert(chunk, ChatChunk)) for chunk in chunks)
    return events(out + (made.end() if end else b""))


def deltas_of(found, index):
    return [event["delta"] for event in found if event["type"] == "content_block_delta" and event["index"] == index]


def call(index, arguments=None, **more):
    function = {"arguments": arguments} | ({"name": more.pop("name")} if "name" in more else {})
    return {"tool_calls": [{"index": index, "function": function} | more]}


def test_text():
    found = streamed({"content": "He"}, {"content": "llo"}, finish={"finish_reason": "stop"})
    assert [event["type"] for event in found] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    message = found[0]["message"]
    assert (message["id"], message["model"], message["role"], message["content"]) == ("msg_id-1", "m2", "assistant", [])
    assert message["usage"] == {
        "input_tokens": 36,
        "cache_read_input_tokens": 64,
        "cache_creation_input_tokens": 0,
        "output_tokens": 0,
    }
    assert deltas_of(found, 0) == [{"type": "text_delta", "text": "He"}, {"type": "text_delta", "text": "llo"}]
    assert found[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert found[-2]["usage"] == {
        "input_tokens": 20,
        "cache_read_input_tokens": 80,
        "cache_creation_input_tokens": 0,
        "output_tokens": 7,
    }


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thoughts_text_and_calls_are_blocks_in_their_order(name):
    found = streamed(
        {name: "Hm"},
        {"content": "I look."},
        call(0, "", id="c0", name="look"),
        call(0, '{"a":'),
        call(0, "1}"),
        call(1, "{}", id="c1", name="see"),
        finish={"finish_reason": "tool_calls"},
    )
    starts = [(event["index"], event["content_block"]) for event in found if event["type"] == "content_block_start"]
    assert starts == [
        (0, {"type": "thinking", "thinking": "", "signature": ""}),
        (1, {"type": "text", "text": ""}),
        (2, {"type": "tool_use", "id": "c0", "name": "look", "input": {}}),
        (3, {"type": "tool_use", "id": "c1", "name": "see", "input": {}}),
    ]
    assert [event["index"] for event in found if event["type"] == "content_block_stop"] == [0, 1, 2, 3]
    assert [delta["type"] for delta in deltas_of(found, 0)] == ["thinking_delta", "signature_delta"]
    assert "".join(delta["partial_json"] for delta in deltas_of(found, 2)) == '{"a":1}'
    assert deltas_of(found, 3) == [{"type": "input_json_delta", "partial_json": "{}"}]
    assert found[-2]["delta"]["stop_reason"] == "tool_use"


REASONS = [
    ({"finish_reason": "stop"}, "end_turn", None),
    ({"finish_reason": "stop", "stop_reason": 151645}, "end_turn", None),
    ({"finish_reason": "stop", "stop_reason": "END"}, "stop_sequence", "END"),
    ({"finish_reason": "stop", "matched_stop": "END"}, "stop_sequence", "END"),
    ({"finish_reason": "length"}, "max_tokens", None),
    ({"finish_reason": "tool_calls"}, "tool_use", None),
    ({"finish_reason": "content_filter"}, "refusal", None),
    ({"finish_reason": "abort"}, "end_turn", None),
]


@pytest.mark.parametrize(("finish", "reason", "sequence"), REASONS)
def test_stop_reasons(finish, reason, sequence):
    delta = streamed({"content": "a"}, finish=finish)[-2]["delta"]
    assert delta == {"stop_reason": reason, "stop_sequence": sequence}
    whole = json.loads(converter().whole({"choices": [{"message": {"content": "a"}} | finish]}))
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)


def test_a_demanded_call_that_ends_with_stop_is_a_call():
    found = streamed(call(0, "{}", id="c", name="look"), finish={"finish_reason": "stop"})
    assert found[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_refusal_is_text_and_a_reason():
    found = streamed({"refusal": "No."}, finish={"finish_reason": "stop"})
    assert deltas_of(found, 0) == [{"type": "text_delta", "text": "No."}]
    assert found[-2]["delta"]["stop_reason"] == "refusal"


def test_without_usage_of_the_engine_the_expected_counts():
    usage = streamed({"content": "a"}, usage=None)[-2]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (36, 64)


def test_estimates_are_not_shown_as_usage():
    made = MessageConverter("m", "id-1")
    made.begin(HEADERS | {b"x-gateway-tokens": b"estimated"})
    started = events(made.chunk(msgspec.convert({"usage": USED, "choices": []}, ChatChunk)))
    assert started[0]["message"]["usage"]["input_tokens"] == 20


def test_a_stream_that_breaks_in_a_call_ends_in_an_error():
    made = converter()
    out = made.chunk(msgspec.convert({"choices": [{"delta": call(0, '{"a":', id="c", name="look")}]}, ChatChunk))
    found = events(out + made.broken(errors.EngineProblem(200, "The replica broke off.")))
    assert found[-1]["type"] == "error"
    assert found[-1]["error"]["message"] == "The replica broke off."
    assert "message_stop" not in [event["type"] for event in found]


def test_a_stream_without_events_has_a_beginning_and_an_end():
    assert [event["type"] for event in events(converter().end())] == ["message_start", "message_delta", "message_stop"]


def test_prewarm_has_no_content():
    found = streamed({"content": "a"}, finish={"finish_reason": "length"}, prewarm=True)
    assert [event["type"] for event in found] == ["message_start", "message_delta", "message_stop"]
    assert found[1]["delta"]["stop_reason"] == "max_tokens"
    assert found[1]["usage"]["output_tokens"] == 0
    whole = json.loads(converter(prewarm=True).whole({"choices": [{"message": {"content": "a"}}], "usage": USED}))
    assert (whole["content"], whole["stop_reason"], whole["usage"]["output_tokens"]) == ([], "max_tokens", 0)


def test_a_whole_answer():
    message = {
        "role": "assistant",
        "reasoning": "Hm.",
        "content": "I look.",
        "tool_calls": [
            {"id": "c0", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}},
            {"id": "c1", "type": "function", "function": {"name": "see", "arguments": '{"a": '}},
        ],
    }
    answer = {"model": "m2", "choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": USED}
    made = json.loads(converter().whole(answer))
    assert made["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "id-1"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c0", "name": "look", "input": {"a": 1}},
        {"type": "tool_use", "id": "c1", "name": "see", "input": {}},
    ]
    assert (made["model"], made["stop_reason"], made["usage"]["output_tokens"]) == ("m2", "tool_use", 7)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": None},
        {"choices": [5]},
        {"choices": [{"message": 5}]},
        {"choices": [{"message": {"content": 5}}]},
    ],
)
def test_an_answer_of_another_form_is_no_success(answer):
    sink = Mock(spec=["start", "write"])
    translating = TranslatingSink(sink, converter(), lambda problem: error_of(problem, "id-1"))
    translating.start(200, [(b"content-type", b"application/json")])
    translating.write(json.dumps(answer).encode(), more=False)
    assert sink.start.call_args.args[0] == 502
    assert json.loads(sink.write.call_args.args[0])["type"] == "error"


@pytest.mark.parametrize(
    "arguments", ['{"a": 123456789012345678901234567890}', {"a": 5}, '{"a":' + "[" * 500 + "]" * 500 + "}"]
)
def test_arguments_of_a_call_may_be_what_engines_send(arguments):
    call = {"id": "c1", "index": None, "function": {"name": "f", "arguments": arguments}}
    answer = {"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    (block,) = json.loads(converter().whole(answer))["content"]
    assert block["input"] == (json.loads(arguments) if isinstance(arguments, str) else arguments)


@pytest.mark.parametrize(
    "chunk",
    [b'{"model":null,"choices":[{"delta":{"content":"A"}}]}', b'{"created":1.5,"choices":[{"delta":{"content":"A"}}]}'],
)
def test_members_of_chunks_that_are_not_needed_may_be_anything(chunk):
    sink = Mock(spec=["start", "write"])
    translating = TranslatingSink(sink, converter(), lambda problem: error_of(problem, "id-1"))
    translating.start(200, [(b"content-type", b"text/event-stream")])
    translating.write(b"data: " + chunk + b"\n\n", more=True)
    assert b'"text":"A"' in sink.write.call_args.args[0]
    translating.write(b'data: {"choices":[{"delta":{"content":5}}]}\n\n', more=False)
    assert b"event: error" in sink.write.call_args.args[0]


@pytest.mark.parametrize(
    ("problem", "status", "kind"),
    [
        (errors.BadRequest("no"), 400, "invalid_request_error"),
        (errors.Unauthorized("no"), 401, "authentication_error"),
        (errors.Forbidden("no"), 403, "permission_error"),
        (errors.NotFound("no"), 404, "not_found_error"),
        (errors.MethodNotAllowed("no"), 405, "invalid_request_error"),
        (errors.PayloadTooLarge("no"), 413, "request_too_large"),
        (errors.RateLimited("no", kind="tokens", code="tokens", retry_after_seconds=1), 429, "rate_limit_error"),
        (errors.Overloaded("no", retry_after_seconds=1), 529, "overloaded_error"),
        (errors.NoReplica("no"), 529, "overloaded_error"),
        (errors.GatewayError("no"), 500, "api_error"),
        (errors.UpstreamFailed("no"), 502, "api_error"),
        (errors.DeadlineExceeded("no"), 504, "api_error"),
        (errors.EngineProblem(404, "no"), 502, "api_error"),
    ],
)
def test_errors(problem, status, kind):
    given, body = error_of(problem, "id-1")
    assert given == status
    assert json.loads(body) == {"type": "error", "error": {"type": kind, "message": "no"}, "request_id": "id-1"}


def test_what_an_engine_refuses_for_its_load_is_an_overload():
    assert error_of(errors.EngineProblem(429, "busy"), "id-1")[0] == 529


ENTRIES = [model_entry({"id": name, "created": 1_700_000_000, "max_model_len": 4096}) for name in "abcde"]


@pytest.mark.parametrize(
    ("query", "ids", "has_more"),
    [
        ({}, "abcde", False),
        ({"limit": "1000"}, "abcde", False),
        ({"limit": "2"}, "ab", True),
        ({"limit": "2", "after_id": "b"}, "cd", True),
        ({"limit": "2", "after_id": "c"}, "de", False),
        ({"limit": "2", "before_id": "d"}, "bc", True),
        ({"before_id": "c"}, "ab", False),
        ({"after_id": "e"}, "", False),
    ],
)
def test_pages_of_models(query, ids, has_more):
    page = model_page(ENTRIES, query)
    assert "".join(entry["id"] for entry in page["data"]) == ids
    assert (page["first_id"], page["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
    assert page["has_more"] is has_more


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"limit": "9" * 5000}, "limit"),
        ({"limit": "x"}, "limit"),
    ]
    + [({name: "z"}, name) for name in ("after_id", "before_id")],
)
def test_pages_that_there_are_not(query, param):
    with pytest.raises(errors.BadRequest) as caught:
        model_page(ENTRIES, query)
    assert caught.value.param == param


def test_a_model_with_an_odd_entry_is_listed():
    entry = model_entry({"id": "a", "created": "yesterday"})
    assert (entry["created_at"], entry["max_tokens"]) == ("1970-01-01T00:00:00Z", None)
