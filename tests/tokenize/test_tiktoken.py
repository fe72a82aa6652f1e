"""Files of ranks: how text is split, what lies beside them, and the page about them."""

import base64
import json
from array import array
from pathlib import Path

import pytest
import tiktoken_ext.openai_public as published
import yaml
from markdown_pages import blocks

from gateway.config import settings
from gateway.core.errors import TokenizerUnavailable
from gateway.core.request import Endpoint
from gateway.tokenize.load_tokenizer import PATTERNS, load_local

PAGE = Path(__file__).parents[2] / "docs/how-to/tiktoken.md"
_MERGED = (b"he", b"ll", b"hell", b"hello", b"12", b"123", b"34", b"1234", b"'s", b"t's")
RANKS = [*(bytes([n]) for n in range(256)), *_MERGED]


@pytest.fixture
def ranks(tmp_path):
    """A file of ranks."""
    lines = [base64.b64encode(token) + b" " + str(rank).encode() for rank, token in enumerate(RANKS)]
    path = tmp_path / "model.tiktoken"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def pieces(encoder, text):
    return [RANKS[token] for token in array("I", encoder.encode_text(text))]


def test_special_tokens_and_template_beside_the_ranks_are_used(ranks):
    (ranks.parent / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": {"300": {"content": "<|im_start|>"}, "301": {"content": "<|im_end|>"}}})
    )
    (ranks.parent / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    )
    encoder = load_local(f"tiktoken:{ranks}")
    assert encoder.description["tokenizer_backend"] == "tiktoken"
    (part,) = encoder.encode(Endpoint.CHAT, {"messages": [{"role": "user", "content": "hello!"}]})
    assert array("I", part).tolist() == [300, RANKS.index(b"hello"), ord("!"), 301]


def test_named_encoding_splits_as_its_own_text_is_split(ranks):
    text = "1234 t's"
    assert pieces(load_local(f"tiktoken:{ranks}"), text) == [b"123", b"4", b" ", b"t", b"'s"]
    assert pieces(load_local(f"tiktoken:cl100k_base:{ranks}"), text) == [b"123", b"4", b" ", b"t", b"'s"]
    assert pieces(load_local(f"tiktoken:o200k_base:{ranks}"), text) == [b"123", b"4", b" ", b"t's"]
    assert pieces(load_local(f"tiktoken:r50k_base:{ranks}"), text) == [b"1234", b" ", b"t", b"'s"]


def test_pattern_beside_the_ranks_is_used_unless_an_encoding_is_named(ranks):
    (ranks.parent / "split_pattern.txt").write_text(r"\p{N}|\P{N}+" + "\n")
    assert pieces(load_local(f"tiktoken:{ranks}"), "123hello") == [b"1", b"2", b"3", b"hello"]
    assert pieces(load_local(f"tiktoken:cl100k_base:{ranks}"), "123hello") == [b"123", b"hello"]


def test_another_pattern_is_another_tokenizer(ranks):
    ids = [load_local(f"tiktoken:{name}{ranks}").tokenizer_id for name in ("", "cl100k_base:", "o200k_base:")]
    (ranks.parent / "split_pattern.txt").write_text(r"\p{N}|\P{N}+")
    ids.append(load_local(f"tiktoken:{ranks}").tokenizer_id)
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


def test_ranks_that_were_replaced_are_read_again(ranks):
    before = load_local(f"tiktoken:{ranks}")
    ranks.write_bytes(ranks.read_bytes().replace(base64.b64encode(b"hello"), base64.b64encode(b"hells")))
    after = load_local(f"tiktoken:{ranks}")
    assert pieces(before, "hello") == [b"hello"]
    assert pieces(after, "hello") == [b"hell", b"o"]
    assert before.tokenizer_id != after.tokenizer_id


def test_file_whose_name_has_a_colon_is_read(ranks):
    odd = ranks.rename(ranks.parent / "cl100k_base:model.tiktoken")
    assert pieces(load_local(f"tiktoken:{odd}"), "hello") == [b"hello"]


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        (r"\p{L}+", "leaves out"),
        ("(", "cannot load"),
        ("", "split_pattern.txt has to hold"),
        ("\n", "split_pattern.txt has to hold"),
        ("a|" * 10_000 + "b", "split_pattern.txt has to hold"),
    ],
)
def test_pattern_that_cannot_be_used_is_refused_with_the_reason(ranks, pattern, problem):
    (ranks.parent / "split_pattern.txt").write_text(pattern)
    with pytest.raises(TokenizerUnavailable, match=problem):
        load_local(f"tiktoken:{ranks}")


def test_encoding_and_file_that_do_not_exist_are_named(ranks):
    with pytest.raises(TokenizerUnavailable, match="no split pattern is known of o300k; there is cl100k_base"):
        load_local(f"tiktoken:o300k:{ranks}")
    with pytest.raises(TokenizerUnavailable, match="No such file"):
        load_local("tiktoken:o200k_base:/no/such/file")


@pytest.mark.parametrize("line", [b"no rank", b"aGVsbG8=", b"\xff\xff 5", b"aGVsbG8= five"])
def test_line_that_is_none_is_named(ranks, line):
    ranks.write_bytes(ranks.read_bytes() + b"\n" + line)
    with pytest.raises(TokenizerUnavailable, match=f"line {len(RANKS) + 2} is not a token"):
        load_local(f"tiktoken:{ranks}")


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_are_those_of_the_published_encodings(monkeypatch, name):
    for loader in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
        monkeypatch.setattr(published, loader, lambda *_, **__: {})
    assert PATTERNS[name] == published.ENCODING_CONSTRUCTORS[name]()["pat_str"]


def test_configuration_knows_all_named_patterns():
    assert set(settings._SPLIT_PATTERNS) == set(PATTERNS) == set(published.ENCODING_CONSTRUCTORS)


def test_examples_of_the_page_work(ranks):
    named, own = (yaml.safe_load(each.text)["models"][0]["tokenizer"] for each in blocks(PAGE) if each.kind == "yaml")
    (pattern,) = (each.text for each in blocks(PAGE) if each.kind == "text")
    by_name = load_local(named.replace("/models/chat/model.tiktoken", str(ranks)))
    assert pieces(by_name, "1234t's") == [b"123", b"4", b"t's"]
    (ranks.parent / "split_pattern.txt").write_text(pattern)
    by_file = load_local(own.replace("/models/chat/model.tiktoken", str(ranks)))
    assert pieces(by_file, "1234t's") == [b"1", b"2", b"3", b"4", b"t", b"'s"]
    assert all(name in PAGE.read_text() for name in PATTERNS)
