"""For any texts: an answer, soon, and no text of a prompt in it."""

import json
import re

import pytest
from differing import answered, chat, code, completion, difference, tool
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.reasons import REASONS, Rung
from gateway.explain.prompt_text import Message, PromptText, Tool, ToolCall

TEXT = st.one_of(
    st.text(max_size=60),
    st.text('ab {}[]":,0123456789-\n\r\t\u00a0\u200bé\u0301年月:TZ@.', max_size=60),
    st.lists(
        st.sampled_from(["Now:", "2026-11-21", "12:00:01", "Anna", "a@b.de", "id=", "ab12cd34ef", "\n", " ", "{", "}"])
    ).map(" ".join),
)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "prompt", "x", ""])
CALLS = st.lists(st.builds(ToolCall, TEXT, TEXT, TEXT), max_size=2).map(tuple)
MESSAGES = st.builds(
    Message,
    ROLES,
    TEXT,
    st.sampled_from(["string", "parts", "none"]),
    st.sampled_from([(), ("image_url",)]),
    TEXT,
    CALLS,
    TEXT,
    TEXT,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "name", "é"]), inner, max_size=3)
    ),
    max_leaves=8,
)
TOOLS = st.one_of(
    st.builds(Tool, TEXT, TEXT, TEXT),
    st.builds(
        lambda name, value: Tool(name, json.dumps(value), str(value)),
        TEXT,
        JSON,
    ),
)


ARGUMENTS = st.dictionaries(
    st.sampled_from(
        [
            "chat_template",
            "chat_template_kwargs",
            "documents",
            "tool_choice",
            "add_generation_prompt",
            "reasoning_effort",
        ]
    ),
    TEXT | st.sampled_from(['{"a":1}', '{"a":"12:00"}', '"none"', "true"]),
    max_size=2,
)
PROMPTS = st.builds(
    PromptText, st.lists(MESSAGES, max_size=5).map(tuple), st.lists(TOOLS, max_size=3).map(tuple), ARGUMENTS
)
REPLIES = st.lists(
    st.builds(answered, st.none() | TEXT, has_calls=st.booleans(), has_reasoning=st.booleans()), max_size=2
)
SHOWN = re.compile(r"‹[a-z\- ]+›")


def _is_masked(text):
    return not any(c.isalnum() and c not in "xX9" for c in SHOWN.sub("", text))


@given(PROMPTS, PROMPTS, st.booleans(), REPLIES, st.booleans(), st.sampled_from([("web", "web"), ("web", "app")]))
def test_any_two_prompts_have_an_answer(before, after, same, replies, tools_first, sources):
    found = difference(before, after, same_conversation=same, replies=replies, tools_first=tools_first, sources=sources)
    if found is None:
        return
    assert REASONS[found.reason].rung is Rung.REUSABLE
    assert found.detail
    assert found.said
    assert _is_masked(found.before)
    assert _is_masked(found.after)
    assert len(found.before) <= 200
    assert len(found.after) <= 200


@given(PROMPTS, st.lists(MESSAGES, max_size=3))
def test_equal_and_longer_prompts_do_not_differ(prompt, more):
    assert difference(prompt, prompt) is None
    longer = PromptText(prompt.messages + tuple(more), prompt.tools, dict(prompt.arguments))
    assert difference(prompt, longer) is None


@given(PROMPTS, PROMPTS, st.booleans())
def test_it_differs_both_ways_or_not_at_all(before, after, same):
    one = difference(before, after, same_conversation=same)
    other = difference(after, before, same_conversation=same)
    assert (one is None) == (other is None)


@given(TEXT, TEXT, TEXT, TEXT)
def test_the_place_is_that_of_the_first_other_character(front, one, other, back):
    before, after = front + one + back, front + other + back
    found = difference(chat(("system", before)), chat(("system", after)))
    if before == after:
        assert found is None
        return
    line, column = 1, 1
    for left, right in zip(before, after, strict=False):
        if left != right:
            break
        line, column = (line + 1, 1) if right == "\n" else (line, column + 1)
    assert (found.line, found.column) == (line, column)


def test_masks_keep_the_form_and_nothing_else():
    before = chat(("system", "Ünï 日本 नमस्ते №5 Ⅷ ﷼ 🅰 x ‹y›: old text, all of it, and more"))
    after = chat(("system", "Ünï 日本 नमस्ते №5 Ⅷ ﷼ 🅰 x ‹y›: new words, some, and more"))
    found = difference(before, after)
    assert found.after.startswith("Xxx xx xxxxxx x9 9 ﷼ x x <x>: xxx xxxxx, xxxx, xxx xxxx")


def test_names_of_tools_are_shown_on_one_line():
    found = difference(chat(tools=[]), chat(tools=[tool("a\nb\u202e" + "c" * 100)]))
    assert "\n" not in found.said
    assert "\u202e" not in found.said
    assert len(found.said) < 100


LENGTH = 250_000
UNITS = [
    "0",
    "7 ",
    " ",
    "\n",
    "\r\n",
    "a",
    "aB3",
    "a.",
    "a@",
    "[",
    '{"a":',
    "12:",
    "1-",
    "1.",
    "1/",
    "x_",
    "A1-",
    "::",
    "\u0301",
    "\u0315\u0300",
    "e\u0301",
    "\u200b",
    "年",
    "11月",
    "ﷺ",
    "Nov 1 ",
    "Monday, ",
    "<think>",
    "key: ",
    '"',
]


@pytest.mark.parametrize("unit", UNITS)
def test_a_long_text_of_anything(unit):
    text = unit * (LENGTH // len(unit))
    for other in (text + "1", "1" + text, text[: LENGTH // 2] + "5" + text[LENGTH // 2 :], text[:-1]):
        assert difference(chat(("system", text), ("user", "a")), chat(("system", other), ("user", "a"))) is not None
    difference(completion(text), completion(text + "1"), replies=[answered(text)])
    difference(chat(("user", "a")), chat(("user", "a"), ("assistant", text)), replies=[answered(text + unit)])


def test_very_many_messages_that_are_alike():
    before = chat(*[("user", "yes"), ("assistant", "no")] * 5_000)
    after = chat(*[("assistant", "no"), ("user", "yes")] * 5_000, ("user", "and"))
    assert code(difference(before, after)) is not None
    trimmed = chat(("user", "x"), *[("user", "yes")] * 10_000, ("user", "end"))
    assert difference(chat(*[("user", "yes")] * 10_001), trimmed) is not None


def test_very_many_tools():
    tools = [tool(f"t{number}") for number in range(2_000)]
    assert code(difference(chat(tools=tools), chat(tools=tools[::-1]))) == ("tools_reordered", "tool_order")


def test_deep_json():
    deep = '{"a":' * 5000 + "1" + "}" * 5000
    found = difference(chat(("system", deep + " 1")), chat(("system", deep.replace("1", "2") + " 1")))
    assert found is not None
    raw = '{"a":' * 900 + "1" + "}" * 900
    one, other = (PromptText((), (Tool("f", text, text),)) for text in (raw, raw.replace("1", "2")))
    assert code(difference(one, other)) == ("tools_changed", "changed")
