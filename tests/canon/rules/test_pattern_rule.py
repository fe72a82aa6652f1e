"""The rule ``pattern``."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from requests_at_random import chats, completions
from text_rule_checks import NOW, changed, check_idempotent, check_others_untouched, edits_of, text_after

from gateway.canon.rules.pattern import OwnPatterns
from gateway.config.canon_settings import OwnPatternSettings
from gateway.core.canonical import RuleName


def own(*patterns, roles=("system", "developer", "user")):
    """The rule with patterns of (regex, replacement)."""
    return OwnPatterns(
        [
            OwnPatternSettings(name=f"p{number}", regex=regex, replacement=replacement, roles=roles)
            for number, (regex, replacement) in enumerate(patterns)
        ]
    )


def test_replaced_and_taken_out_line_by_line():
    rule = own((r"^Build: \S+\n", ""), (r"v\d+\.\d+", "vX"))
    assert text_after(rule, "You are Bob v1.2.\nBuild: 77a\nSee: Build: 1\n") == "You are Bob vX.\nSee: Build: 1\n"
    assert edits_of(rule, "You are Bob v1.2.\nBuild: 77a\nAnd v3.4") == [
        (12, "v1.2", "vX", "p1"),
        (18, "Build: 77a\n", "", "p0"),
        (33, "v3.4", "vX", "p1"),
    ]
    assert rule.name is RuleName.PATTERN
    said = [edit.summary for edit in rule.detect({"messages": [{"role": "user", "content": "v1.2"}]}, NOW).edits]
    assert said == ["Matches of your own pattern `p1` are replaced or removed."]


def test_a_replacement_stands_as_it_is_written():
    assert text_after(own((r"id=(\d+)", r"id=\1\g<0>")), "id=5") == r"id=\1\g<0>"


def test_only_in_the_messages_of_its_roles():
    rule = OwnPatterns(
        [
            OwnPatternSettings(name="a", regex="red", replacement="X"),
            OwnPatternSettings(name="b", regex="blue", replacement="Y", roles=("user", "tool", "user")),
        ]
    )
    roles = ["system", "developer", "user", "tool", "assistant", "critic"]
    fields = {"messages": [{"role": role, "content": "red blue"} for role in roles]}
    assert [each["content"] for each in changed(rule, fields)["messages"]] == [
        *["X blue", "X blue", "red Y", "red Y", "red blue", "red blue"]
    ]
    assert text_after(rule, "red blue", "") == "red blue"


def test_texts_in_parts():
    parts = [{"type": "text", "text": "a 12", "x": 1}, "b 34", {"type": "image_url", "image_url": {"url": "c 56"}}]
    fields = {"messages": [{"role": "system", "content": parts}]}
    after = changed(own((r" \d+", "")), fields)["messages"][0]["content"]
    assert after == [{"type": "text", "text": "a", "x": 1}, "b", parts[2]]


def test_without_patterns_nothing_is_done():
    assert OwnPatterns(()).detect({"messages": [{"role": "system", "content": "x"}]}, NOW).edits == ()


@pytest.mark.parametrize(
    ("regex", "replacement", "text", "expected"),
    [
        ("<b>", "", "x<b<b>>y", "xy"),  # what is left makes up what is found
        (r"\d+\.\d+", "version 1.0", "at 2.5!", "at version 1.0!"),  # it finds its own replacement
        (r"Build: \S+", "Build: X", "Build: X, Build: 7", "Build: X Build: X"),
        ("zz", "zzz", "a zz b", "a zzz b"),
    ],
)
def test_once_is_enough_for_patterns_that_meet_themselves(regex, replacement, text, expected):
    rule = own((regex, replacement))
    assert text_after(rule, text) == expected
    assert text_after(rule, expected) == expected


def test_patterns_that_chase_each_other_change_nothing():
    assert text_after(own(("on+", "of"), ("of+", "onn")), "on and off") == "onn and onn"
    growing = own(("ping", "pong pong"), ("pong", "ping"))
    assert text_after(growing, "one ping only") == "one ping only"
    back = own(("left", "right"), ("right", "left"))
    assert text_after(back, "go left") == "go left"
    assert edits_of(back, "go left") == []
    moving = own(("^aaaa", "aaa"), ("aaa$", "aaaa"))
    assert edits_of(moving, "aaaa") == []


def test_one_pattern_works_on_what_another_one_left():
    rule = own((r"\[[^\]]*\]", ""), ("  +", " "))
    text = "a [x] b [y] [z] c"
    assert text_after(rule, text) == "a b c"
    assert edits_of(rule, text) == [(1, " [x] ", " ", "p1"), (7, " [y] [z] ", " ", "p1")]


def test_of_very_many_edits_neighbours_are_joined():
    text = "item 12, item 345 " * 500
    edits = own((r"\d+", "#")).detect({"messages": [{"role": "user", "content": text}]}, NOW).edits
    assert 100 < len(edits) <= 200
    assert max(len(edit.before) for edit in edits) < 100
    assert text_after(own((r"\d+", "#")), text) == "item #, item # " * 500


PATTERNS = st.lists(
    st.tuples(
        st.sampled_from(["bb", "cc+", "b[cd]", r"d\b", "^dd", "db?c", r"\nd", r"b\Bc", "ccb|bcc"]),
        st.sampled_from(["", "b", "cc", "bcd", "\n", "c b"]),
    ),
    max_size=3,
)
TEXTS = st.text("bcd \n", max_size=20)


@given(PATTERNS, TEXTS)
def test_once_is_enough(patterns, text):
    rule = own(*patterns)
    check_idempotent(rule, {"messages": [{"role": "system", "content": text}]})


@given(PATTERNS, TEXTS)
def test_the_edits_lead_to_what_replacing_leads_to(patterns, text):
    rule = own(*patterns)
    after = text_after(rule, text)
    if after != text:
        # However often and in any pieces it was replaced: no pattern finds anything more, or only its own words.
        again = rule.detect({"messages": [{"role": "system", "content": after}]}, NOW)
        assert again.edits == ()
    for start, before, _, _ in edits_of(rule, text):
        assert text[start : start + len(before)] == before


@given(chats() | completions())
def test_others_are_untouched(fields):
    rule = own((r"[a-z]{3,}", "abc"), (r"\d\d", ""))
    check_idempotent(rule, fields)
    check_others_untouched(rule, fields)
