"""Files of declared prefixes, and all that can be wrong with them."""

import json
from pathlib import Path

import pytest
from fake_gateway import CHAT, TEXT

from gateway.core.errors import ConfigInvalid
from gateway.warmup import document
from gateway.warmup.document import read_prefixes

EXAMPLE = Path(__file__).parents[2] / "config" / "prefixes.yaml"
GOOD = "- {model: m, prompt: Hello}\n"


@pytest.fixture
def read(tmp_path):
    def read(content, name="p.yaml"):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_prefixes(file)

    return read


@pytest.fixture
def mistakes(read, tmp_path):
    def mistakes(content, name="p.yaml"):
        with pytest.raises(ConfigInvalid) as caught:
            read(content, name)
        assert all("\n" not in problem for problem in caught.value.problems)
        return [problem.removeprefix(f"{tmp_path}/") for problem in caught.value.problems]

    return mistakes


def test_the_example_is_read():
    chat, _, text = read_prefixes(EXAMPLE).declared
    assert chat.tenant == "acme"
    assert chat.fields["messages"][0]["content"].startswith("You are the support assistant of ACME.\nAnswer")
    assert chat.fields["tools"][0]["function"]["parameters"]["required"] == ["order"]
    assert text.fields["prompt"].endswith("article number.\n")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.yaml", json.dumps([CHAT, TEXT], indent=1)),
        ("p.json", json.dumps([CHAT, TEXT], indent=1)),
        ("p.JSON", "\ufeff\n " + json.dumps([CHAT, TEXT]) + "\r\n"),
        ("p.jsonl", json.dumps(CHAT) + "\r\n\n  " + json.dumps(TEXT)),
        ("p.ndjson", json.dumps(CHAT) + "\n" + json.dumps(TEXT) + "\n"),
    ],
)
def test_every_form_says_the_same(read, name, content):
    assert read(content, name).values == [CHAT, TEXT]


def test_characters_beyond_the_basic_plane_and_line_separators_stay_whole(read):
    prefix = {**TEXT, "prompt": "👩‍🚀 \u2028 \x85 ${HOME}"}
    for ascii_only in (True, False):
        text = json.dumps(prefix, ensure_ascii=ascii_only)
        assert read(text, "p.jsonl").values == [prefix]
        assert read(f"[{text}]", "p.json").values == [prefix]


def test_scalars_are_read_as_in_the_configuration(read):
    (prefix,) = read("- {model: m, prompt: off, user: 2024-01-01, top_k: 010, x: !!str 12, y: ~, z: '12'}").values
    assert prefix == {"model": "m", "prompt": "off", "user": "2024-01-01", "top_k": 10, "x": "12", "y": None, "z": "12"}


def test_variables_are_left_alone(read):
    assert read("- {model: m, prompt: 'Use ${NAME} and ${'}").declared[0].fields["prompt"] == "Use ${NAME} and ${"


def test_prefixes_may_share_text_by_alias(read):
    first, second = read(
        "- {model: m, messages: &common [{role: system, content: x}]}\n- {model: n, messages: *common}\n"
    ).values
    assert first["messages"] == second["messages"]


def test_all_malformed_prefixes_are_reported_each_with_its_line(mistakes):
    content = GOOD + "- model: m\n  messages:\n    - role: system\n    - content: x\n- model: 7\n  prompt: x\n- 1\n"
    assert mistakes(content) == [
        "p.yaml:5: [1].messages[1].role: expected text such as system, user, assistant or tool, got nothing",
        "p.yaml:6: [2].model: expected text, got a number (put it in quotes)",
        "p.yaml:8: [3]: expected a mapping with a model and with messages or a prompt, got a number",
    ]


def test_in_json_the_line_is_where_the_prefix_begins(mistakes):
    content = json.dumps([TEXT, {"model": "m"}], indent=2)
    assert mistakes(content, "p.json")[0].startswith("p.json:6: [1]: neither messages")
    assert mistakes(f"{json.dumps(TEXT)}\n\n{{}}\n", "p.jsonl") == [
        "p.jsonl:3: [1].model: required, but missing (add it)"
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("p.yaml", content) for content in ("", "# nothing\n", "~", "[]")),
        *(("p.json", content) for content in (" \n", "[ ]")),
        ("p.jsonl", "\n\n"),
    ],
)
def test_an_empty_file_says_what_it_needs(mistakes, name, content):
    assert mistakes(content, name) == [
        f"{name}:1: the file is empty, expected at least one prefix"
        " (- {model: NAME, messages: [{role: system, content: TEXT}]})"
    ]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("p.yaml", "\nmodel: m\n", "2: expected a list of prefixes at the top of the file"),
        ("p.yaml", "text", "1: expected a list of prefixes at the top of the file"),
        ("p.yaml", GOOD + "-\tmodel: m\n  x: [", "not valid YAML"),
        ("p.yaml", GOOD + "- model: a: b\n", "2: not valid YAML: mapping values are not allowed here (check the inde"),
        ("p.yaml", GOOD + "---\n" + GOOD, "2: not valid YAML: but found another document"),
        ("p.yaml", "- {model: *m}", "1: not valid YAML: found undefined alias 'm'"),
        ("p.yaml", "- {model: \x07}", "1: not valid YAML: a control character (remove it)"),
        ("p.yaml", "[" * 5000, "1: not valid YAML: nested deeper than 64 levels"),
        ("p.yaml", GOOD + "- {model: m, model: n}", "2: [1].model: duplicate key, first on line 2 (remove one)"),
        ("p.yaml", GOOD + "- <<: {model: m}", "2: [1].<<: merge keys are not supported (write the keys out)"),
        ("p.yaml", "- {model: !secret m}", "1: [0].model: unknown tag, or one that does not match the value: !secret"),
        ("p.yaml", "- {model: !!int m}", "1: [0].model: unknown tag, or one that does not match the value"),
        ("p.yaml", "- !!set {a}", "1: [0]: unknown tag: tag:yaml.org,2002:set"),
        ("p.yaml", "- {[1]: x}", "1: [0]: a key must be plain text"),
        ("p.yaml", "- &a {x: *a}", "1: [0].x: an alias that refers to itself"),
        ("p.yaml", f"- {{top_k: {'9' * 5000}}}", "1: [0].top_k: not a usable number"),
        ("p.yaml", b"- model: m\n  prompt: caf\xe9\n", "2: not UTF-8 text (save the file as UTF-8)"),
        ("p.json", '{"model": "m"}', "1: expected a list of prefixes at the top of the file"),
        ("p.json", '[\n{"a": 1},\n]', "3: not valid JSON: Expecting value"),
        ("p.json", '[\n{"a": 1}\n{"a": 1}]', "3: not valid JSON: expected `,` or `]` behind a prefix"),
        ("p.json", "[1", "1: not valid JSON: expected `,` or `]` behind a prefix"),
        ("p.json", "[", "1: not valid JSON: Expecting value"),
        ("p.json", "[1,", "1: not valid JSON: Expecting value"),
        ("p.json", "[1]\n[2]", "2: not valid JSON: more text behind the list (remove it)"),
        ("p.json", '[{"a": 1,\n "a": 2}]', "1: not valid JSON: duplicate key 'a' in one object (remove one)"),
        ("p.json", '[\n{"a": NaN}]', "2: not valid JSON: NaN is not a JSON number"),
        ("p.json", "[" * 100_000, "1: not valid JSON: nested too deep"),
        ("p.json", f"[{{'top_k': {'9' * 5000}}}]", "1: not valid JSON"),
        ("p.jsonl", '{"a": 1}\n{"a": \n', "2: not valid JSON: Expecting value"),
        ("p.jsonl", '{"a": 1} {"a": 1}\n', "1: not valid JSON: more than one value on the line"),
        ("p.jsonl", '\n{"a": 1,\n "b": 2}\n', "2: not valid JSON"),
    ],
)
def test_a_file_that_cannot_be_read_names_the_line(mistakes, name, content, expected):
    (problem,) = mistakes(content, name)
    assert problem.startswith(f"{name}:")
    assert expected in problem


def test_aliases_inside_of_aliases_do_not_eat_the_memory(mistakes, monkeypatch):
    monkeypatch.setattr(document, "_MAX_VALUES", 10_000)
    lines = ["- {x0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]}"]
    lines += [f"- {{x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]}}" for n in range(1, 12)]
    (problem,) = mistakes("\n".join(lines))
    assert "more than 10,000 values (are there aliases inside of aliases?)" in problem


def test_missing_file_and_folder(tmp_path):
    for path, reason in ((tmp_path / "no.yaml", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigInvalid) as caught:
            read_prefixes(path)
        assert caught.value.problems == [f"{path}: cannot be read: {reason}"]
