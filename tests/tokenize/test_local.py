"""The shipped tokenizer, and folders as a user has them, through the public way of loading."""

import shutil
from array import array

import pytest
from transformers import AutoTokenizer

from gateway.core.errors import TokenizerUnavailable
from gateway.core.request import Endpoint
from gateway.engines.vllm_prompts import conversation, developer_as_system
from gateway.tokenize import proof_corpus as corpus
from gateway.tokenize.chat_template import ChatTemplate, detect_content_format
from gateway.tokenize.load_tokenizer import BUILTIN, load_local

DEMO = BUILTIN / "demo"


def ids(packed):
    return array("I", packed).tolist()


@pytest.fixture(scope="module")
def builtin():
    return load_local("builtin:demo")


@pytest.fixture(scope="module")
def reference():
    return AutoTokenizer.from_pretrained(str(DEMO))


def chat(encoder, messages, **fields):
    (part,) = encoder.encode(Endpoint.CHAT, {"messages": messages, **fields})
    return ids(part)


@pytest.mark.parametrize("text", corpus.TEXTS)
def test_shipped_tokenizer_encodes_like_transformers(builtin, reference, text):
    assert ids(builtin.encode_text(text)) == reference.encode(text, add_special_tokens=False)


def test_shipped_template_renders_like_transformers_for_the_whole_corpus(builtin, reference):
    assert builtin.description["template_backend"] == "minijinja"
    for messages, tools, arguments in corpus.conversations("string"):
        developer = any(message["role"] == "developer" for message in messages)
        seen = developer_as_system(messages) if developer else messages
        expected = reference.apply_chat_template(seen, tools=tools, tokenize=False, **arguments)
        assert builtin.template.render(seen, tools, arguments) == expected


def test_folder_is_loaded_proved_and_equal_to_the_shipped_one(builtin, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder)
    loaded = load_local(str(folder))
    assert loaded.description == {
        "tokenizer_backend": "fastokens",
        "template_backend": "minijinja",
        "content_format": "string",
    }
    messages = [{"role": "user", "content": "Where is my parcel? 📦"}]
    assert chat(loaded, messages) == chat(builtin, messages)


def test_a_fast_tokenizer_that_differs_is_not_used(monkeypatch, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder)

    class Wrong:
        name = "wrong"

        def __init__(self, *_args):
            pass

        def encode(self, text, add_special_tokens):
            return b"\0\0\0\0"

    monkeypatch.setattr("gateway.tokenize.load_tokenizer.FastTokens", Wrong)
    assert load_local(str(folder)).description["tokenizer_backend"] == "tokenizers"


def test_a_fast_tokenizer_that_decodes_differently_only_encodes(monkeypatch, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder)
    assert load_local(str(folder)).decode([300]) != "wrong"
    monkeypatch.setattr("gateway.tokenize.backends.FastTokens.decode", lambda self, ids: "wrong")
    loaded = load_local(str(folder))
    assert loaded.description["tokenizer_backend"] == "fastokens"
    assert loaded.decode([300]) != "wrong"


def test_a_fast_tokenizer_that_cannot_load_the_model_is_not_used(monkeypatch, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder)

    def refuse(*_args):
        raise RuntimeError("unsupported")

    monkeypatch.setattr("gateway.tokenize.load_tokenizer.FastTokens", refuse)
    assert load_local(str(folder)).description["tokenizer_backend"] == "tokenizers"


def test_a_template_that_the_fast_renderer_prints_differently_takes_the_reference(tmp_path):
    # Python prints 1e+22, the fast renderer all its digits.
    source = "{% for m in messages %}{{ m.role }}{{ 1e22 }}: {{ m.content }}\n{% endfor %}"
    encoder = load_local(str(DEMO), chat_template=source)
    assert encoder.description["template_backend"] == "jinja2"
    text = encoder.template.render([{"role": "user", "content": "x"}], None, {"add_generation_prompt": True})
    assert text == "user1e+22: x\n"


def test_continue_final_message_leaves_the_last_message_open(builtin, reference):
    messages = [{"role": "user", "content": "Say ten words"}, {"role": "assistant", "content": "One two"}]
    expected = reference.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    got = chat(builtin, messages, add_generation_prompt=False, continue_final_message=True)
    assert got == reference.encode(expected, add_special_tokens=False)
    assert expected.endswith("One two")


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [("one text", 1), (["two", "texts"], 2), ([1, 2, 3], 1), ([[1, 2], [3]], 2)],
)
def test_completion_prompts_in_all_their_forms(builtin, prompt, parts):
    assert len(builtin.encode(Endpoint.COMPLETIONS, {"prompt": prompt})) == parts


def test_token_ids_of_a_completion_are_taken_as_they_are(builtin):
    (part,) = builtin.encode(Endpoint.COMPLETIONS, {"prompt": [5, 6, 4000]})
    assert ids(part) == [5, 6, 4000]


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]},
        {"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ messages }}"},
        {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [7]}]},
        {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": [1]},
        {"messages": [{"role": "user", "content": "x"}], "continue_final_message": True},
    ],
)
def test_what_only_the_engine_can_tokenize_is_said_to_be_so(builtin, fields):
    if fields.get("continue_final_message"):
        fields = fields | {"messages": []}
    with pytest.raises(TokenizerUnavailable):
        builtin.encode(Endpoint.CHAT, fields)


@pytest.mark.parametrize("prompt", [[], [1, "a"], [-1], [2**40], {"a": 1}, [[1], "x"]])
def test_completion_prompts_that_are_none_are_said_to_be_so(builtin, prompt):
    with pytest.raises(TokenizerUnavailable):
        builtin.encode(Endpoint.COMPLETIONS, {"prompt": prompt})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("builtin:nothing", "builtin:demo"),
        ("builtin:../demo", "builtin:demo"),
        ("/no/such/folder", "not a folder"),
        ("tiktoken:no-such-encoding", "no-such-encoding"),
    ],
)
def test_tokenizer_that_cannot_be_had_is_named_with_the_reason(name, words):
    with pytest.raises(TokenizerUnavailable, match=words):
        load_local(name)


def test_folder_without_tokenizer_files_is_named_with_the_reason(tmp_path):
    with pytest.raises(TokenizerUnavailable, match="cannot load"):
        load_local(str(tmp_path))


def test_default_template_arguments_and_the_request_s_own():
    source = "{{ mode | default('none') }}{% for m in messages %}{{ m.content }}{% endfor %}"
    encoder = load_local("builtin:demo", chat_template=source, template_arguments={"mode": "server"})
    plain = chat(encoder, [{"role": "user", "content": "x"}])
    own = chat(encoder, [{"role": "user", "content": "x"}], chat_template_kwargs={"mode": "client"})
    assert plain == ids(encoder.encode_text("serverx"))
    assert own == ids(encoder.encode_text("clientx"))


def test_template_hash_names_the_template_and_its_arguments(builtin):
    hashes = {
        builtin.template_hash,
        load_local("builtin:demo", chat_template="{{ messages }}").template_hash,
        load_local("builtin:demo", template_arguments={"a": 1}).template_hash,
    }
    assert len(hashes) == 3
    assert load_local("builtin:demo").template_hash == builtin.template_hash


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "string"),
        ("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages[1:] %}{% for p in m['content'] %}{{ p }}{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages %}{% set c = m.content %}{% for p in c %}{{ p }}{% endfor %}{% endfor %}", "string"),
        (
            "{% macro show(body) %}{% for p in body %}{{ p }}{% endfor %}{% endmacro %}"
            "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
            "openai",
        ),
        (
            "{% set ms = messages %}{% for m in ms %}{% for p in m.content | list %}{{ p }}{% endfor %}{% endfor %}",
            "openai",
        ),
        ("{% for m in messages %}{% for t in m.tool_calls %}{{ t }}{% endfor %}{% endfor %}", "string"),
        ("{% broken", "string"),
    ],
)
def test_content_format_follows_what_the_template_loops_over(source, expected):
    assert detect_content_format(source) == expected


def test_content_parts_are_joined_or_passed_on_as_the_template_requires():
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"type": "text", "text": None}]}]
    assert conversation(messages, "string") == [{"role": "user", "content": "a\nb"}]
    assert conversation(messages, "openai") == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]


def test_a_template_of_the_openai_format_gets_its_parts():
    source = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    template = ChatTemplate(source, {}, fast=True)
    messages = conversation([{"role": "user", "content": "whole"}], template.content_format)
    assert (
        template.render(messages, None, {"add_generation_prompt": False, "continue_final_message": False}) == "[whole]"
    )
