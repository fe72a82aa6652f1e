"""What the engine gets is what the client sent, byte for byte; of a stream all but ``stream_options.include_usage``."""

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_gateway import *  # noqa: F403
from running_gateway import COMPLETIONS

from gateway.core.portions import finished
from gateway.proxy.request_body import asking_for_usage

MESSAGES = '"messages":[{"role":"user","content":"Hi"}]'

ODD_BODIES = {
    "whitespace": ' \r\n{\t"model" :\n"demo" ,  "messages": [ {"role":"user" , "content":"Hi" } ]\r\n}\n ',
    "key order": '{"zeta":1,' + MESSAGES + ',"alpha":2,"model":"demo"}',
    "repeated keys": '{"model":"other","model":"demo","seed":1,"seed":2,' + MESSAGES + "}",
    "unknown fields": '{"model":"demo","x_vendor":{"deep":[1,[2,{"a":null}]]},"":"",' + MESSAGES + "}",
    "escapes": '{"model":"demo","messages":[{"role":"user","content":"\\u00e9\\/\\ud83d\\ude00\\u0000 é 😀"}]}',
    "escaped keys": '{"mod\\u0065l":"demo","m\\u0065ssages":[{"role":"user","content":"Hi"}]}',
    "large integer": '{"model":"demo","seed":123456789012345678901234567890,' + MESSAGES + "}",
    "negative zero": '{"model":"demo","a":-0,"b":-0.0,"c":1.0,"d":1,"e":1E+2,"f":100,' + MESSAGES + "}",
    "long fraction": '{"model":"demo","a":0.1000000000000000055511151231257827021181583404541015625,' + MESSAGES + "}",
    "beyond a double": '{"model":"demo","a":1e400,"b":-1e400,"c":1e-400,' + MESSAGES + "}",
    "not a stream": '{"model":"demo","stream":false,"stream_options":null,' + MESSAGES + "}",
    "options without a stream": '{"model":"demo","stream_options":{"include_usage":false},' + MESSAGES + "}",
    "usage asked for": '{"stream":true,"stream_options":{ "include_usage" : true },"model":"demo",' + MESSAGES + "}",
}


@pytest.mark.parametrize("body", ODD_BODIES.values(), ids=ODD_BODIES.keys())
@SHARED  # noqa: F405
async def test_body_arrives_as_it_was_sent(behind, scripted, body):
    answer = await behind.send(body.encode())
    assert answer.status_code == 200
    assert [received.body for received in scripted.received] == [body.encode()]


@SHARED  # noqa: F405
async def test_completion_arrives_as_it_was_sent(behind, scripted):
    body = b'{ "prompt" : ["a", "b"],"model":"demo","echo":false, "max_tokens":5e0 }'
    assert (await behind.send(body, COMPLETIONS)).status_code == 200
    assert scripted.received[0].line == "POST /v1/completions HTTP/1.1"
    assert scripted.received[0].body == body


@SHARED  # noqa: F405
async def test_large_body_arrives_whole(behind, scripted, prose):
    body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": prose(1, 40_000)}]}).encode()
    assert (await behind.send(body)).status_code == 200
    assert scripted.received[0].body == body


ASK = b'"stream_options":{"include_usage":true}'


@pytest.mark.parametrize(
    "body",
    [
        '{"model":"demo","stream":true,' + MESSAGES + "}",
        ' {\n "stream" : true, "model":"demo",' + MESSAGES + ',"seed":123456789012345678901234567890}\n',
        '{"a":"\\"stream_options\\":null","b":{"stream_options":null},"model":"demo","stream":true,' + MESSAGES + "}",
    ],
    ids=["plain", "odd", "decoys"],
)
@SHARED  # noqa: F405
async def test_stream_asks_for_usage_and_is_left_alone_otherwise(behind, scripted, body):
    assert (await behind.send(body.encode())).status_code == 200
    received = scripted.received[0].body
    assert json.loads(received)["stream_options"] == {"include_usage": True}
    assert body.encode() in (received.replace(ASK + b",", b"", 1), received.replace(b"," + ASK, b"", 1))


OPTIONS: dict[str, dict[str, Any]] = {
    "null": {"include_usage": True},
    "{}": {"include_usage": True},
    '{ "include_usage" : false }': {"include_usage": True},
    '{"include_usage":null}': {"include_usage": True},
    '{"x":[1,{"y":"}"}],"include_usage":false}': {"x": [1, {"y": "}"}], "include_usage": True},
    # Counts only together with include_usage, so a client that set just this one gets no usage in its chunks.
    '{"continuous_usage_stats":true}': {"include_usage": True, "continuous_usage_stats": False},
    '{"include_usage":true,"continuous_usage_stats":true}': {"include_usage": True, "continuous_usage_stats": True},
}


@pytest.mark.parametrize(("options", "wanted"), OPTIONS.items(), ids=OPTIONS.keys())
@pytest.mark.parametrize("place", ["first", "middle", "last"])
@SHARED  # noqa: F405
async def test_stream_options_that_are_there_are_changed_in_place(behind, scripted, options, wanted, place):
    before = {"first": "{ ", "middle": '{"model":"demo", ', "last": '{"stream":true,"model":"demo",' + MESSAGES + ", "}
    after = {"first": ',"model":"demo","stream":true,' + MESSAGES + "}", "last": "\n} "}
    head = before[place] + '"stream_options" : '
    tail = after.get(place, ' ,"stream":true,"top_p":1.0,' + MESSAGES + "}")
    assert (await behind.send((head + options + tail).encode())).status_code == 200
    received = scripted.received[0].body.decode()
    assert received.startswith(head)
    assert received.endswith(tail)
    assert json.loads(received[len(head) : -len(tail)]) == wanted


SPELLED = json.JSONDecoder(object_pairs_hook=list, parse_int=str, parse_float=str)
"""Reads objects as lists of pairs, and numbers as they are spelled."""


space = st.text(" \t\r\n", max_size=2)
number = st.sampled_from(["0", "-0", "1.0", "1", "1e400", "1E-7", "123456789012345678901234567890", "0.10"])
escaped = st.sampled_from(['\\"', "\\\\", "\\u00e9", "\\ud83d\\ude00", "\\n", "é", "{", "}", "[", "]", ",", ":", "ab"])
string = st.lists(escaped, max_size=4).map(lambda pieces: '"' + "".join(pieces) + '"')
scalar = st.one_of(number, string, st.sampled_from(["true", "false", "null"]))


@st.composite
def array(draw: Callable[..., Any], items: st.SearchStrategy[str]) -> str:
    return "[" + ",".join(draw(space) + draw(items) + draw(space) for _ in range(draw(st.integers(0, 3)))) + "]"


@st.composite
def mapping(draw: Callable[..., Any], values: st.SearchStrategy[str]) -> str:
    members = [
        draw(space) + draw(string) + draw(space) + ":" + draw(space) + draw(values) + draw(space)
        for _ in range(draw(st.integers(0, 3)))
    ]
    return "{" + ",".join(members) + "}"


value = st.recursive(scalar, lambda inner: st.one_of(array(inner), mapping(inner)), max_leaves=6)
option = st.one_of(
    st.sampled_from(list(OPTIONS)),
    value.map(lambda text: '{"other" :' + text + ', "include_usage": false}'),
    value.map(lambda text: '{"other" :' + text + "}"),
)


@st.composite
def bodies(draw: Callable[..., Any]) -> list[str]:
    """A body, cut at the values of its ``stream_options``; it may have none, one, or one more."""
    names = draw(st.lists(st.one_of(string, st.just('"stream_options"')), max_size=5))
    names.insert(draw(st.integers(0, len(names))), '"model"')
    pieces, piece = [], draw(space) + "{"
    for number, name in enumerate(names):
        piece += ("," if number else "") + draw(space) + name + draw(space) + ":" + draw(space)
        if name == '"stream_options"':
            pieces += [piece, draw(option)]
            piece = ""
        else:
            piece += draw(value)
        piece += draw(space)
    return [*pieces, piece + "}" + draw(space)]


@settings(max_examples=150, deadline=None)
@given(bodies())
def test_only_include_usage_changes(pieces):
    body = "".join(pieces)
    fields = json.loads(body)
    result = finished(asking_for_usage(body.encode(), fields)).decode()
    assert json.loads(result)["stream_options"]["include_usage"] is True
    if len(pieces) == 1:
        assert result.replace(ASK.decode() + ",", "", 1) == body
        return
    # Everything outside the values is the same bytes; inside them, all but two members has the same spelling.
    at = 0
    for number, piece in enumerate(pieces):
        if number % 2 == 0:
            assert result.startswith(piece, at)
            at += len(piece)
        else:
            changed, at = SPELLED.raw_decode(result, at)
            if result != body:
                assert others(changed) == others(SPELLED.decode(piece))
    assert at == len(result)


def others(options: list[Any] | None) -> list[Any]:
    return [pair for pair in options or [] if pair[0] not in ("include_usage", "continuous_usage_stats")]


def test_member_of_a_huge_body_is_found_without_a_multiple_of_its_memory():
    text = "x\\n" * 8_000_000
    body = ('{"messages":[{"content":"' + text + '"}],"stream_options":{}}').encode()
    tracemalloc.start()
    asked = finished(asking_for_usage(body, {"stream_options": {}}))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert asked.endswith(b'"stream_options":{"include_usage":true}}')
    assert peak < 4 * len(body)
