"""The rule ``unicode``."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from levels import slow_except
from requests_at_random import chats, completions
from text_rule_checks import NOW, check_idempotent, check_others_untouched, edits_of, letters, text_after

from gateway.canon.code_spans import fenced
from gateway.canon.rules import unicode as module
from gateway.canon.rules.unicode import Unicode
from gateway.core.canonical import RuleName

RULE = Unicode()
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


def after(text, role="user"):
    return text_after(RULE, text, role)


@pytest.mark.parametrize("role", ["system", "developer", "user", ""])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cafe\u0301 and nai\u0308ve", "café and naïve"),
        ("\ufeffYou are\u200b Bob.\u2060", "You are Bob."),
        ("a\u200b\u0301", "á"),
        ("\u1100\u1161\u11a8", "각"),
        ("\u304b\u3099", "が"),
        ("\u212b \u2126 \u037e", "Å Ω ;"),
        ("q\u0323\u0307 \u1e69 s\u0307\u0323", "q\u0323\u0307 ṩ ṩ"),
        ("می\u200cخواهم क्\u200dष", "می\u200cخواهم क्\u200dष"),
        (FAMILY, FAMILY),
        ("ﬁ ½ ２", "ﬁ ½ ２"),
        ("e\u0301\r\n\n\n e\u0301 ", "é\r\n\n\n é "),
        ("\u200b\ufeff", "\u200b\ufeff"),  # nothing else is in it: it must not become empty
        ("", ""),
    ],
)
def test_composed_and_without_what_has_no_width(text, expected, role):
    assert after(text, role) == expected


@pytest.mark.parametrize(
    "code",
    [
        "```\ne\u0301\u200b\n```",
        "~~~\ne\u0301\u200b\n\n",
        "<pre>e\u0301</pre>",
        "<code>x\u200b</code>",
        "\u1fef\u1fef\u1fef\ne\u0301\n```",  # composed, these would be backticks
    ],
)
def test_code_stays(code):
    assert after(code) == code
    assert after(f"e\u0301\u200b\n{code}", "system") == f"é\n{code}"


def test_what_hides_a_fence_is_no_part_of_it():
    assert after("\ufeff```\ne\u0301\n```\ne\u0301") == "```\ne\u0301\n```\né"
    assert after("``\u200b`\n```\ne\u0301\n```\n") == "``\u200b`\n```\né\n```\n"


@pytest.mark.parametrize("role", ["assistant", "tool", "function", "critic", ""])
def test_what_others_said_comes_back_as_it_was(role):
    assert RULE.detect({"messages": [{"role": role, "content": "e\u0301\u200b"}]}, NOW).edits == ()


def test_edits_are_the_pieces_alone():
    text = "Bonjour, cafe\u0301\u0301 noir\u200b, " + "が" * 50 + "か\u3099" + "が" * 50 + "\ufeffx\u200be\u0301"
    assert edits_of(RULE, text) == [
        (12, "e\u0301", "é", "composed"),
        (20, "\u200b", "", "unseen"),
        (73, "か\u3099", "が", "composed"),
        (125, "\ufeff", "", "unseen"),
        (127, "\u200b", "", "unseen"),
        (128, "e\u0301", "é", "composed"),
    ]
    assert RULE.name is RuleName.UNICODE


def test_of_very_many_edits_neighbours_are_joined():
    text = "cafe\u0301\n" * 1000 + "```\ncafe\u0301"
    edits = RULE.detect({"messages": [{"role": "user", "content": text}]}, NOW).edits
    assert 100 < len(edits) <= 200
    assert max(len(edit.before) for edit in edits) < 100
    assert after(text) == "café\n" * 1000 + "```\ncafe\u0301"


def test_texts_can_be_composed_between_steady_characters():
    steady = re.compile(f"[{module._NEVER_COMBINING}]")
    for char in map(chr, [*range(0xD800), *range(0xE000, 0x110000)]):
        parts = unicodedata.decomposition(char).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            assert not steady.match(chr(int(parts[1], 16))), f"{char!r} is made with it"
        if steady.match(char):
            assert unicodedata.combining(char) == 0
            assert unicodedata.is_normalized("NFC", char)


MARKED = st.lists(
    st.sampled_from(
        [
            *["a", "e", "\u0301", "\u0323", "\u0307", "\u200b", "\u2060", "\ufeff", "\u200d", "\u1100", "\u1161", "각"],
            *["\u11a8", "か", "\u3099", "\u09c7", "\u09be", "\u0344", "\u1fef", "`", "``", "\n", "\n```\n", "~~~", "<"],
            *["pre>", "</pre>", "<code>", "</code>", "\u0338", ">", " ", "\uf900", "\u212b", "😀", "\u0e33", "\u0f71"],
        ]
    )
    | st.characters(exclude_categories=["Cs"]),
    max_size=30,
).map("".join)


@given(MARKED)
def test_nothing_is_lost_but_what_has_no_width(text):
    def plain(some):
        return unicodedata.normalize("NFC", re.sub("[\u200b\u2060\ufeff]", "", some))

    result = after(text)
    assert letters(plain(result)) == letters(plain(text))
    assert plain(result) == plain(text)
    assert after(result) == result
    if "`" not in plain(text) and "~" not in plain(text) and "<" not in plain(text) and plain(text):
        assert result == plain(text)


@given(MARKED)
def test_code_stays_wherever_it_is(text):
    result = after(text)
    code = [result[start:end] for start, end in fenced(result)]
    if unicodedata.is_normalized("NFC", text.replace("\u1fef", "").replace("\u0344", "")) and "\u200b" not in text:
        assert all(piece in result for piece in code)


@given(chats() | completions())
def test_once_is_enough_and_others_are_untouched(fields):
    check_idempotent(RULE, fields)
    check_others_untouched(RULE, fields)


@pytest.mark.parametrize(
    "text",
    slow_except(
        [
            "a" + "\u0301\u0327" * 300_000,
            ("a" + "\u0301\u0327" * 25) * 10_000,
            "\u200b" * 1_000_000 + "x",
            "\u1100\u1161\u11a8" * 300_000,
            "e\u0301 " * 300_000,
            "e\u0301```\n" * 100_000,
        ],
        {600_001, 510_000},
        key=len,
    ),
    ids=str.__len__,
)
def test_texts_made_to_be_slow(text):
    # Quadratic, any of these would take minutes.
    once = after(text)
    assert after(once) == once
