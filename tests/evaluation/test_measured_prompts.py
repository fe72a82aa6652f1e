"""The prompts of a measurement, and how they are kept apart."""

import json

import pytest

from gateway.core.request import Endpoint
from gateway.evaluation.bad_input import BadInput
from gateway.evaluation.measurement.measure_run import BodyOptions, encoded_body
from gateway.evaluation.measurement.measured_prompts import (
    BuiltInPrompts,
    FilePrompts,
    PromptBody,
    TracePrompts,
    mark,
    marked,
    salted,
)
from gateway.evaluation.workload_trace import TraceRequest, trace_lines

PARTS = [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "Hello"}]


def file(tmp_path, *lines):
    path = tmp_path / "bodies.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_built_in_prompts_are_as_long_as_asked_for_and_all_different():
    prompts = BuiltInPrompts(300, 20, seed=1)
    texts = [prompts.body(number).fields["messages"][0]["content"] for number in range(20)]
    assert {len(text.split()) for text in texts} == {300}
    assert len({text[:40] for text in texts}) == 20
    assert prompts.body(3) == prompts.body(23) == BuiltInPrompts(300, 20, seed=1).body(3)
    prompts.tokens_per_word = 1.5
    assert len(prompts.body(0).fields["messages"][0]["content"].split()) == 200


def test_built_in_prompts_with_a_time_are_equal_behind_it():
    prompts = BuiltInPrompts(100, 20, seed=1, clock=1_795_424_400.0)
    first, second = (prompts.body(number).fields["messages"][0]["content"].split("\n") for number in (0, 1))
    assert (first[0], second[0]) == ("Current time: 2026-11-23 09:00:00", "Current time: 2026-11-23 09:00:01")
    assert first[1] == second[1]


def test_file_of_bodies_begins_again_at_its_end(tmp_path):
    prompts = FilePrompts(
        file(tmp_path, {"messages": [{"role": "user", "content": "Hi"}]}, "", {"prompt": "Once"}), 10, needs_text=True
    )
    assert len(prompts) == 2
    assert [prompts.body(number).endpoint for number in range(3)] == [
        Endpoint.CHAT,
        Endpoint.COMPLETIONS,
        Endpoint.CHAT,
    ]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ((), "holds no request"),
        (({"messages": [{"role": "user", "content": "Hi"}]}, "{oops"), r"bodies.jsonl:2: not JSON"),
        (({"input": "Hi"},), "bodies.jsonl:1: not a request: expected an object with `messages`"),
        (("[1, 2]",), "bodies.jsonl:1: not a request"),
        (("[" * 100_000,), "bodies.jsonl:1: not JSON"),
        (({"prompt": [1, 2, 3]},), "bodies.jsonl:1: its prompt has no text .* `--unique salt`"),
    ],
)
def test_bad_line_is_named(tmp_path, lines, problem):
    with pytest.raises(BadInput, match=problem):
        FilePrompts(file(tmp_path, *lines), 10, needs_text=True)


def test_prompt_of_token_ids_is_taken_with_a_salt(tmp_path):
    assert len(FilePrompts(file(tmp_path, {"prompt": [1, 2, 3]}), 10, needs_text=False)) == 1


@pytest.mark.parametrize("kind", [TracePrompts, lambda path, most: FilePrompts(path, most, needs_text=True)])
def test_file_that_is_not_there_is_named(tmp_path, kind):
    with pytest.raises(BadInput, match=r"missing.jsonl: cannot be read: No such file"):
        kind(tmp_path / "missing.jsonl", 10)


def test_trace_becomes_text_that_is_equal_where_its_blocks_are(tmp_path):
    path = tmp_path / "trace.jsonl"
    requests = [
        TraceRequest(7.0, 96, 5, [1, 2, 3]),
        TraceRequest(7.5, 80, 6, [1, 2, 9]),
        TraceRequest(9.0, 0, 0, []),
    ]
    path.write_bytes(b"".join(trace_lines(requests, 32)))
    prompts = TracePrompts(path, 10)
    assert prompts.times == [0.0, 0.5, 2.0]
    first, second, third = (prompts.body(number) for number in range(3))
    assert [each.output_tokens for each in (first, second, third)] == [5, 6, 1]
    one, other = (each.fields["messages"][0]["content"].split() for each in (first, second))
    assert (len(one), len(other)) == (96, 80)
    assert one[:64] == other[:64]
    assert one[64:70] != other[64:70]
    assert len(TracePrompts(path, 2)) == 2
    prompts.tokens_per_word = 2.0
    assert len(prompts.body(0).fields["messages"][0]["content"].split()) == 48


def test_file_that_is_no_trace_is_refused(tmp_path):
    with pytest.raises(BadInput, match="not a request of a trace"):
        TracePrompts(file(tmp_path, {"messages": []}), 10)
    with pytest.raises(BadInput, match="holds no request"):
        TracePrompts(file(tmp_path), 10)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt": "Once"}, {"prompt": "M. Once"}),
        (
            {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]},
            {"messages": [{"role": "system", "content": "M. Be brief."}, {"role": "user", "content": "Hi"}]},
        ),
        (
            {"messages": [{"role": "assistant", "content": None}, {"role": "user", "content": PARTS}]},
            {
                "messages": [
                    {"role": "assistant", "content": None},
                    {"role": "user", "content": [PARTS[0], {"type": "text", "text": "M. Hello"}]},
                ]
            },
        ),
        ({"messages": [{"role": "user", "content": PARTS[:1]}]}, None),
        ({"messages": "Hi"}, None),
    ],
)
def test_mark_stands_at_the_beginning_of_the_first_text(fields, expected):
    before = json.dumps(fields)
    assert marked(fields, "M.") == expected
    assert json.dumps(fields) == before


def test_marks_are_words_of_which_a_salt_is_made():
    said = mark("a")
    assert len(said.split()) == 6
    assert said != mark("b")
    salt = salted({"prompt": "Once"}, said)["cache_salt"]
    assert salt.replace("-", "").isalpha()
    assert len(salt) < 128


def test_body_is_streamed_with_usage_and_answers_are_equally_long():
    prompt = PromptBody(Endpoint.CHAT, {"model": "x", "max_completion_tokens": 9, "messages": PARTS, "top_k": 3}, 7)
    sent = json.loads(encoded_body(prompt, "demo", "M.", BodyOptions(None, salt=True)))
    assert sent == {
        "model": "demo",
        "messages": PARTS,
        "top_k": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 7,
        "ignore_eos": True,
        "cache_salt": "m",
    }
    plain = json.loads(encoded_body(prompt, "demo", "M.", BodyOptions(5, plain=True)))
    assert plain["max_tokens"] == 5
    assert "ignore_eos" not in plain
    own = json.loads(encoded_body(prompt._replace(output_tokens=None), "demo", "M.", BodyOptions(None)))
    assert own["max_completion_tokens"] == 9
    assert not {"max_tokens", "ignore_eos"} & own.keys()
