"""Every scenario, played through a whole gateway, and what it says of each request; see README.md beside this file."""

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from levels import slow_except
from scenario_file import Scenario, load_all
from scenario_run import ScenarioRun

from gateway.core.advice import HINTS
from gateway.core.reasons import REASONS, Reason

SCENARIOS = load_all()
_LINES, _COLUMNS = 25, 110
_KIND = re.compile("‹[^›]*›")
_PLAIN = re.compile(r"[^\W\dxX_]|[0-8]")
"""A letter or a digit of the prompt itself."""


def _by_level() -> list[Any]:
    """Of each folder ``make test`` plays the first scenario, and the first of what only looks like its reason."""
    kinds: dict[tuple[str, bool], str] = {}
    for scenario in SCENARIOS:
        kinds.setdefault((scenario.reason, scenario.name.startswith("not_")), scenario.id)
    return slow_except(SCENARIOS, set(kinds.values()), lambda scenario: scenario.id)


@pytest.mark.usefixtures("explained_in_a_thread")
@pytest.mark.parametrize("scenario", _by_level(), ids=lambda scenario: scenario.id)
async def test_scenario(scenario: Scenario, tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as closing:
        run = ScenarioRun(scenario, tmp_path)
        await run.open(closing)
        await run.play()
        details = {name: await run.detail(name) for name in run.answers}
        for name, detail in details.items():
            _adds_up(name, detail, run.usage[name])
        summary = await run.summary()
        _sums_up(summary, details)
        assert _families(summary) == scenario.data.get("families", [])
        for name, expected in scenario.expect.items():
            assert _as_reported(details[name], expected) == expected, name


def _adds_up(name: str, detail: Mapping[str, Any], usage: Mapping[str, Any]) -> None:
    """Every token once, every reason with its advice, and all of it on one screen."""
    missed = {each["reason"]: each["tokens"] for each in detail["missed"]}
    assert detail["hits"] + sum(missed.values()) == detail["prompt_tokens"], name
    assert len(missed) == len(detail["missed"])
    assert all(tokens > 0 for tokens in missed.values()), name
    assert detail["prompt_tokens"] == usage.get("prompt_tokens", detail["prompt_tokens"])
    difference = detail["difference"] or {}
    for each in detail["missed"]:
        reason = Reason(each["reason"])
        detailed = difference["detail"] if difference.get("reason") == reason else ""
        text = HINTS[detailed].advice if detailed in HINTS else REASONS[reason].change
        assert each["title"] == REASONS[reason].title
        assert each["advice"].startswith(text)
    for window in (difference.get("before", ""), difference.get("after", "")):
        assert not _PLAIN.search(_KIND.sub("", window)), "a text that is not masked"
    assert len(detail["told"]) <= _LINES
    assert all(len(line) <= _COLUMNS for line in detail["told"])


def _sums_up(summary: Mapping[str, Any], details: Mapping[str, Mapping[str, Any]]) -> None:
    """The summary is the sum of the requests."""
    reasons: dict[str, int] = {}
    for detail in details.values():
        for each in detail["missed"]:
            reasons[each["reason"]] = reasons.get(each["reason"], 0) + each["tokens"]
    reported = {each["code"]: each["tokens"] for each in summary["reasons"] if each["tokens"]}
    assert reported == reasons
    assert summary["requests"] == len(details)
    assert summary["prompt_tokens"] == sum(detail["prompt_tokens"] for detail in details.values())
    hits = sum(detail["hits"] for detail in details.values())
    assert hits + sum(reported.values()) == summary["prompt_tokens"]


def _families(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Which client families differ in what they send for one application, and how."""
    return [
        {"source": each["source"], "than": each["than"], "said": each["difference"]["said"]}
        for each in summary["families"]
    ]


def _as_reported(detail: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a request's details that the scenario names, in the scenario's form."""
    reference, difference = detail["reference"] or {}, detail["difference"] or {}
    reported = {
        "tokens": detail["prompt_tokens"],
        "hits": detail["hits"],
        "reasons": {each["reason"]: each["tokens"] for each in detail["missed"]},
        "confirmed": [each["reason"] for each in detail["missed"] if each["evidence"] == "confirmed"],
        "reference": reference.get("id"),
        "chosen_by": reference.get("chosen_by"),
        "turn": detail["turn"],
        "hint": {detail["hint"]["code"]: detail["hint"]["tokens"]} if detail["hint"] else None,
        "difference": {field: difference.get(field) for field in expected.get("difference") or ()} or None,
    }
    return {field: reported[field] for field in expected}


def test_every_reason_has_its_scenarios() -> None:
    """At least three in which it is the answer."""
    found = dict.fromkeys(Reason, 0)
    for scenario in SCENARIOS:
        found[Reason(scenario.reason)] += any(scenario.reason in each["reasons"] for each in scenario.expect.values())
    assert {reason: count for reason, count in found.items() if count < 3} == {}


def test_the_numbers_of_a_scenario_add_up() -> None:
    for scenario in SCENARIOS:
        for name, expected in scenario.expect.items():
            assert expected["hits"] + sum(expected["reasons"].values()) == expected["tokens"], (scenario.id, name)
