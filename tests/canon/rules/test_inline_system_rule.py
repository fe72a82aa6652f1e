"""The rule ``inline-system``: system messages inside a conversation, and what templates take."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.canon.rule import NOTHING, RuleContext, applied
from gateway.canon.rules.inline_system import InlineSystem
from gateway.core.request import Endpoint
from gateway.engines.sglang_prompts import SglangRules
from gateway.tokenize.load_tokenizer import load_local

RULE = InlineSystem()
CALL = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLS = {"role": "assistant", "content": None, "reasoning": "I look.", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call00001", "content": "Found."}

END = "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
TEXT = "{{ m.content }}{% for c in m.tool_calls or [] %}({{ c.function.name }}){% endfor %}<|im_end|>"
BODY = f"<|im_start|>{{{{ m.role }}}}\n{TEXT}"
HEAD = "{% if messages[0].role == 'system' %}<|im_start|>{{ messages[0].content }}<|im_end|>{% endif %}"
TEMPLATES = {
    "plain": f"{{% for m in messages %}}{BODY}{{% endfor %}}{END}",
    "marks a last answer": "{% for m in messages %}<|im_start|>{{ m.role }}"
    f"{{% if m.role == 'assistant' and loop.last %}}(thinks){{% endif %}}{TEXT}{{% endfor %}}{END}",
    "refuses": "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}"
    f"{{% endif %}}{BODY}{{% endfor %}}{END}",
    "prints in front": "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}"
    f"{{% for m in messages %}}{{% if m.role != 'system' %}}{BODY}{{% endif %}}{{% endfor %}}{END}",
    "leaves out": f"{HEAD}{{% for m in messages %}}{{% if m.role != 'system' %}}{BODY}{{% endif %}}{{% endfor %}}{END}",
    "wants turns": f"{HEAD}{{% set ns = namespace(asks=false) %}}"
    "{% for m in messages[(messages[0].role == 'system') | int:] %}"
    "{% if m.role != 'tool' and not m.tool_calls %}{% set ns.asks = not ns.asks %}"
    "{% if (m.role == 'user') != ns.asks %}{{ raise_exception('turns') }}{% endif %}{% endif %}"
    f"{BODY}{{% endfor %}}{END}",
    "forgets thoughts": "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}"
    "<|im_start|>{{ m.role }}"
    "{% if m.role == 'assistant' and loop.index0 > ns.last %}{{ m.reasoning_content }}{% endif %}"
    f"{TEXT}{{% endfor %}}{END}",
}  # fmt: skip
TAKEN = {
    "plain": "in_place",
    "marks a last answer": "in_place",
    "refuses": "as_user",
    "prints in front": "as_user",
    "leaves out": "as_user",
    "wants turns": "joined",
    "forgets thoughts": "joined",
}
ENCODERS = {name: load_local("builtin:demo", chat_template=text) for name, text in TEMPLATES.items()}


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def ruled(*messages, takes="in_place"):
    fields = {"messages": list(messages)}
    after = applied(fields, RULE.detect(fields, RuleContext(0.0, later_system=takes)).edits)
    assert not RULE.detect(after, RuleContext(0.0, later_system=takes)).edits
    return after["messages"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_probes_show_how_a_template_takes_later_system_messages(name):
    assert ENCODERS[name].later_system == TAKEN[name]


def test_other_rules_of_the_engine_are_probed_anew_and_without_a_template_messages_are_joined():
    encoder = load_local("builtin:demo", chat_template=TEMPLATES["refuses"])
    encoder.use(SglangRules())
    assert encoder.later_system == "as_user"
    assert RuleContext(0.0).later_system == "joined"


def test_messages_in_front_of_the_first_answer_join_the_head_in_their_order():
    chat = [system("A."), user("Hi"), system("B.\n"), system("C."), said("Yes?"), user("So")]
    assert ruled(*chat) == [system("A.\n\nB.\n\nC."), user("Hi"), said("Yes?"), user("So")]
    assert ruled(user("Hi"), system("A.")) == [system("A."), user("Hi")]
    assert ruled(system("A."), user("Hi"), system(" \n")) == [system("A."), user("Hi")]


@pytest.mark.parametrize(
    ("takes", "expected"),
    [
        ("in_place", [user("So"), system("B."), said("No."), system("C."), system("D."), user("Then?")]),
        ("as_user", [user("So"), user("B."), said("No."), user("C."), user("D."), user("Then?")]),
        ("joined", [user("So\n\nB."), said("No."), user("C.\n\nD.\n\nThen?")]),
    ],
)
def test_later_messages_take_the_form_that_the_template_takes(takes, expected):
    begin = [system("A."), user("Hi"), said("Yes?")]
    later = [user("So"), system("B."), said("No."), system("C."), system("D."), user("Then?")]
    assert ruled(*begin, *later, takes=takes) == [*begin, *expected]


def test_a_reminder_behind_a_tools_result_becomes_a_part_of_it():
    begin = [system("A."), user("Hi"), CALLS]
    assert ruled(*begin, RESULT, system("B."), takes="joined") == [*begin, RESULT | {"content": "Found.\n\nB."}]
    assert ruled(*begin, system("B."), RESULT, takes="joined") == [*begin, RESULT | {"content": "B.\n\nFound."}]
    assert ruled(*begin, system("B."), said("C."), takes="joined") == [*begin, user("B."), said("C.")]


def test_a_message_as_one_part_is_joined_like_the_same_message_as_text():
    text, image = [{"type": "text", "text": "B."}], {"type": "image_url", "image_url": {"url": "data:,"}}
    begin = [system("A."), user("Hi"), said("Yes?")]
    assert ruled(*begin, user("So"), system(text), takes="joined") == [*begin, user("So\n\nB.")]
    parts = [*begin, user([image, {"type": "text", "text": "B."}])]
    assert ruled(*begin, user([image]), system("B."), takes="joined") == parts


def test_what_has_no_system_message_inside_or_an_unknown_form_stays():
    for chat in ([], [system("A."), user("Hi"), said("Yes?")], [user("Hi"), system(None)], [user("Hi"), system({})]):
        assert ruled(*chat, takes="joined") == chat
    developer = [
        {"role": "developer", "content": "A."},
        user("Hi"),
        said("Yes?"),
        {"role": "developer", "content": "B."},
    ]
    assert ruled(*developer, takes="joined") == developer
    completion = RuleContext(0.0, endpoint=Endpoint.COMPLETIONS)
    assert RULE.detect({"messages": [user("Hi"), system("A.")]}, completion) == NOTHING


def test_many_messages_take_time_in_proportion():
    chat = [system("A."), *[system("B" * 100)] * 20_000, said("Yes?"), user("Hi"), *[system("C" * 100)] * 20_000]
    head, _, last = ruled(*chat, takes="joined")
    assert len(head["content"]) > 2_000_000 < len(last["content"])


reminders = st.lists(st.sampled_from(["Mind the gap.", "Be brief.\n", "Ünïcode 例"]).map(system), max_size=2)


@st.composite
def conversations(draw):
    """The messages that an agent adds at each turn, with reminders anywhere; the list of turns."""
    turns = []
    for number in range(draw(st.integers(2, 4))):
        asked = [RESULT] if number and draw(st.booleans()) else [user(f"Question {number}?")]
        turns.append([*draw(reminders), *asked, *draw(reminders)])
    return turns


def in_parts(message):
    """A system message in the other form that some clients give it in later turns."""
    if message["role"] != "system" or isinstance(message["content"], list):
        return message
    return message | {"content": [{"type": "text", "text": message["content"]}]}


def answer_to(turns, number):
    """The answer to a turn: a call where a tool's result follows."""
    return CALLS if number + 1 < len(turns) and RESULT in turns[number + 1] else said(f"Answer {number}.")


@given(st.sampled_from(sorted(TEMPLATES)), conversations(), st.booleans())
def test_the_prompt_of_a_later_turn_begins_with_that_of_the_turn_before(name, turns, as_parts):
    if name == "forgets thoughts" and any(
        RESULT in one and RESULT not in two for one, two in itertools.pairwise(turns)
    ):
        return  # a new question changes such a template's prompt in any case
    encoder, history, before = ENCODERS[name], [system("You help.")], b""
    for number, added in enumerate(turns):
        history = [*history, *added]
        sent = ruled(*history, takes=encoder.later_system)
        (tokens,) = encoder.encode(Endpoint.CHAT, {"messages": sent, "add_generation_prompt": False})
        assert tokens.startswith(before)
        assert str(sent).count("Mind the gap.") == str(history).count("Mind the gap.")
        before = tokens
        history.append(answer_to(turns, number))
        if as_parts:
            history = [in_parts(each) for each in history]
