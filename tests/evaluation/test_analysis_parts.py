"""The parts of an analysis, each alone."""

import argparse
import io
from pathlib import Path

import pytest

from gateway.commands import analyze
from gateway.evaluation.analysis.anonymized_trace import Numbering
from gateway.evaluation.analysis.log_analysis import ApplicationShare, ReasonShare, RepeatInterval, RuleGain
from gateway.evaluation.analysis.opening_groups import OTHERS, OpeningGroups
from gateway.evaluation.analysis.report_html import as_html
from gateway.evaluation.analysis.report_parts import Bars, ReportDocument, ReportSection
from gateway.evaluation.analysis.report_text import as_markdown
from gateway.evaluation.analysis.starting_configuration import starting_configuration
from gateway.evaluation.analysis.sums_as_analysis import verdict_of
from gateway.evaluation.analysis.traffic_sums import LengthHistogram
from gateway.explain.prompt_text import Message, PromptText
from gateway.explain.reference import Frames

PAGE = Path(__file__).parents[2] / "docs" / "analyze.md"


def test_quantiles_are_within_half_a_bin():
    histogram = LengthHistogram()
    for value in range(1, 10_001):
        histogram.add(value)
    p50, p90, p99 = histogram.quantiles((0.5, 0.9, 0.99))
    assert p50 == pytest.approx(5000, rel=0.05)
    assert p90 == pytest.approx(9000, rel=0.05)
    assert p99 == pytest.approx(9900, rel=0.05)


def test_bars_are_doublings():
    histogram = LengthHistogram()
    for value in (0, 1, 2, 3, 4, 5, 8):
        histogram.add(value)
    assert [(low, high, round(7 * share)) for low, high, share in histogram.bars()] == [
        (0, 1, 1),
        (1, 2, 2),
        (2, 4, 2),
        (4, 8, 2),
    ]
    assert LengthHistogram().bars() == []
    assert LengthHistogram().quantiles((0.5,)) == [0]


def system(text, *others):
    return PromptText((Message("system", text), *(Message("user", each) for each in others)))


def test_requests_are_grouped_by_their_opening():
    groups = OpeningGroups(Frames(1 << 20))
    rules = "Answer the questions of our customers about parcels and their delivery, briefly and in a kind way."
    first = groups.number_of(system(f"You are a clerk. Order 17. {rules}", "Hi"))
    assert groups.number_of(system(f"You are a clerk. Order 93. {rules}", "Bye")) == first
    other = groups.number_of(system("Translate what follows into French, and leave names as they are.", "Hi"))
    assert other != first
    assert groups.groups[first].opening.startswith("you are a clerk. order 0. answer the questions")


def test_prompts_without_leading_messages_are_grouped_if_several_begin_alike():
    groups = OpeningGroups(Frames(1 << 20))
    task = "Classify the following review as positive or negative, and say in one word which it is. Review: "
    reviews = ("A fine umbrella", "It broke", "As expected", "Never again")
    numbers = [groups.number_of(PromptText((Message("user", task + each),))) for each in reviews]
    assert numbers[:2] == [OTHERS, OTHERS]
    assert numbers[2] == numbers[3] != OTHERS
    assert groups.number_of(PromptText((Message("user", "What is the capital of France?"),))) == OTHERS


def test_numbers_are_given_in_the_order_of_first_use(monkeypatch):
    monkeypatch.setattr("gateway.evaluation.analysis.anonymized_trace._NUMBERED", 2)
    numbering = Numbering()
    assert [numbering.of(each) for each in "abacb"] == [0, 1, 0, 2, 1]
    assert [numbering.of(each) for each in "defg"] == [3, 4, 5, 6]
    assert numbering.of("a") == 7


def application(name, repeated, tokens=1000):
    return ApplicationShare(name, name, {}, 10, tokens, 0.5, repeated, repeated / tokens, 0, {})


CAUSE = ReasonShare("dynamic_time", "A time in the prompt", 400, 0.4, "")


def verdict(repeated, behind, *, rules=()):
    return verdict_of(
        repeated=repeated,
        behind_changes=behind,
        applications=[application("small", 100), application("large", 710)],
        causes=[CAUSE] if behind else [],
        place="messages[0].content",
        rules=rules,
    )


def test_verdicts():
    assert verdict(0.5, 0.1).sentence == (
        "Start with large: 71 % of its prefill repeats (50 % of all prompt tokens repeat)."
    )
    rule = RuleGain("dynamic-suffix", 9, 400, 0, 40.0)
    aligned = verdict(0.07, 0.41, rules=[rule])
    assert aligned.kind == "align_first"
    assert "41 % of the prompt tokens repeat only behind something that changes" in aligned.sentence
    assert "a time in the prompt in messages[0].content), 7.0 % can be reused" in aligned.sentence
    assert aligned.sentence.endswith("; the rule dynamic-suffix alone gains 40 points.")
    assert verdict(0.03, 0.02).sentence == (
        "Little to gain: 3.0 % of the prompt tokens repeat, and 2.0 % more would if what changes in front of them were "
        "aligned."
    )


def test_only_rules_that_change_no_content_are_suggested_as_applied():
    rules = [RuleGain(name, 1, 1, 0, 3.0) for name in ("tool-order", "dynamic-suffix")]
    rules.append(RuleGain("unicode", 1, 1, 0, 0.1))
    intervals = [RepeatInterval(300, "5 min", 0.5, 0.2), RepeatInterval(3600, "1 h", 0.97, 0.4)]
    written = starting_configuration([("m", None)], rules, intervals, [], idle_ttl_seconds=300)
    assert "    tool-order: apply\n" in written
    assert "    dynamic-suffix: observe\n" in written
    assert "unicode" not in written
    assert "#   idle_ttl_seconds: 3600\n" in written


def test_reports_escape_marks():
    section = ReportSection("A", (Bars("Title | <b>", [("a|b <i>", 0.25)]),))
    document = ReportDocument("Prefix analysis", "Start with `x`: *now*", (section,))
    assert "<i>" not in as_html(document)
    assert "<b>" not in as_html(document)
    text = as_markdown(document)
    assert r"a\|b \<i\> | 25.0 %" in text
    assert r"**Start with \`x\`: \*now\***" in text


def test_the_page_has_every_option():
    parser = argparse.ArgumentParser()
    analyze.add_arguments(parser)
    page = PAGE.read_text(encoding="utf-8")
    options = [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
    assert [option for option in options if option != "--help" and f"`{option}" not in page] == []


def test_progress_is_shown_on_a_terminal_only(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    with analyze._progress() as on_progress:
        on_progress("reading", 0.5)
        on_progress("explaining", float("nan"))
    assert screen.getvalue() == ""
