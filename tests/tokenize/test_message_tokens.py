"""Conversations put together from turns: always the token ids of the whole, in bounded memory, without old messages."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_template_proof import PROVED

from gateway.core.errors import TokenizerUnavailable
from gateway.core.request import Endpoint
from gateway.tokenize import proof_corpus as corpus
from gateway.tokenize.chat_template import ChatTemplate
from gateway.tokenize.load_tokenizer import BUILTIN, load_local
from gateway.tokenize.message_tokens import MessageTokens, boundaries

MIB = 2**20
TEMPLATES = {name: ChatTemplate(text, {}, "string", fast=False) for name, text in PROVED.items()}

messages = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["system", "user", "assistant"]),
        st.sampled_from(["", "a", "b", "<|im_start|>user\nb<|im_end|>\n", " x ", "<|im_", "</think>"]),
    ),
    min_size=1,
    max_size=6,
)


class Counted:
    """Encodes a text as its bytes, and counts the messages that are rendered for it."""

    def __init__(self, template: ChatTemplate, max_bytes: int = MIB) -> None:
        self.template = template
        self.rendered = 0
        self.tokens = MessageTokens(self.render, str.encode, ["<|im_start|>"], max_bytes)

    def render(self, conversation, generation_prompt):
        self.rendered += len(conversation)
        arguments = {"add_generation_prompt": generation_prompt, "continue_final_message": False}
        return self.template.render(list(conversation), None, arguments)


@pytest.mark.parametrize("name", PROVED)
@settings(max_examples=settings().max_examples // 2)  # of each template
@given(conversations=st.lists(messages, max_size=8))
def test_conversation_has_the_tokens_of_its_whole_text(name, conversations):
    counted = Counted(TEMPLATES[name])
    for conversation in conversations:
        for end in (len(conversation), len(conversation) - 1, len(conversation)):
            whole = counted.render(conversation[:end], True).encode() if end else None
            assert counted.tokens.encode(conversation[:end]) == whole


def turns(number: int, count: int) -> list[dict[str, str]]:
    chance = random.Random(number)
    roles = ["system", *(["user", "assistant"] * count)]
    return [{"role": role, "content": str(chance.random()) * 20} for role in roles[: 2 * count]]


def test_turn_costs_its_new_messages():
    counted = Counted(TEMPLATES["demo"])
    for count in range(1, 20):
        counted.rendered = 0
        counted.tokens.encode(turns(1, count))
        assert counted.rendered <= 4  # the answer, the question, and the messages that stand in front for them
    counted.rendered = 0
    counted.tokens.encode(turns(1, 15))
    assert counted.rendered == 0


def test_memory_is_bounded_and_evicted_turns_are_encoded_again():
    counted = Counted(TEMPLATES["demo"], max_bytes=64 * 1024)
    for number in range(300):
        conversation = turns(number % 40, 1 + number % 7)
        assert counted.tokens.encode(conversation) == counted.render(conversation, True).encode()
        assert counted.tokens.weight <= 64 * 1024
    assert counted.tokens.weight > 32 * 1024


def test_large_message_does_not_evict_the_others():
    counted = Counted(TEMPLATES["demo"], max_bytes=64 * 1024)
    counted.tokens.encode(turns(1, 3))
    before = counted.tokens.weight
    large = [{"role": "user", "content": "x" * 60_000}, {"role": "user", "content": "y"}]
    assert counted.tokens.encode(large) == counted.render(large, True).encode()
    assert before <= counted.tokens.weight < before + 1000
    counted.rendered = 0
    counted.tokens.encode(turns(1, 3))
    assert counted.rendered == 0


def test_role_and_text_do_not_run_together():
    counted = Counted(TEMPLATES["demo"])
    two = [{"role": "user", "content": "1"}, {"role": "user", "content": "1"}]
    for one in ("1user1", "1user1 1", " 1user1 1"):
        conversation = [{"role": "user", "content": one}]
        for each in (two, conversation, two):
            assert counted.tokens.encode(each) == counted.render(each, True).encode()


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "content": "x"},
        {"role": "developer", "content": "x"},
        {"role": "user", "content": "x", "name": "Ann"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "tool_calls": []},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": ["user"], "content": "x"},
        {"role": "user", "content": "\ud800"},
        "x",
    ],
)
def test_other_messages_are_encoded_as_a_whole(message):
    assert Counted(TEMPLATES["demo"]).tokens.encode([{"role": "user", "content": "x"}, message]) is None


def test_message_without_an_added_token_in_front_is_encoded_as_a_whole():
    source = (
        "{% for message in messages %}{{ '<|im_start|>' if message.content else 'x' }}{{ message.content }}{% endfor %}"
    )
    counted = Counted(ChatTemplate(source, {}, "string", fast=False))
    user, empty = {"role": "user", "content": "a"}, {"role": "user", "content": ""}
    assert counted.tokens.encode([user, user]) == b"<|im_start|>a<|im_start|>a"
    assert counted.tokens.encode([user, empty]) is None
    prompt = "{% for message in messages %}<|im_start|>{% endfor %}{% if add_generation_prompt %}Answer:{% endif %}"
    with pytest.raises(TokenizerUnavailable):
        Counted(ChatTemplate(prompt, {}, "string", fast=False))


def added(*tokens):
    flags = {"normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
    return json.dumps({"added_tokens": [flags | ({"content": t} if isinstance(t, str) else t) for t in tokens]})


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["<s>", "</s>"], ["<s>", "</s>"]),
        (["<s>", "a<"], ["a<"]),
        (["<s>", "a<s"], ["a<s"]),
        (["<s>", "a<s>b"], ["a<s>b"]),
        (["<s>", "<s>b"], ["<s>", "<s>b"]),
        (["aa"], []),
        ([" x"], []),
        ([{"content": "<s>", "lstrip": True}], []),
        ([{"content": "<s>", "normalized": True}], []),
        ([{"content": "<s>", "single_word": True}], []),
        ([{"content": "<s>", "rstrip": True}], ["<s>"]),
        ([], []),
    ],
)
def test_added_tokens_that_cut_every_text(tokens, expected):
    assert boundaries(added(*tokens)) == expected


def test_shipped_model_uses_it_with_the_same_result():
    encoder, whole = load_local("builtin:demo"), load_local("builtin:demo", cache_mib=0)
    assert encoder.by_message is not None
    rng = random.Random(7)
    for _ in range(60):
        roles = ["system", "user", "assistant", "user"]
        fields = {"messages": [{"role": role, "content": rng.choice(corpus.TEXTS)} for role in roles]}
        assert encoder.encode(Endpoint.CHAT, fields) == whole.encode(Endpoint.CHAT, fields)


@pytest.mark.parametrize(
    "more",
    [
        {"tools": []},
        {"add_generation_prompt": False},
        {"continue_final_message": True, "add_generation_prompt": False},
        {"add_special_tokens": True},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "high"},
        {"documents": []},
    ],
)
def test_arguments_have_the_same_effect_for_a_known_conversation(more):
    encoder, whole = load_local("builtin:demo"), load_local("builtin:demo", cache_mib=0)
    fields = {"messages": turns(3, 2)}
    encoder.encode(Endpoint.CHAT, fields)
    assert encoder.encode(Endpoint.CHAT, fields | more) == whole.encode(Endpoint.CHAT, fields | more)


def test_it_is_not_used_without_a_cache_or_with_arguments_or_for_other_templates():
    assert load_local("builtin:demo", cache_mib=0).by_message is None
    assert load_local("builtin:demo", template_arguments={"x": 1}).by_message is None
    assert load_local("builtin:demo", chat_template="{{ messages | length }}").by_message is None
    assert load_local(str(BUILTIN / "demo")).by_message is not None
