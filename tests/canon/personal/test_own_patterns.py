"""The operator's own patterns, and what is wrong with some."""

import pytest
from pydantic import ValidationError

from gateway.canon.personal import PersonalDataSettings
from gateway.canon.personal.patterns import BUILT_IN_KINDS, Hit, Patterns
from gateway.canon.personal.settings import PatternSettings


def mistake(**pattern):
    with pytest.raises(ValidationError) as raised:
        PersonalDataSettings(patterns=({"kind": "employee-id", "regex": "EMP-[0-9]+", **pattern},))
    (error,) = raised.value.errors()
    assert error["loc"][:2] == ("patterns", 0)
    return error["loc"][2], error["msg"]


def test_own_patterns_are_found():
    patterns = Patterns((), [("employee-id", r"EMP-\d{6}"), ("ward", "(?i)ward [a-f]")])
    assert patterns.find("EMP-123456 in Ward B, EMP-12345") == (Hit("employee-id", 0, 10), Hit("ward", 14, 6))


def test_own_patterns_win_where_they_overlap_and_nothing_of_the_other_is_left():
    patterns = Patterns(BUILT_IN_KINDS, [("employee-id", r"EMP-\d{6}")])
    text = "Ask EMP-123456@example.com."
    assert patterns.find(text) == (Hit("employee-id", 4, len("EMP-123456@example.com")),)


def test_of_own_patterns_the_first_wins():
    patterns = Patterns((), [("a", "abc"), ("b", "bcde"), ("c", "x")])
    assert patterns.find("abcde x") == (Hit("a", 0, 5), Hit("c", 6, 1))


def test_neighbours_do_not_overlap():
    assert Patterns((), [("a", "aa"), ("b", "bb")]).find("aabb") == (Hit("a", 0, 2), Hit("b", 2, 2))


def test_what_matches_nothing_only_in_rare_places_is_no_finding():
    # No sample the check tries has a Q; it is found out only here.
    assert Patterns((), [("q", "(?=Q)|R")]).find("QQR") == (Hit("q", 2, 1),)


@pytest.mark.parametrize(
    ("regex", "says"),
    [
        ("(", "not a regular expression as Python has them: missing ), unterminated subpattern at position 0"),
        ("[a-", "not a regular expression as Python has them: unterminated character set"),
        (r"\p{L}", "not a regular expression as Python has them: bad escape"),
        ("a{99999999999}", "not a regular expression as Python has them"),
        ("", "matches the empty text"),
        ("a*", "matches the empty text"),
        ("x?|y", "matches the empty text"),
        (r"\b", "matches the empty text"),
        ("^", "matches the empty text"),
        (r"(?=\d)", "matches the empty text"),
        ("(?m)$", "matches the empty text"),
    ],
)
def test_a_regex_nobody_can_use_is_a_mistake(regex, says):
    where, message = mistake(regex=regex)
    assert where == "regex"
    assert says in message


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("Employee", "expected up to 40 lower-case letters"),
        ("employee id", "expected up to 40 lower-case letters"),
        ("1st", "expected up to 40 lower-case letters"),
        ("", "expected up to 40 lower-case letters"),
        ("x" * 41, "expected up to 40 lower-case letters"),
        ("é", "expected up to 40 lower-case letters"),
        ("a\n", "expected up to 40 lower-case letters"),
        *((kind, f"{kind} is built in") for kind in sorted(BUILT_IN_KINDS)),
    ],
)
def test_a_kind_that_is_no_name_or_taken_is_a_mistake(kind, says):
    where, message = mistake(kind=kind)
    assert where == "kind"
    assert says in message


def test_defaults_are_every_built_in_kind_and_report():
    settings = PersonalDataSettings()
    assert (settings.mode, set(settings.kinds), settings.patterns, settings.shared_by) == (
        "report",
        BUILT_IN_KINDS,
        (),
        3,
    )


@pytest.mark.parametrize(
    "wrong", [{"mode": "on"}, {"kinds": ("emails",)}, {"shared_by": 0}, {"shared_by": 101}, {"kind": ()}]
)
def test_other_mistakes_are_refused(wrong):
    with pytest.raises(ValidationError):
        PersonalDataSettings(**wrong)


def test_a_pattern_with_a_remark_of_pythons_is_usable():
    assert PatternSettings(kind="odd", regex="[[a-z]x").regex == "[[a-z]x"
