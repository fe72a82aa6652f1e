"""What clients say for other vendors' caches."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from requests_at_random import chats

from gateway.canon.hints import without_hints
from gateway.config.canon_settings import CanonSettings
from gateway.core.request import ChatRequest, Endpoint

PASS = CanonSettings()
KEY = CanonSettings(prompt_cache_key="strip")
CONTROL = CanonSettings(cache_control="strip")
BILLING = CanonSettings(billing_header="strip")
EVERYTHING = CanonSettings(prompt_cache_key="strip", cache_control="strip", billing_header="strip")
MARK = {"type": "ephemeral", "ttl": "1h"}
LINE = "x-anthropic-billing-header: cc_version=2.1.7; cch=a1b2c;"


def request_of(body):
    body = body if isinstance(body, bytes) else json.dumps(body, indent=1).encode()
    return ChatRequest(
        endpoint=Endpoint.CHAT,
        query=b"",
        body=body,
        fields=orjson.loads(body),
        headers=(),
        model="m",
        stream=False,
        usage_wanted=False,
        request_id="r",
        session=None,
        received_at=0.0,
    )


def stripped(body, settings):
    """The fields a request has afterwards; its body is checked to be the same."""
    after = without_hints(request_of(body), settings)
    assert json.loads(after.body) == after.fields
    return after.fields


def chat(*messages, **more):
    return {"model": "m", "messages": list(messages), **more}


def system(*content):
    return {"role": "system", "content": content[0] if isinstance(content[0], str) else list(content[0])}


USER = {"role": "user", "content": f"{LINE}\nHi"}


@pytest.mark.parametrize("key", ["user-7", "k" * 513, "", 7, None, ["a"]])
@pytest.mark.parametrize("settings", [PASS, KEY])
def test_the_cache_key_is_stripped_if_it_is_configured(key, settings):
    request = request_of(chat(USER, prompt_cache_key=key))
    after = without_hints(request, settings)
    assert ("prompt_cache_key" in after.fields) is (settings is PASS)
    assert json.loads(after.body) == after.fields
    assert (after is request) is (settings is PASS)


def test_without_hints_the_request_is_the_very_same():
    request = request_of(chat(system("Be kind."), USER))
    assert without_hints(request, PASS) is request
    assert without_hints(request, EVERYTHING) is request


def test_the_cache_key_alone_is_taken_out_of_the_body_in_all_its_copies():
    body = b'{ "prompt_cache_key":"a" , "model" : "m","messages":[ {"role":"user"} ], "prompt\\u005fcache_key" : "b"\n}'
    after = without_hints(request_of(body), KEY)
    assert after.body == b'{ "model" : "m","messages":[ {"role":"user"} ]\n}'
    assert after.fields["messages"] == [{"role": "user"}]


def test_cache_control_goes_from_messages_parts_and_tools():
    image = {"type": "image_url", "image_url": {"url": "x"}}
    result = {"type": "tool_result", "content": [{"type": "text", "text": "b", "cache_control": MARK}, "c"]}
    function = {"name": "f", "parameters": {"properties": {"cache_control": {"type": "string"}}}}
    body = chat(
        {"role": "system", "content": "a", "cache_control": MARK},
        {"role": "user", "content": [{**image, "cache_control": MARK}, image, "cache_control", result]},
        {"role": "assistant", "content": None},
        tools=[
            {"type": "function", "function": {**function, "cache_control": MARK}, "cache_control": None},
            {"type": "function", "function": function},
            "odd",
        ],
        cache_control=MARK,
    )
    assert stripped(body, CONTROL) == chat(
        {"role": "system", "content": "a"},
        {
            "role": "user",
            "content": [image, image, "cache_control", {**result, "content": [{"type": "text", "text": "b"}, "c"]}],
        },
        {"role": "assistant", "content": None},
        tools=[{"type": "function", "function": function}] * 2 + ["odd"],
        cache_control=MARK,
    )
    assert stripped(body, PASS) == body


def test_what_has_no_mark_is_the_very_same():
    request = request_of(
        chat({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": 1}]}, USER, tools=[{}])
    )
    after = without_hints(request, CONTROL)
    assert after.fields["messages"][1] is request.fields["messages"][1]
    assert after.fields["tools"] is request.fields["tools"]
    assert b'"cache_control"' not in after.body
    assert after.body.endswith(request.body[request.body.index(b'"role": "user",\n   "content": "x-') :])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (f"{LINE}\nBe kind.", "Be kind."),
        (f"A\n  {LINE}\r\nB\n{LINE}", "A\nB\n"),
        (LINE, ""),
        (f"As in `{LINE}`", f"As in `{LINE}`"),
        (f"```\n{LINE}\n```", f"```\n{LINE}\n```"),
    ],
)
def test_lines_of_the_billing_header_go_from_leading_texts(content, expected):
    assert stripped(chat(system(content), USER), BILLING) == chat(system(expected), USER)


def test_a_part_that_holds_nothing_else_goes():
    def text(some):
        return {"type": "text", "text": some}

    blank = text("")
    assert stripped(chat(system([text(LINE), text("A"), LINE, blank]), USER), BILLING) == chat(
        system([text("A"), blank]), USER
    )
    assert stripped(chat(system([text(f"{LINE}\n ")]), USER), BILLING) == chat(system([text(" ")]), USER)
    assert stripped(chat(system([LINE, LINE]), USER), BILLING) == chat(system([""]), USER)
    assert stripped(chat(system([text(f"{LINE}\nA"), {"type": "x", "text": LINE}]), USER), BILLING) == chat(
        system([text("A"), {"type": "x", "text": LINE}]), USER
    )


def test_behind_the_first_message_of_another_nothing_goes():
    body = chat(USER, system(f"{LINE}\nB"))
    assert stripped(body, BILLING) == body
    request = request_of(body)
    assert without_hints(request, BILLING) is request


def test_a_completion_keeps_its_prompt():
    body = {"model": "m", "prompt": LINE, "messages": ["odd", 1]}
    assert stripped(body, EVERYTHING) == body


@given(chats(), st.sampled_from([PASS, KEY, CONTROL, BILLING, EVERYTHING]))
def test_once_is_enough_and_everything_else_stays(fields, settings):
    request = request_of(json.dumps(fields).encode())
    after = without_hints(request, settings)
    assert orjson.loads(after.body) == after.fields
    assert without_hints(after, settings) is after
    assert (after is request) is (after.body == request.body)
    for old, new in zip(request.fields["messages"], after.fields["messages"], strict=True):
        gone = set(old) - set(new)
        assert gone <= {"cache_control"}
        assert all(new[name] is old[name] for name in new if name != "content")
    if settings is not PASS and "prompt_cache_key" in fields:
        assert ("prompt_cache_key" in after.fields) is (settings in (CONTROL, BILLING))


def test_the_billing_header_of_chat_requests_passes_by_default():
    body = chat(system(f"{LINE}\nBe kind."), USER)
    assert stripped(body, CanonSettings()) == body
