"""Values in the place of their placeholders, however an answer is divided."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.proxy.restored_answer import MAX_WHOLE_BYTES, RestoringSink

VALUES = {"[email-1]": "anna@example.com", "[email-12]": "bob@example.com", "[person_name-1]": 'Anna "A" Ö\\'}
STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]


class Client:
    """The client's side."""

    gone = interrupted = congested = False

    def __init__(self):
        self.heads = []
        self.pieces = []
        self.ended = False

    def on_writable(self, callback):
        callback()

    def start(self, status, headers):
        assert not self.pieces
        self.heads.append((status, list(headers)))

    def write(self, data, *, more, chunk=None):
        assert self.heads
        assert not self.ended
        self.pieces.append(data)
        self.ended = not more

    @property
    def chunks(self):
        lines = b"".join(self.pieces).decode().split("\n\n")
        return [json.loads(line.removeprefix("data: ")) for line in lines if line and line != "data: [DONE]"]


def event(chunk):
    return f"data: {json.dumps(chunk)}\n\n".encode()


def content(text, index=0, finish=None, name="content"):
    return event({"id": "x", "choices": [{"index": index, "delta": {name: text}, "finish_reason": finish}]})


DONE = b"data: [DONE]\n\n"


def streamed(*events, values=VALUES, last=DONE):
    client = Client()
    sink = RestoringSink(client, values)
    sink.start(200, STREAM)
    for each in events:
        sink.write(each, more=True)
    sink.write(last, more=False)
    assert client.ended
    return client


def text_of(client, index=0, name="content"):
    deltas = [c["delta"] for chunk in client.chunks for c in chunk["choices"] if c["index"] == index]
    return "".join(delta.get(name) or "" for delta in deltas)


TEXT = "Write to [email-1], [email-12] or [email-3] [[person_name-1]] [x](y) [email-1 [EMAIL-1] [email-"
RESTORED = 'Write to anna@example.com, bob@example.com or [email-3] [Anna "A" Ö\\] [x](y) [email-1 [EMAIL-1] [email-'


@given(st.lists(st.integers(0, len(TEXT)), max_size=30), st.sampled_from(["stop", None]))
def test_however_a_text_is_divided(cuts, finish):
    edges = [0, *sorted(cuts), len(TEXT)]
    pieces = [TEXT[start:end] for start, end in itertools.pairwise(edges)]
    client = streamed(*map(content, pieces), content("", finish=finish))
    assert text_of(client) == RESTORED
    assert b"".join(client.pieces).endswith(DONE)


def test_every_character_in_an_event_of_its_own():
    assert text_of(streamed(*map(content, TEXT))) == RESTORED


def test_what_is_no_beginning_of_a_placeholder_is_not_held():
    client = Client()
    sink = RestoringSink(client, VALUES)
    sink.start(200, STREAM)
    for text in ("a [", "x] [phone", " [email-1 "):
        sink.write(content(text), more=True)
    assert text_of(client) == "a [x] [phone [email-1 "


def test_events_without_a_placeholder_stay_byte_for_byte():
    odd = b'data: {"choices" : [{"index":0,"delta":{"content":"\\u00e9 [1]"},"logprobs":NaN}]}\n\n'
    others = [b": comment\n\n", b'data: {"error": {"code": 400}}\n\n', b"data: no json [email-1]\n\n", b"data: 7\n\n"]
    usage = event({"id": "x", "choices": [], "usage": {"prompt_tokens": 1}})
    assert b"".join(streamed(odd, *others, usage).pieces) == b"".join([odd, *others, usage, DONE])


def test_choices_and_fields_do_not_mix():
    client = streamed(
        content("[ema", 0), content("[email", 1), content("[emai", 0, name="reasoning_content"), content("il-1] a", 0),
        content("-12] b", 1),
        content("l-1] c", 0, name="reasoning_content"),
    )  # fmt: skip
    assert text_of(client, 1) == "bob@example.com b"
    assert "anna" not in text_of(client, 0)  # the field in between ended it: what is not whole stays as it is
    assert text_of(client, 0) == "[email-1] a"[0:4] + "il-1] a"
    assert text_of(client, 0, "reasoning_content") == "[email-1] c"[0:5] + "l-1] c"


def call(text, number=0):
    function = {"index": number, "function": {"arguments": text}}
    return event({"choices": [{"index": 0, "delta": {"tool_calls": [function]}, "finish_reason": None}]})


def test_arguments_of_tool_calls_stay_json():
    text = '{"to": "[email-1]", "name": "[person_name-1]"}'
    client = streamed(*(call(text[at : at + 3]) for at in range(0, len(text), 3)))
    found = "".join(c["delta"]["tool_calls"][0]["function"]["arguments"] for x in client.chunks for c in x["choices"])
    assert json.loads(found) == {"to": "anna@example.com", "name": 'Anna "A" Ö\\'}


@pytest.mark.parametrize("finish", ["length", None])
def test_a_held_beginning_comes_with_the_end(finish):
    last = event({"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    client = streamed(content("a [email"), call("[em", 2), last)
    assert text_of(client) == "a [email"
    calls = [c["delta"].get("tool_calls") for chunk in client.chunks for c in chunk["choices"]]
    assert "".join(each[0]["function"]["arguments"] for each in calls if each) == "[em"
    assert client.chunks[-1]["id"] == "x"


def test_a_held_beginning_comes_before_the_error_event_of_a_stream_that_breaks_off():
    error = event({"error": {"message": "broken"}})
    client = streamed(content("a [email"), last=error)
    assert text_of_all(client) == "a [email"
    assert b"".join(client.pieces).endswith(error)


def text_of_all(client):
    return "".join(c["delta"].get("content", "") for chunk in client.chunks for c in chunk.get("choices", ()))


def test_completions_are_restored():
    pieces = [
        event({"choices": [{"index": 0, "text": text, "finish_reason": None}]}) for text in ("[em", "ail-1]", "[")
    ]
    client = streamed(*pieces)
    assert "".join(c["text"] for chunk in client.chunks for c in chunk["choices"]) == "anna@example.com["


def whole(body, *, status=200, more=False):
    client = Client()
    sink = RestoringSink(client, VALUES)
    sink.start(status, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))])
    sink.write(body, more=more)
    return client


def test_an_answer_that_is_no_stream():
    call = {"function": {"name": "f", "arguments": '{"to": "[person_name-1]"}'}}
    message = {"content": "To [email-1].", "reasoning": None, "tool_calls": [call]}
    body = json.dumps({"choices": [{"message": message}, {"text": "[email-12]"}, {}], "usage": {"x": "[email-1]"}})
    client = whole(body.encode())
    (piece,) = client.pieces
    ((_, headers),) = client.heads
    assert dict(headers)[b"content-length"] == b"%d" % len(piece)
    answer = json.loads(piece)
    first = answer["choices"][0]["message"]
    assert (first["content"], answer["choices"][1]["text"]) == ("To anna@example.com.", "bob@example.com")
    assert json.loads(first["tool_calls"][0]["function"]["arguments"]) == {"to": 'Anna "A" Ö\\'}
    assert answer["usage"] == {"x": "[email-1]"}


@pytest.mark.parametrize(
    "body", [b"", b"no json", b"[]", b'{"choices": 3}', b'{"choices": [3]}', b'{"choices": [null]}']
)
def test_another_form_stays(body):
    assert whole(body).pieces == [body]


def test_errors_and_very_large_answers_stay():
    body = json.dumps({"choices": [{"text": "[email-1]"}]}).encode()
    assert whole(body, status=400).pieces == [body]
    assert whole(body, more=True).pieces == [body]
    large = body + b" " * MAX_WHOLE_BYTES
    assert whole(large).pieces == [large]
    assert whole(body).pieces != [body]
