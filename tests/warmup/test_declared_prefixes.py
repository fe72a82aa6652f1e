"""From a declared prefix to the body that is sent."""

import math

import orjson
import pytest
from fake_gateway import CHAT, TEXT

from gateway.core.request import Endpoint
from gateway.warmup.declared import Malformed, declare


def refused(entry):
    with pytest.raises(Malformed) as caught:
        declare(entry)
    return caught.value


def test_one_token_is_asked_for_with_any_prefix():
    prefix = declare({**CHAT, "max_tokens": 900, "max_completion_tokens": 800, "n": 4, "stream": True})
    assert orjson.loads(prefix.body) == {**CHAT, "max_tokens": 1, "n": 1, "stream": False}
    assert prefix.fields == orjson.loads(prefix.body)


@pytest.mark.parametrize(
    "key",
    "stop stop_token_ids stream_options min_tokens best_of use_beam_search logprobs top_logprobs prompt_logprobs"
    " logprob_token_ids echo request_id rid".split(),
)
def test_what_only_concerns_the_answer_is_left_out(key):
    assert key not in declare({**CHAT, key: ["x"]}).fields


def test_what_makes_the_prompt_travels_as_it_is():
    more = {
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "required",
        "chat_template_kwargs": {"enable_thinking": False},
        "cache_salt": "s",
        "documents": [{"text": "d"}],
        "something_new": 1.5,
    }
    assert declare({**CHAT, **more}).fields.items() >= {**CHAT, **more}.items()


def test_our_own_keys_do_not_travel():
    prefix = declare({**CHAT, "tenant": "acme", "scope": "de", "replicas": ["a", "b"]})
    assert (prefix.tenant, prefix.scope, prefix.replicas) == ("acme", "de", {"a", "b"})
    assert prefix.fields.keys() == {"model", "messages", "max_tokens", "n", "stream"}


def test_our_own_keys_may_be_left_open():
    prefix = declare({**CHAT, "tenant": None, "scope": None, "replicas": None})
    assert (prefix.tenant, prefix.scope, prefix.replicas) == (None, "", None)


def test_endpoint_follows_from_what_it_holds():
    assert declare(CHAT).endpoint is Endpoint.CHAT
    assert declare(TEXT).endpoint is Endpoint.COMPLETIONS
    assert declare({"model": "m", "prompt": [1, 2, 3]}).endpoint is Endpoint.COMPLETIONS


@pytest.mark.parametrize(
    ("entry", "location", "message"),
    [
        ("text", (), "expected a mapping with a model and with messages or a prompt, got text"),
        (None, (), "expected a mapping with a model and with messages or a prompt, got nothing"),
        ({}, ("model",), "required, but missing (add it)"),
        ({**CHAT, "model": 7}, ("model",), "expected text, got a number (put it in quotes)"),
        ({**CHAT, "model": ""}, ("model",), "expected text, got empty text"),
        ({"model": "m"}, (), "neither messages (for chat) nor a prompt (for completions): add one of them"),
        ({**CHAT, "prompt": "x"}, ("prompt",), "both messages and a prompt (remove one)"),
        ({**TEXT, "prompt": 5}, ("prompt",), "expected text, a list of texts, or token ids, got a number"),
        ({**TEXT, "prompt": ""}, ("prompt",), "expected text, a list of texts, or token ids, got empty text"),
        ({**CHAT, "messages": "Hi"}, ("messages",), "expected a list of messages, got text"),
        ({**CHAT, "messages": []}, ("messages",), "expected a list of messages, got an empty list"),
        ({**CHAT, "messages": ["Hi"]}, ("messages", 0), "expected a mapping with a role and content, got text"),
        (
            {**CHAT, "messages": [*CHAT["messages"], {"content": "x"}]},
            ("messages", 1, "role"),
            "expected text such as system, user, assistant or tool, got nothing",
        ),
        (
            {**CHAT, "messages": [{"role": "user", "content": True}]},
            ("messages", 0, "content"),
            "expected text or a list of content parts, got true or false",
        ),
        ({**CHAT, "tools": {}}, ("tools",), "expected a list of tools, got a mapping"),
        ({**CHAT, "tenant": 42}, ("tenant",), "expected text, got a number (put it in quotes)"),
        ({**CHAT, "tenant": ""}, ("tenant",), "expected text, got empty text"),
        ({**CHAT, "scope": "d\ne"}, ("scope",), "expected printable text, got text"),
        ({**CHAT, "replicas": "a"}, ("replicas",), "expected a list of replica ids (leave it out for all), got text"),
        (
            {**CHAT, "replicas": []},
            ("replicas",),
            "expected a list of replica ids (leave it out for all), got an empty list",
        ),
        ({**CHAT, "replicas": ["a", 1]}, ("replicas", 1), "expected text, got a number (put it in quotes)"),
        ({**CHAT, "tenants": "acme"}, ("tenants",), "unknown key (did you mean tenant?)"),
        ({**CHAT, "Replica": "a"}, ("Replica",), "unknown key (did you mean replicas?)"),
        ({"model": "m", "message": []}, ("message",), "unknown key (did you mean messages?)"),
    ],
)
def test_a_mistake_says_where_and_what(entry, location, message):
    error = refused(entry)
    assert (error.location, error.message) == (location, message)


def test_a_mistake_never_quotes_the_prompt():
    secret = "do not tell anybody"
    for entry in (secret, {**CHAT, "messages": secret}, {**CHAT, "messages": [secret]}, {**CHAT, "tools": secret}):
        assert secret not in refused(entry).message


@pytest.mark.parametrize("value", [2**70, "\ud800", math.nan, math.inf])
def test_what_json_does_not_have_is_refused(value):
    assert "JSON" in refused({**CHAT, "seed": [value]}).message


def test_nested_too_deep_is_refused():
    deep = []
    for _ in range(400):
        deep = [deep]
    assert "cannot be written as JSON" in refused({**CHAT, "documents": deep}).message
