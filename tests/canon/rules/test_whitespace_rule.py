"""The rule ``whitespace``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from levels import slow_except
from requests_at_random import chats, completions
from text_rule_checks import NOW, changed, check_idempotent, check_others_untouched, edits_of, letters, text_after

from gateway.canon.code_spans import fenced
from gateway.canon.rules.whitespace import Whitespace
from gateway.core.canonical import RuleName

RULE = Whitespace()

DIFF = "diff --git a/x b/x\n@@ -1,3 +1,3 @@\n a  \n-b\t\n+c   \n \n \n \n d"


def after(text, role="user"):
    return text_after(RULE, text, role)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\r\nb\rc\nd", "a\nb\nc\nd"),
        ("a \nb\t\nc \t \nd", "a\nb\nc\nd"),
        ("a\n\n\nb\n\nc\n\n\n\n\nd", "a\n\nb\n\nc\n\nd"),
        ("a \r\n \t\r\n\r\nb", "a\n\nb"),
        ("a\n   \nb", "a\n\nb"),
        ("\n\n\n\na", "\n\na"),
        ("a\n\n\n  b", "a\n\n  b"),
        ("a\u00a0\nb\u3000\nc\x0b\nd", "a\u00a0\nb\u3000\nc\x0b\nd"),
        ("a  b", "a  b"),
        ("\t\n\n\n\t", "\n\n\t"),
        ("", ""),
    ],
)
def test_line_ends_trailing_space_and_empty_lines(text, expected):
    assert after(text) == expected
    assert after(text + "z", "system") == expected + "z"
    assert after(text + "z", "developer") == expected + "z"


@pytest.mark.parametrize(
    ("role", "expected"),
    [("system", "a\n\nb"), ("developer", "a\n\nb"), ("user", "a\n\nb\n\n  "), ("", "a\n\nb \n\n\n  ")],
)
def test_the_end_of_a_text(role, expected):
    assert after("a\n\n\nb \n\n\n  ", role) == expected


def test_space_behind_the_last_word():
    assert after("You are Bob. \t", "system") == "You are Bob."
    assert after("The answer is ", "user") == "The answer is "
    assert after("The answer is ", "") == "The answer is "
    assert after(" \n\t", "system") == "\n\t"  # nothing else is in it: it must not become empty


def test_only_the_end_of_a_message_is_one():
    parts = [{"type": "text", "text": "You are "}, "the \n", {"type": "text", "text": "Bob \n"}]
    fields = {"messages": [{"role": "system", "content": parts}]}
    assert changed(RULE, fields)["messages"][0]["content"] == [
        {"type": "text", "text": "You are "},
        "the\n",
        {"type": "text", "text": "Bob"},
    ]


@pytest.mark.parametrize(
    "text",
    [
        "```\na \r\n\n\n\nb\t\n```",
        "~~~~ x\na \n~~~ \n\n\n\n~~~~",
        "```python \nnot closed \n\n\n\n  ",
        "- ```\n  a \n\n\n\n  ```",
        "x <pre> a \n\n\n\nb\r\n</pre> y",
        "x <code> a \n\n\n\nb\r\n</code> y",
        DIFF,
        "Tables:\n\nname\tage\tcity\nbob\t\t\n\t\t\nada\t3\t",
        "name\t\t\nbob\t\t\nada\t3\tx",
        "Run this:\n\n    def a():\n\n\n\n    def b():",
        "- one\n\n\tone and a half\n\n\n\n\tone and three quarters",
    ],
)
@pytest.mark.parametrize("role", ["system", "user", ""])
def test_where_space_counts_it_stays(text, role):
    assert after(text, role) == text
    if role:
        assert after(f"a \n\n\n\n{text}\n\nb ", role).startswith(f"a\n\n{text}\n\nb")


def test_around_code_it_goes():
    assert after("a \r\n\r\n\r\n```\r\nx \r\n``` \r\n\r\n\r\nb") == "a\n\n```\r\nx \r\n```\n\nb"
    assert after("see <code>x \n</code> \ny", "system") == "see <code>x \n</code>\ny"
    assert after("```\nx\n```\n\n", "system") == "```\nx\n```"


def test_an_unclosed_fence_keeps_the_end():
    assert after("a \n```\nx \n\n\n", "system") == "a\n```\nx \n\n\n"


def test_changes_end_where_a_line_is_none():
    assert after(DIFF + "\n\nAnd now: \nx", "system") == DIFF + "\n\nAnd now:\nx"
    assert after("+ a \n- b \nc", "system") == "+ a\n- b\nc"


def test_indented_lines_lose_the_space_behind_them():
    assert after("a\n\n    b \r\n\r\n\r\n\r\n    c") == "a\n\n    b\n\n\n\n    c"


def test_tabs_behind_lines_that_are_no_table():
    assert after("a\t\n\tb\t\n\nc\td") == "a\n\tb\n\nc\td"


@pytest.mark.parametrize("role", ["assistant", "tool", "function", "critic", ""])
def test_what_others_said_comes_back_as_it_was(role):
    fields = {"messages": [{"role": role, "content": "a \r\n\n\n\nb "}]}
    assert RULE.detect(fields, NOW).edits == ()


def test_edits_are_the_pieces_alone():
    assert edits_of(RULE, "one \ntwo\r\nthree\n\n\n\nfour\n") == [
        (3, " \n", "\n", "trailing_space"),
        (8, "\r\n", "\n", "line_ends"),
        (15, "\n\n\n\n", "\n\n", "blank_lines"),
        (23, "\n", "", "end"),
    ]
    assert RULE.name is RuleName.WHITESPACE


def test_of_very_many_edits_neighbours_are_joined():
    text = "line\r\n" * 1000 + "```\r\n" * 2 + "end"
    edits = RULE.detect({"messages": [{"role": "user", "content": text}]}, NOW).edits
    assert 100 < len(edits) <= 200
    assert max(len(edit.before) for edit in edits) < 100
    assert after(text) == "line\n" * 1000 + "```\r\n```\nend"


@given(chats() | completions())
def test_once_is_enough_and_others_are_untouched(fields):
    check_idempotent(RULE, fields)
    check_others_untouched(RULE, fields)


SPACED = st.lists(
    st.sampled_from(
        [
            *["a", "b c", " ", "  ", "\t", "\n", "\r", "\r\n", "\n\n\n", "    ", "a\tb", "+", "-", "@@ -1 +1 @@"],
            *["```", "~~~", "\n```\n", "<pre>", "</pre>", "<code>", "</code>", "- ", "> ", "\u3000", "\x0c"],
        ]
    ),
    max_size=30,
).map("".join)


@given(SPACED, st.sampled_from(["system", "user", ""]))
def test_nothing_is_lost_but_space(text, role):
    result = after(text, role)
    assert letters(result) == letters(text)
    assert result.split() == text.split()
    assert after(result, role) == result
    code = [text[start:end] for start, end in fenced(text)]
    assert [result[start:end] for start, end in fenced(result)] == code


@pytest.mark.parametrize(
    "text",
    slow_except(
        [
            " " * 1_000_000 + "x\r",
            "\r" * 1_000_000 + "x",
            "a " + "\t" * 1_000_000 + "\n",
            "a\tb\n" + "\t\n" * 200_000,
            ("a" + " " * 1000) * 1000 + "\r\n",
            ("\n" + " " * 1000 + "a") * 1000 + "\r\n",
            "x\t\n" * 200_000,
            "@@ -1\n" * 100_000 + "\r",
            "```\r" * 100_000,
        ],
        {1_000_002, 1_000_001, 1_000_003},
        key=len,
    ),
    ids=str.__len__,
)
def test_texts_made_to_be_slow(text):
    # Quadratic, any of these would take minutes.
    once = after(text)
    assert after(once) == once
