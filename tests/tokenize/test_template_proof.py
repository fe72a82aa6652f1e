"""Which templates print each message by itself. A wrong yes would give prompts other tokens than the engine's."""

import jinja2
import pytest

from gateway.tokenize.chat_template import ChatTemplate
from gateway.tokenize.load_tokenizer import BUILTIN
from gateway.tokenize.template_proof import prints_messages_alone

START, END = "{{ '<|im_start|>' + message.role + '\n' + ", " + '<|im_end|>\n' }}"
LOOP = "{% for message in messages %}" + START + "message.content" + END + "{% endfor %}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

QWEN = (
    "{%- if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% else %}"
    "{%- if messages[0]['role'] == 'system' %}{{ '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}"
    "{%- else %}{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}{% endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'user' or (message.role == 'system' and not loop.first) or"
    " (message.role == 'assistant' and not message.tool_calls) %}"
    + START
    + "message.content"
    + END
    + "{%- elif message.role == 'assistant' %}{% for call in message.tool_calls %}{% set call = call.function %}"
    "{{ call.arguments | tojson }}{% endfor %}"
    "{%- elif message.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}x{% endif %}"
    "{%- endif %}{% endfor %}" + PROMPT
)
BRANCHES = (
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{{ '<<' + messages[0].content | trim + '>>' }}"
    "{% else %}{% set rest = messages %}{% endif %}" + LOOP.replace("in messages", "in rest") + PROMPT
)
MACRO = "{% macro text(value) %}{{ value | trim }}{% endmacro %}" + LOOP.replace(
    "message.content", "text(message.content)"
)
STRIPPED = LOOP.replace("message.content", "(message.content.split('</think>') | join('')).strip()") + PROMPT
SECOND_HALF = "{% for message in messages[1:] %}" + START + "message.content" + END + "{% endfor %}"

PROVED = {
    "demo": (BUILTIN / "demo" / "chat_template.jinja").read_text(encoding="utf-8"),
    "chatml": LOOP + PROMPT,
    "without a prompt": LOOP,
    "qwen": QWEN,
    "branches": BRANCHES,
    "macro": MACRO + PROMPT,
    "stripped": STRIPPED,
    "second half": "{{ messages[0].content }}" + SECOND_HALF + PROMPT,
    "refuses a role": "{% if messages[0].role == 'tool' %}{{ raise_exception('no') }}{% endif %}" + LOOP + PROMPT,
}
REFUSED = {
    "last message": LOOP.replace("message.content", "(message.content if loop.last else '')"),
    "number": LOOP.replace("message.content", "loop.index | string + message.content"),
    "first of the rest": "{% set rest = messages[1:] %}"
    + LOOP.replace("in messages", "in rest").replace("message.content", "(message.content if loop.first else '')"),
    "message in front": LOOP.replace("message.content", "messages[loop.index0 - 1].content"),
    "any role in front": LOOP.replace(
        "message.content", "(message.content if messages[loop.index0 - 1].role != 'tool' else '')"
    ),
    "last by index": LOOP.replace("message.content", "messages[-1].content"),
    "first message in the loop": LOOP.replace("message.content", "messages[0].content"),
    "number of messages": "{{ messages | length }}" + LOOP,
    "number of the rest": "{% set rest = messages[1:] %}{{ rest | length }}" + LOOP,
    "all as text": "{{ messages }}" + LOOP,
    "all as a fallback": "{% set all = messages or [] %}{{ all | length }}" + LOOP,
    "state": "{% set state = namespace(n=0) %}"
    + LOOP.replace("{{", "{% set state.n = state.n + 1 %}{{ state.n ~").replace("'<|im_start", " '<|im_start"),
    "value set in front": "{% set name = messages[0].content %}" + LOOP.replace("message.content", "name"),
    "prompt in the loop": LOOP.replace("message.content", "(message.content if add_generation_prompt else '')"),
    "prompt in front": PROMPT + LOOP,
    "text behind": LOOP + "the end",
    "no prompt": LOOP + PROMPT.replace("{% endif %}", "{% else %}the end{% endif %}"),
    "prompt of the last": LOOP + PROMPT.replace("assistant\n'", "' + messages[-1].role"),
    "prompt of what was set": "{% set name = messages[0].content %}"
    + LOOP
    + PROMPT.replace("assistant\n'", "' + name"),
    "two loops": LOOP + LOOP,
    "loop in front, in a branch": "{% if true %}{% for message in messages %}{{ message.role }}{% endfor %}{% endif %}"
    + LOOP,
    "reversed": LOOP.replace("in messages", "in messages[::-1]"),
    "some": LOOP.replace("in messages", "in messages if message.content"),
    "one": LOOP.replace("in messages", "in messages[1:2]"),
    "unknown method": LOOP.replace("message.content", "message.content.zfill(3)"),
    "not for tools": "{% for message in messages %}{% if message.role != 'tool' %}{{ messages[-1].content }}{% endif %}"
    + "{% endfor %}",
    "all but two": LOOP.replace("in messages", "in messages[2:]"),
    "perhaps no list": "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% endif %}"
    + LOOP.replace("in messages", "in rest"),
    "another list": "{% set rest = messages %}{% if messages[0].role == 'system' %}{% set rest = [] %}{% endif %}"
    + LOOP.replace("in messages", "in rest"),
    "messages set": "{% set messages = messages[1:] %}{{ messages[0].content }}" + LOOP,
    "macro of all": "{% macro last() %}{{ messages[-1].content }}{% endmacro %}"
    + LOOP.replace("message.content", "last()"),
    "macro given all": "{% macro last(all) %}{{ all[-1].content }}{% endmacro %}{{ last(messages) }}" + LOOP,
    "time": "{{ strftime_now('%d') }}" + LOOP,
    "chance": LOOP.replace("message.content", "['a', 'b'] | random"),
    "changes a list": LOOP.replace("message.content", "(message.content ~ messages.pop())"),
    "changes a list that was set": "{% set seen = [] %}"
    + LOOP.replace("message.content", "(message.content ~ seen.append(1))"),
    "ends early": LOOP.replace("{% endfor %}", "{% if message.role == 'user' %}{% break %}{% endif %}{% endfor %}"),
    "no loop": "{{ messages[0].content }}",
    "recursive": LOOP.replace("in messages", "in messages recursive"),
}


def proved(source: str) -> bool:
    return prints_messages_alone(ChatTemplate(source, {}, "string", fast=False).syntax_tree())


@pytest.mark.parametrize("name", PROVED)
def test_prints_each_message_by_itself(name):
    assert proved(PROVED[name])


@pytest.mark.parametrize("name", REFUSED)
def test_may_print_a_message_differently_among_others(name):
    assert not proved(REFUSED[name])


@pytest.mark.parametrize("folder", ["agent", "parts"])
def test_templates_of_the_golden_files_keep_a_state_or_loop_twice(folder, request):
    source = (request.config.rootpath / "tests" / "golden" / f"{folder}.jinja").read_text(encoding="utf-8")
    assert not proved(source)


def test_what_a_loop_sets_is_gone_in_its_next_round():
    """The proof relies on it, for both renderers."""
    source = "{% for message in messages %}{{ 'old' if x is defined else 'new' }}{% set x = 1 %}{% endfor %}"
    messages = [{"role": "user", "content": "x"}] * 3
    arguments = {"add_generation_prompt": True, "continue_final_message": False}
    assert jinja2.Template(source).render(messages=messages) == "new" * 3
    fast = ChatTemplate(source, {}, "string", fast=True)
    assert fast.backend == "minijinja"
    assert fast.render(messages, None, arguments) == "new" * 3
