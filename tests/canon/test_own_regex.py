"""Regular expressions of the operator's: what they mean, where their matches are, and that no text takes for ever."""

import random
import re
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.operator_patterns import OwnRegex, TooSlow


def found(regex, text):
    """What is found, however long this machine takes."""
    return [text[start:end] for start, end, _ in OwnRegex(regex, cpu_seconds=lambda: 0.0).find(text)]


@pytest.mark.parametrize(
    ("regex", "text"),
    [
        (r"\d+", "12 ١٢ 3४ ²"),
        (r"\D+", "12 ab ١٢"),
        (r"\w+", "Müller жук 漢字 a_1 ½ x\u0301y"),
        (r"\W+", "Müller, жук — 漢字!"),
        (r"\s+", "a b\u00a0c\u2003d\x0b\x1ce\x85f\u200bg\u3000"),
        (r"\S+", "a b\u00a0c\u2003d\x0b\x1ce\x85f\u200bg\u3000"),
        (r"[\d.]+", "1.٢ x"),
        (r"[^\w]+", "é-ж"),
        (r"[\s\S]{3}", "a\né\u2003x\U0001f600"),
        (r"[\S]+", "a\u2003b c\x85d"),
        (r"[\D]+", "a١b1c"),
        (r"[]x]+", "a]x]b"),
        (r"[^]x]+", "a]x]b"),
        (r"[x[]+", "a[x[b"),
        (r"[a\]b]+", "a]b"),
        (r"x{,3}y", "xxxxy y"),
        (r"x\Z", "x\nx"),
        (r"\u00e4|\U0001f600|[\u0436]", "ä 😀 ж"),
        (r"(?i)GRÖSSE|straße", "grösse STRASSE Straße"),
        (r"^a.*$", "a1\nba\na2"),
        (r"a.b", "a\nb a\u2028b a😀b"),
        (r"(?s)a.b", "a\nb"),
        (r"\.\\\[x", r".\[x"),
        (r"a|ab|abc", "abc"),
        (r"a+?b*?c", "aaabbc"),
        (r"(?P<name>x)(?:y)", "xy"),
    ],
)
def test_means_what_python_means(regex, text):
    python = re.compile(regex, re.MULTILINE)
    assert found(regex, text) == [match[0] for match in python.finditer(text)]


@pytest.mark.slow
def test_classes_contain_the_characters_of_pythons_classes():
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]))
    for letter in "ds":
        for regex in (f"\\{letter}", f"[\\{letter}]", f"\\{letter.upper()}", f"[\\{letter.upper()}]"):
            python, ours = "".join(re.findall(f"{regex}+", every)), _matched(regex, every)
            # Python and RE2 may know different versions of Unicode.
            assert python == ours or len(set(python) ^ set(ours)) < 200, regex
    assert "".join(re.findall(r"\s", every)) == _matched(r"\s", every)


def _matched(regex, text):
    """The characters that a class matches; found in runs, because a million matches take a minute."""
    return "".join(text[start:end] for start, end, _ in _unbounded(f"{regex}+").find(text))


def _unbounded(regex):
    return OwnRegex(regex, cpu_seconds=lambda: 0.0)


def test_word_boundaries_are_those_of_ascii():
    assert found(r"\bab\b", "ab éab abé") == ["ab", "ab", "ab"]


@given(
    st.sampled_from([r"\w+", r"[^a]b?", "a|é", r"\s\S", "(é)|b", "😀+", r"a?😀|x"]),
    st.text("aéb😀 \n\ud800x", max_size=40),
)
def test_positions_are_in_characters(regex, text):
    text = text.replace("\ud800", "")
    python = re.compile(regex, re.MULTILINE)
    group = 1 if python.groups else 0
    assert list(OwnRegex(regex).find(text)) == [
        (match.start(), match.end(), match.span(group)) for match in python.finditer(text)
    ]


def test_half_a_surrogate_pair_is_passed_over():
    assert [tuple(each[:2]) for each in OwnRegex("b").find("a\ud800b\udc00\ud800b")] == [(2, 3), (5, 6)]


@pytest.mark.parametrize("size", [60_000, 65_536, 70_000, 130_000, 131_072, 200_000, 500_000])
@pytest.mark.parametrize("regex", ["xé*y?", "xé+", "é+", "(xé+)y", "[^z]+"])
def test_long_matches_are_whole(regex, size):
    text = "ab " * 20_000 + "x" + "é" * size + "y" + "ab " * 40_000
    assert [tuple(each) for each in OwnRegex(regex).find(text)] == [
        (match.start(), match.end(), match.span(1 if match.re.groups else 0)) for match in re.finditer(regex, text)
    ]


@pytest.mark.slow
def test_matches_everywhere_in_a_long_text():
    rnd = random.Random(7)
    text = "".join(rnd.choices(["word ", "EMP-123456 ", "é", "\n", "EMP-12 "], k=200_000))
    assert found(r"EMP-\d{6}", text) == re.findall(r"EMP-\d{6}", text)
    assert found(r"^EMP-\d+", text) == re.findall(r"(?m)^EMP-\d+", text)


@pytest.mark.parametrize(
    ("regex", "text"),
    [
        (r"^(?:\w+[ .]?)+#$", "a" * 26),
        (r"^(?:\w+[ .]?)+#$", "a" * 500_000),
        (r"(a+)+b", "a" * 500_000),
        (r"(?:a|a)*c", "a" * 500_000),
        (r"\s+$", " " * 500_000 + "x"),
        (r"(x+x+)+y", "x" * 500_000),
    ],
)
def test_patterns_that_would_go_back_and_forth_do_not(regex, text):
    assert found(regex, text) == []


@pytest.mark.slow
def test_a_pattern_that_looks_far_ahead_for_every_match_is_given_up():
    with pytest.raises(TooSlow):
        list(OwnRegex("a.*b|a").find("a" * 3_000_000))


def test_cpu_time_is_looked_at_between_two_matches():
    times = iter([0.0, *[0.05] * 3, *[0.2] * 10])
    matches = OwnRegex("a", cpu_seconds=lambda: next(times)).find("aaaaaaaa")
    assert [next(matches).start for _ in range(3)] == [0, 1, 2]
    with pytest.raises(TooSlow):
        next(matches)


def test_other_threads_run_during_a_search():
    text = "The quick brown fox. " * 800_000
    list(OwnRegex("fo{3,9}x").find("fox"))
    turns, over = 0, threading.Event()

    def count():
        nonlocal turns
        while not over.is_set():
            time.sleep(0.0005)
            turns += 1

    # A search that kept the lock would be one turn of the interpreter, however long it takes.
    before = sys.getswitchinterval()
    thread = threading.Thread(target=count)
    thread.start()
    try:
        sys.setswitchinterval(60)
        turns = 0
        assert list(OwnRegex("fo{3,9}x").find(text)) == []
        assert turns > 0
    finally:
        sys.setswitchinterval(before)
        over.set()
        thread.join()
