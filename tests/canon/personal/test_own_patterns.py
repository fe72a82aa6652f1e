"""The operator's own patterns, and what is wrong with some."""

import pytest
from pydantic import ValidationError

from gateway.canon.pii.scanner import Hit, Patterns
from gateway.config.personal_data_settings import BUILT_IN_KINDS, DEFAULT_KINDS, PatternSettings, PersonalDataSettings


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


@pytest.mark.parametrize(
    ("regex", "says"),
    [
        ("(", "not a regular expression as RE2 has them: missing ): ("),
        ("[a-", "not a regular expression as RE2 has them: missing ]: [a-"),
        (r"\p{Elvish}", "not a regular expression as RE2 has them: invalid character class range"),
        ("a{99999999999}", "{99999999999} is not offered: nothing can be repeated more than 1000 times"),
        ("a{1001}", "invalid repetition size: {1001}"),
        (r"(?:\w{400}){2}", "too large"),
        ("(?=x)a", "(?= is not offered: no look-around (match what stands around the value, too)"),
        ("(?<!x)a", "(?<! is not offered: no look-around"),
        (r"(a)\1", r"\1 is not offered: no back-references"),
        ("(?P<x>a)(?P=x)", "(?P is not offered: no back-references"),
        ("a++b", "++ is not offered: no possessive repetition"),
        ("(?>a)", "(?> is not offered: no possessive repetition"),
        ("(?x) a", "invalid perl operator: (?x"),
        (r"a\Cb", r"\C is not offered"),
        (r"[\Wx]", r"\W in brackets is not offered"),
        ("a\\", "trailing \\"),
        ("", "matches the empty text"),
        ("a*", "matches the empty text"),
        ("x?|y", "matches the empty text"),
        (r"\b", "matches the empty text"),
        ("^", "matches the empty text"),
        ("(?m)$", "matches the empty text"),
    ],
)
def test_an_unusable_regex_is_a_mistake(regex, says):
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


def test_defaults_are_the_kinds_that_are_seldom_wrong_and_report():
    settings = PersonalDataSettings()
    assert (settings.mode, settings.kinds, settings.patterns, settings.shared_by) == (
        "report",
        DEFAULT_KINDS,
        (),
        3,
    )


@pytest.mark.parametrize(
    "wrong", [{"mode": "on"}, {"kinds": ("emails",)}, {"shared_by": 0}, {"shared_by": 101}, {"kind": ()}]
)
def test_other_mistakes_are_refused(wrong):
    with pytest.raises(ValidationError):
        PersonalDataSettings(**wrong)


def test_a_bracket_in_brackets_is_usable():
    assert PatternSettings(kind="odd", regex="[[a-z]x").regex == "[[a-z]x"
