"""The rule ``dash-style``."""

import pytest
from cpu_limit import cpu_seconds
from hypothesis import given
from hypothesis import strategies as st
from requests_at_random import chats, completions
from text_rule_checks import check_idempotent, check_others_untouched, edits_of, text_after

from gateway.canon.rules.dash_style import DashStyle

RULE = DashStyle()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("• Be kind.\n• Be brief.", "- Be kind.\n- Be brief."),
        ("Rules:\n  * Be kind.\n  ‣ Be brief.\n– Be quick.", "Rules:\n  - Be kind.\n  - Be brief.\n- Be quick."),
        ("* **Be** kind.", "- **Be** kind."),
        ("Be kind — always – to all ― yes.", "Be kind - always - to all - yes."),
        ("Use it — always.\nYou — rarely — late.", "Use it - always.\nYou - rarely - late."),
        ("• Say “yes” first.", "- Say “yes” first."),
        ("/* a */\n• Be kind — always.", "/* a */\n- Be kind - always."),
        ("“Yes,\nhe said.\n\n• Be kind.", "“Yes,\nhe said.\n\n- Be kind."),
        ("* Be kind\n  and brief", "- Be kind\n  and brief"),
        ("* apples\n* pears", "- apples\n- pears"),
        ("– x – – y", "- x - - y"),
        ("a non\u2011breaking co\u2010worker", "a non-breaking co-worker"),
    ],
)
@pytest.mark.parametrize("role", ["system", "user", ""])
def test_bullets_and_dashes_become_hyphens(text, expected, role):
    assert text_after(RULE, text, role) == expected


@pytest.mark.parametrize(
    "text",
    [
        "- Be kind.",
        "**Bold** and *cursive* and 2 * 3.",
        "* * *\n***\n— —",
        "Pages 10–20, −4 degrees, a—b.",
        "```\n• a — b\n```",
        "Write `a — b` there.",
        "@@ -1 +1 @@\n-• a\n+• b",
        "git checkout -- file",
        "* * * * * /usr/bin/job",
        "* 0 4 * * root /usr/bin/job — nightly",
        "* 8 * * MON-FRI /usr/bin/job",
        "/**\n * Adds — or subtracts.\n * Twice.\n */",
        "// a — b",
        "* main\n  dev",
        "  dev\n* main",
        "* 1f2e3d4c Fix the parser",
        '{\n "a": "x – y"\n}',
        "| tea | — | low |",
        "> He said — twice.",
        "Do not use — or –.",
        "Trenne sie mit — und nie anders.",
        "No bullets: • or *.\nNever an em dash — never.",
        "Say “yes — now” then.",
        "Sag „ja – jetzt“ dann.",
        'Say "yes — now" then.',
        "Say 'yes — now' then.",
        "“Yes,\n• he said — twice.”",
        "Say ‘well\u2011known’.",
        "The king 1939 – 1945, 5 % – 7 %, $3 – $5.",
        "Because I waited — and waited\nThe evening came — so late\nAnd left.",
    ],
)
def test_what_is_no_bullet_and_no_dash_between_words_stays(text):
    assert text_after(RULE, text) == text


def test_codes():
    assert edits_of(RULE, "• a — b\u2011c") == [
        (0, "•", "-", "bullets"),
        (4, "—", "-", "dashes"),
        (7, "‑", "-", "hyphens"),
    ]


def test_answers_stay():
    assert text_after(RULE, "• a — b", "assistant") == "• a — b"


def test_one_very_long_line_does_not_take_the_square_of_its_length():
    text = "a — " * 240_000 + "b"
    with cpu_seconds(10):
        after = text_after(RULE, text)
    assert after == text.replace("—", "-")


@given(fields=chats() | completions())
def test_any_request(fields):
    check_idempotent(RULE, fields)
    check_others_untouched(RULE, fields)


@given(st.text("aA1 •*–—‑ `\n\t-/“\"'.", max_size=60))
def test_every_other_character_stays_in_its_place(text):
    after = text_after(RULE, text)
    assert len(after) == len(text)
    assert all(new == old or (new == "-" and old in "•*–—‑") for new, old in zip(after, text, strict=True))
    check_idempotent(RULE, {"prompt": text})
