"""Which requests another replica can go on with, and what it is asked."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pieces import asking

from gateway.core.json_edit import member_values
from gateway.core.request import Endpoint
from gateway.proxy.resume import is_resumable
from gateway.proxy.resume.continued import continued_body, tokens_left

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS
TOOL = {"type": "function", "function": {"name": "f"}}
ANSWERED = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 1, "best_of": 1, "logprobs": False, "tools": [], "response_format": {"type": "text"}},
        {"logprobs": None, "tools": None, "guided_json": None, "temperature": 0, "stop": ["x"], "seed": 3},
        {"messages": ANSWERED, "continue_final_message": True, "add_generation_prompt": False},
        {"return_token_ids": True, "stream_options": {"include_usage": True}},
    ],
    ids=str,
)
def test_plain_text_is_resumable(fields):
    assert is_resumable(asking(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": False},
        {"tools": [TOOL]},
        {"functions": [{"name": "f"}]},
        {"logprobs": True},
        {"prompt_logprobs": 0},
        {"n": 2},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"response_format": "text"},
        {"guided_choice": ["a", "b"]},
        {"structured_outputs": {"regex": "a"}},
        {"echo": True},
        {"include_stop_str_in_output": True},
        {"truncate_prompt_tokens": 100},
        {"kv_transfer_params": {"prompt_token_ids": [1]}},
        {"add_generation_prompt": False},
        {"messages": [*ANSWERED, {"role": "user", "content": "x"}], "continue_final_message": True},
        {
            "messages": [{"role": "assistant", "content": [{"type": "text", "text": "x"}]}],
            "continue_final_message": True,
        },
    ],
    ids=str,
)
def test_other_requests_are_not(fields):
    assert not is_resumable(asking(**fields))


@pytest.mark.parametrize(
    ("fields", "is_one"),
    [
        ({"prompt": "Hi"}, True),
        ({"prompt": ["Hi"]}, True),
        ({"prompt": [1, 2]}, True),
        ({"prompt": [[1, 2]]}, True),
        ({"prompt": ["Hi", "Ho"]}, False),
        ({"prompt": [[1], [2]]}, False),
        ({"prompt": []}, False),
        ({"logprobs": 0}, False),
        ({"best_of": 2}, False),
        ({"suffix": "end"}, False),
    ],
    ids=str,
)
def test_completions_need_one_prompt(fields, is_one):
    assert is_resumable(asking(COMPLETIONS, **fields)) is is_one


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1)


@given(TEXTS, TEXTS, st.sampled_from(["{}", '{"a":"}]\\"","messages":[]}']))
def test_a_chat_gets_the_text_as_the_beginning_of_its_answer(prompt, text, odd):
    body = b'{ "x":%b, "messages" : [ {"role":"user","content":%b} ] ,"stream":true,"temperature":1e0}' % (
        odd.encode(),
        json.dumps(prompt).encode(),
    )
    made = continued_body(asking(body=body), text, None, 3)
    assert made is not None
    assert json.loads(made) == json.loads(body) | {
        "messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": text}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    assert b'"temperature":1e0' in made
    assert b'{"role":"user","content":%b}' % json.dumps(prompt).encode() in made


@given(TEXTS, TEXTS)
def test_a_message_to_be_continued_becomes_longer(begun, text):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": begun}]
    request = asking(messages=messages, continue_final_message=True, add_generation_prompt=False)
    made = continued_body(request, text, None, 1)
    assert made is not None
    longer = {"role": "assistant", "content": begun + text}
    assert json.loads(made) == dict(request.fields) | {"messages": [messages[0], longer]}


@given(TEXTS, TEXTS, st.sampled_from([b"%b", b"[%b]", b"[ %b ]"]))
def test_a_completions_prompt_becomes_longer(prompt, text, form):
    body = b'{"prompt": ' + form % json.dumps(prompt).encode() + b', "stream":true, "max_tokens":9}'
    made = continued_body(asking(COMPLETIONS, body=body), text, None, 2)
    assert made is not None
    found = json.loads(made)
    assert found["prompt"] == ([prompt + text] if b"[" in form else prompt + text)
    assert found["max_tokens"] == 7


@pytest.mark.parametrize("prompt", [[5, 6], [[5, 6]]])
def test_a_prompt_of_tokens_needs_tokens(prompt):
    request = asking(COMPLETIONS, prompt=prompt)
    assert continued_body(request, "ab", None, 2) is None
    made = continued_body(request, "ab", [7, 8], 2)
    assert made is not None
    assert json.loads(made)["prompt"] == ([[5, 6, 7, 8]] if prompt == [[5, 6]] else [5, 6, 7, 8])


def test_a_repeated_prompt_is_continued_where_it_counts():
    made = continued_body(asking(COMPLETIONS, body=b'{"prompt":"a","stream":true,"prompt":"b"}'), "c", None, 1)
    assert made is not None
    assert [made[start:end] for start, end in member_values(made, "prompt")] == [b'"a"', b'"bc"']


@pytest.mark.parametrize(
    ("endpoint", "fields", "left", "sent"),
    [
        (CHAT, {"max_tokens": 10}, 6, {"max_tokens": 6}),
        (CHAT, {"max_completion_tokens": 8, "max_tokens": 10}, 4, {"max_completion_tokens": 4, "max_tokens": 6}),
        (CHAT, {"max_tokens": 10, "min_tokens": 7}, 6, {"max_tokens": 6, "min_tokens": 3}),
        (CHAT, {"max_tokens": 10, "min_tokens": 2}, 6, {"max_tokens": 6, "min_tokens": 0}),
        (CHAT, {}, None, {}),
        (CHAT, {"max_tokens": None}, None, {"max_tokens": None}),
        (COMPLETIONS, {}, 12, {"max_tokens": 12}),
        (COMPLETIONS, {"max_tokens": None}, None, {"max_tokens": None}),
    ],
)
def test_limits_are_lowered_by_what_was_sent(endpoint, fields, left, sent):
    request = asking(endpoint, **fields)
    assert tokens_left(request, 4) == left
    made = continued_body(request, "text", None, 4)
    assert made is not None
    found = json.loads(made)
    assert {name: found[name] for name in found if name.startswith(("max_", "min_"))} == sent
