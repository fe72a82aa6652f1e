"""The encoder against what a real vLLM rendered (tests/golden, written by ``python -m tests.engine.golden``)."""

import json
from pathlib import Path

import pytest

from gateway.core.request import Endpoint
from gateway.tokenize.chat_template import detect_content_format
from gateway.tokenize.load_tokenizer import load_local
from tests.engine import places

FOLDER = Path(__file__).parents[1] / "golden"
GOLDEN = json.loads((FOLDER / "vllm-0.32.0-render.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def encoders():
    demo = load_local("builtin:demo")
    given = {name: (FOLDER / f"{name}.jinja").read_text(encoding="utf-8") for name in ("parts", "agent")}
    return {"demo": demo} | {name: load_local("builtin:demo", chat_template=text) for name, text in given.items()}


@pytest.mark.parametrize("entry", GOLDEN["requests"], ids=lambda entry: entry["name"])
def test_token_ids_equal_the_engines(encoders, entry):
    for template, expected in entry["token_ids"].items():
        encoder = encoders[template]
        parts = encoder.encode(Endpoint(entry["endpoint"]), entry["body"])
        ids = [list(memoryview(part).cast("I")) for part in parts]
        # Text first: it says what is different.
        assert [encoder.decode(part) for part in ids] == [encoder.decode(part) for part in expected], template
        assert ids == expected, template


def test_there_is_something_to_compare():
    assert len(GOLDEN["requests"]) >= 60
    chats = [entry for entry in GOLDEN["requests"] if entry["endpoint"] == Endpoint.CHAT]
    assert all(set(entry["token_ids"]) == {"demo", "parts", "agent"} for entry in chats)


@pytest.mark.parametrize(("template", "expected"), GOLDEN["content_formats"])
def test_content_format_is_what_the_engine_detects(template, expected):
    assert detect_content_format(template) == expected


def test_files_of_the_checks_against_real_engines_exist():
    assert places.DEMO_TEMPLATE.is_file()
    assert places.GOLDEN.is_dir()
