"""The rule ``inner-spaces``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from requests_at_random import chats, completions
from text_rule_checks import check_idempotent, check_others_untouched, edits_of, letters, text_after

from gateway.canon.rules.inner_spaces import InnerSpaces

RULE = InnerSpaces()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("You are  Eva.", "You are Eva."),
        ("You are Eva.   Be  kind.\nAnd brief.", "You are Eva. Be kind.\nAnd brief."),
        ("You are Eva.  Be kind.\nYou help.  Be brief.", "You are Eva. Be kind.\nYou help. Be brief."),
        ("-  Be  kind.\n\n1.  Be brief.", "- Be kind.\n\n1. Be brief."),
        ("Ask, (if needed)  for it.  **Now**", "Ask, (if needed) for it. **Now**"),
        ("“He said it.\n\nBe  kind.", "“He said it.\n\nBe kind."),
        ("आप  सहायक हैं।", "आप सहायक हैं।"),
        ("Ask  for 2.  Then go.", "Ask for 2. Then go."),
    ],
)
@pytest.mark.parametrize("role", ["system", "developer", "user", ""])
def test_runs_of_blanks_become_one(text, expected, role):
    assert text_after(RULE, text, role) == expected


@pytest.mark.parametrize(
    "text",
    [
        "You are Eva.",
        "  An indented line, and blanks at its end.  \n   \nx",
        "```\na  b\n```",
        "<pre>a  b</pre>",
        "    indented  code",
        "Call `a  b` once.",
        "Split at “  ” and at '  ' and at \"  \".",
        "SELECT  *  FROM t",
        "SELECT  name  FROM t",
        "DROP  TABLE t;",
        "$ git  commit",
        "CREATE TABLE t (\n  id   int,\n  name text\n)",
        'Say exactly: "a  b  c".',
        "Return ‘x  y’.",
        "Return 'x  y'.",
        "“He said\nit  is late.”",
        "Name    Age    City",
        "Name  Age  City",
        "a  =  b",
        "  The old    pond\n    a frog",
        "  The old  pond\n  a frog",
        "The old   pond",
        "name    price\ntea     low\ncoffee  high",
        "| tea  | low |",
        "tea\tlow  price",
        '{"a":  "b  c"}',
        '"a  b": 1',
        "-rw-r--r--  1 dev dev  812 Nov 21 09:58 README.md",
        "2026-11-21 10:02:00 INFO  it works",
        "@@ -1,3 +1,3 @@\n a\n-b  c\n+b c",
    ],
)
def test_blanks_that_may_have_a_meaning_stay(text):
    assert text_after(RULE, text) == text


def test_answers_and_results_of_tools_stay():
    for role in ("assistant", "tool"):
        assert text_after(RULE, "a  b", role) == "a  b"


def test_each_run_is_an_edit():
    assert edits_of(RULE, "a  b\n\nc.   d") == [(1, "  ", " ", "blanks"), (8, "   ", " ", "blanks")]


@given(fields=chats() | completions())
def test_any_request(fields):
    check_idempotent(RULE, fields)
    check_others_untouched(RULE, fields)


@given(st.text('ab  .1|`"-,\n', max_size=60))
def test_nothing_but_blanks_changes(text):
    after = text_after(RULE, text)
    assert letters(after) == letters(text)
    assert after.count("\n") == text.count("\n")
    check_idempotent(RULE, {"prompt": text})
