"""The encoder against what SGLang's own code rendered (tests/golden, written by ``tests.engine.golden_sglang``)."""

import json
from functools import partial
from pathlib import Path

import pytest

from gateway.core.engine_facts import EngineKind
from gateway.core.errors import TokenizerUnavailable
from gateway.core.request import Endpoint
from gateway.engines import chat_rules
from gateway.simulator.sglang_conversion import encode_as_sglang
from gateway.tokenize.chat_template import detect_sglang_format
from gateway.tokenize.load_tokenizer import load_local

FOLDER = Path(__file__).parents[1] / "golden"
GOLDEN = json.loads((FOLDER / "sglang-0.5.23-chat.json").read_text(encoding="utf-8"))
ASKED = {"sglang: types that are renamed", "sglang: reasoning enabled", "sglang: reasoning with an effort"}
"""Requests that are left to the engine."""
UNUSUAL = ASKED | {"sglang: tools of a system message", "developer with tools", "tool reference"}
UNUSUAL |= {
    "sglang: tools of all forms",
    "deferred tool",
    "everything in one message",
    "sglang: reasoning with an effort",
}
"""Requests of which the simulator does not have every field."""


@pytest.fixture(scope="module")
def encoders():
    given = {name: (FOLDER / f"{name}.jinja").read_text(encoding="utf-8") for name in ("parts", "agent")}
    loaded = {"demo": load_local("builtin:demo")}
    loaded |= {name: load_local("builtin:demo", chat_template=text) for name, text in given.items()}
    for each in loaded.values():
        each.use(chat_rules(EngineKind.SGLANG, "0.5.23"))
    return loaded


def ids_or_refusal(encode, body):
    try:
        return list(memoryview(b"".join(encode(Endpoint.CHAT, body))).cast("I"))
    except TokenizerUnavailable as refusal:
        return str(refusal)


@pytest.mark.parametrize("entry", GOLDEN["requests"], ids=lambda entry: entry["name"])
def test_token_ids_equal_the_engines(encoders, entry):
    for template, expected in entry["token_ids"].items():
        found = ids_or_refusal(encoders[template].encode, entry["body"])
        if isinstance(expected, str):
            continue  # the engine refuses it
        if entry["name"] in ASKED:
            assert isinstance(found, str)
            continue
        assert not isinstance(found, str), found
        assert encoders[template].decode(found) == encoders[template].decode(expected), template
        assert found == expected, template


@pytest.mark.parametrize("entry", GOLDEN["requests"], ids=lambda entry: entry["name"])
def test_simulated_engine_has_the_same_tokens(encoders, entry):
    for template, expected in entry["token_ids"].items():
        if isinstance(expected, list) and entry["name"] not in UNUSUAL:
            found = ids_or_refusal(partial(encode_as_sglang, encoders[template]), entry["body"])
            assert found == expected, template


def test_there_is_something_to_compare():
    rendered = [entry for entry in GOLDEN["requests"] if isinstance(entry["token_ids"]["demo"], list)]
    assert len(rendered) >= 120


@pytest.mark.parametrize(("template", "expected"), GOLDEN["content_formats"])
def test_content_format_is_what_the_engine_detects(template, expected):
    assert detect_sglang_format(template) == expected


@pytest.mark.parametrize("release", GOLDEN["tools"])
def test_tools_are_dumped_as_in_each_release(release):
    rules = chat_rules(EngineKind.SGLANG, release)
    for given, expected in GOLDEN["tools"][release]:
        # As text: the order of the keys counts.
        assert json.dumps(rules.tools({"tools": [given]})) == json.dumps([expected])


def test_a_conversation_encoded_by_its_turns_has_the_same_tokens():
    by_turns, whole = load_local("builtin:demo"), load_local("builtin:demo", cache_mib=0)
    messages = [{"role": "system", "content": "x-anthropic-billing-header: a\nB."}, {"role": "user", "content": " q "}]
    for encoder in (by_turns, whole):
        encoder.use(chat_rules(EngineKind.SGLANG, ""))
    assert by_turns.by_message is not None
    for more in ([], [{"role": "assistant", "content": "a"}], [{"role": "user", "content": "b"}]):
        messages = [*messages, *more]
        assert by_turns.encode(Endpoint.CHAT, {"messages": messages}) == whole.encode(
            Endpoint.CHAT, {"messages": messages}
        )
