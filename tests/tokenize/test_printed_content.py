"""Which templates print a message's content as it is. A wrong yes would give prompts other tokens than the engine's."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_template_proof import BRANCHES, LOOP, PROMPT, PROVED, STRIPPED

from gateway.core.errors import TokenizerUnavailable
from gateway.core.request import Endpoint
from gateway.tokenize.chat_template import ChatTemplate
from gateway.tokenize.load_tokenizer import load_local
from gateway.tokenize.message_tokens import MessageTokens
from gateway.tokenize.printed_content import Around, around, prints_content
from gateway.tokenize.template_proof import prints_messages_alone


def with_content(expression: str) -> str:
    return LOOP.replace("message.content", expression) + PROMPT


SET = "{% set text = message.content %}"
PRINTED = {name: text for name, text in PROVED.items() if name != "stripped"} | {
    "trimmed": with_content("message.content | trim"),
    "by name": with_content("message['content']"),
    "if it is a text": with_content("(message.content if message.content is string else '')"),
    "if there is one": with_content("(message.content if message.content is not none else '')"),
    "set": LOOP.replace("message.content", "text").replace("{{", SET + "{{"),
    "set together": "{% for message in messages %}"
    "{% set text = '<|im_start|>' + message.role + message.content | trim %}"
    "{% set all = text ~ '<|im_end|>' %}{{ all }}{% endfor %}" + PROMPT,
    "tools": LOOP.replace(
        "{% endfor %}", "{% if message.tool_calls %}{{ message.content | upper }}{% endif %}{% endfor %}"
    ),
    "another member": with_content("message.content + (message.name or '')"),
    "by role": "{% for message in messages %}{% if message.role == 'user' %}<|im_start|>U{{ message.content | trim }}"
    "{% else %}<|im_start|>A \n{{ message.content }} \n{% endif %}{% endfor %}" + PROMPT,
    "spaces around": "{% for message in messages %}{{ '<|im_start|> \n' + message.content | trim + ' \n' }}{% endfor %}"
    + PROMPT,
}
NOT_PRINTED = {
    "split": STRIPPED,
    "upper": with_content("message.content | upper"),
    "trimmed at one end": with_content("message.content.lstrip()"),
    "trimmed with more": with_content("(message.content + ' ') | trim"),
    "trimmed as set": LOOP.replace("message.content", "text | trim").replace("{{", SET + "{{"),
    "trimmed of a character": with_content("message.content | trim('x')"),
    "first character": with_content("message.content[0]"),
    "beginning": with_content("message.content[:10]"),
    "if not empty": with_content("(message.content if message.content else 'none')"),
    "if it is equal": LOOP.replace("{{", "{% if message.content == 'x' %}y{% endif %}{{") + PROMPT,
    "if it has a mark": LOOP.replace("{{", "{% if '</think>' in message.content %}y{% endif %}{{") + PROMPT,
    "if what is set": LOOP.replace("{{", SET + "{% if text %}y{% endif %}{{") + PROMPT,
    "its length": with_content("message.content | length | string"),
    "whole message": with_content("message | tojson"),
    "with get": with_content("message.get('content') | upper"),
    "with get by name": with_content("message['get']('content') | upper"),
    "if it has items": LOOP.replace("{{", "{% if message.items() | length > 5 %}y{% endif %}{{") + PROMPT,
    "characters": "{% for message in messages %}<|im_start|>{% for each in message.content %}{{ each }}.{% endfor %}"
    "{% endfor %}" + PROMPT,
    "condition in a macro": "{% macro text(value) %}{{ value if value else 'none' }}{% endmacro %}"
    + with_content("text(message.content)"),
    "result of a macro": "{% macro text(value) %}{{ value }}{% endmacro %}"
    + with_content("text(message.content) | upper"),
    "given to a macro": "{% macro text(value) %}{{ value | trim }}{% endmacro %}"
    + with_content("text('a' + message.content)"),
    "first one in front": "{{ messages[0].content | upper }}" + LOOP + PROMPT,
    "if the first one": "{% if messages[0].content == 'x' %}y{% endif %}" + LOOP + PROMPT,
    "first one set": "{% set first = messages[0] %}{{ first.content | upper }}" + LOOP + PROMPT,
}


def is_printed(source: str) -> bool:
    tree = ChatTemplate(source, {}, "string", fast=False).syntax_tree()
    return prints_messages_alone(tree) and prints_content(tree)


def renderer(source: str):
    template = ChatTemplate(source, {}, "string", fast=False)

    def render(messages, generation_prompt):
        arguments = {"add_generation_prompt": generation_prompt, "continue_final_message": False}
        return template.render(list(messages), None, arguments)

    return render


@pytest.mark.parametrize("name", PRINTED)
def test_content_is_printed_as_it_is(name):
    assert is_printed(PRINTED[name])


@pytest.mark.parametrize("name", NOT_PRINTED)
def test_content_may_be_changed_or_decided_by(name):
    assert not is_printed(NOT_PRINTED[name])


texts = st.sampled_from(["", "a", "<|im_start|>user\nb<|im_end|>\n", " x ", "\n", " \n", "\x1c\u2003x\x85", "</think>"])
conversations = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["system", "user", "assistant"]),
        texts,
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("name", PRINTED)
@settings(max_examples=settings().max_examples // 3)  # of each template
@given(several=st.lists(conversations, min_size=1, max_size=5))
def test_messages_put_together_have_the_tokens_of_the_whole_text(name, several):
    render = renderer(PRINTED[name])
    tokens = MessageTokens(render, str.encode, ["<|im_start|>"], 2**20, as_it_is=True)
    for conversation in several:
        assert tokens.encode(conversation) == render(conversation, True).encode()


def test_no_template_is_rendered_for_plain_messages():
    render, calls = renderer(PRINTED["chatml"]), []

    def counted(messages, generation_prompt):
        calls.append(messages)
        return render(messages, generation_prompt)

    tokens = MessageTokens(counted, str.encode, ["<|im_start|>"], 2**20, as_it_is=True)
    calls.clear()
    tokens.encode([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])
    assert calls == []


def test_what_stands_around_a_text():
    render = renderer(PRINTED["by role"])
    first = [{"role": "user", "content": "x"}]
    assert around(render, first, "user") == Around("<|im_start|>U", "", is_trimmed=True)
    assert around(render, first, "system") == Around("<|im_start|>A \n", " \n", is_trimmed=False)
    twice = renderer("{% for message in messages %}{{ message.content + message.content }}{% endfor %}")
    assert around(twice, [], "user") is None


def test_role_that_the_template_refuses_is_left_to_it():
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + LOOP + PROMPT
    render = renderer(source)
    assert around(render, [], "system") is None
    tokens = MessageTokens(render, str.encode, ["<|im_start|>"], 2**20, as_it_is=True)
    assert tokens.encode([{"role": "system", "content": "x"}]) is None
    with pytest.raises(TokenizerUnavailable):
        render([{"role": "system", "content": "x"}], True)


@pytest.mark.parametrize("header", ["x-anthropic-billing-header: a\n", "x-anthropic-billing-header: a"])
@pytest.mark.parametrize("roles", [("system", "user"), ("user", "system"), ("user", "user")])
def test_line_that_the_engine_drops_is_dropped(header, roles):
    encoder, whole = load_local("builtin:demo"), load_local("builtin:demo", cache_mib=0)
    fields = {"messages": [{"role": role, "content": header + "text"} for role in roles]}
    assert encoder.encode(Endpoint.CHAT, fields) == whole.encode(Endpoint.CHAT, fields)


def test_shipped_template_is_not_rendered_for_a_conversation():
    template = BRANCHES.replace("<<", "<|im_start|>")
    for given_template in (None, template):
        encoder = load_local("builtin:demo", chat_template=given_template)
        assert encoder.template is not None
        encoder.template.render = lambda *_: pytest.fail("rendered")  # type: ignore[method-assign]
        messages = [{"role": "system", "content": " a "}, {"role": "user", "content": "b"}]
        assert encoder.encode(Endpoint.CHAT, {"messages": messages})[0]
