"""A user sees both groups of an experiment, whether a difference is noise, and what changed when in the trend."""

import json
import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from browser.chromium import Screen
from browser.pages import OVERVIEW, arrived
from browser.stage import OPERATE, Stage
from browser.test_on_every_screen import TWO_SCREENS, looked_at
from gateway.core.experiment_group import ExperimentGroup, ExperimentSample
from gateway.stats.experiment_results import ExperimentResults
from gateway.stats.prices import ComputePrice

SECTION = "With and without the gateway's help"


def results(sessions: int) -> dict[str, object]:
    """What the admin API answers after some sessions: half of the prompt is cached with the gateway's help."""
    settings = {"cold_share": 0.25, "by": "session", "held_out": "round_robin", "since": 0.0}
    found = ExperimentResults(settings)
    for session in range(sessions):
        group = ExperimentGroup.HELD_OUT if session % 4 == 0 else ExperimentGroup.GATEWAY
        helped = group is ExperimentGroup.GATEWAY
        wobble = session % 7 / 100
        sample = ExperimentSample(
            at=time.time(),
            model="demo",
            group=group,
            session=session,
            failed=False,
            complete=True,
            prompt_tokens=1000,
            cached_tokens=500 if helped else 10 * (session % 3),
            confirmed=True,
            ttft_seconds=(0.2 if helped else 0.4) + wobble,
            seconds=2 + wobble * 30,
            prefill_seconds_per_token=0.0004,
        )
        found.add(sample, 1)
    return found.answer({}, ComputePrice(3.6, "USD"))


def answered(page: Page, results: dict[str, object]) -> None:
    def answer(route: Route) -> None:
        route.fulfill(content_type="application/json", body=json.dumps(results))

    page.route("**/admin/api/experiment**", answer)


def shown(visit, stage: Stage, found: dict[str, object]):
    visitor = visit(stage.admin)
    answered(visitor.page, found)
    page = visitor.open()
    visitor.sign_in(OPERATE)
    arrived(page, OVERVIEW)
    return page, page.get_by_role("region", name=SECTION, exact=True)


def test_both_groups_and_what_is_noise(visit, known: Stage):
    _, section = shown(visit, known, results(400))

    expect(section).to_contain_text("The median time to first token is 47% lower with the gateway")
    expect(section).to_contain_text("25 % of the traffic (by session) is held out")
    expect(section).to_contain_text("Saved so far: ")
    expect(section).to_contain_text("· $0.0588 (")
    rows = section.get_by_role("row")
    expect(rows.filter(has_text="Requests")).to_contain_text("300")
    expect(rows.filter(has_text="Hit rate")).to_contain_text("50.0 %")
    expect(rows.filter(has_text="First token, p50").get_by_role("cell").last).to_have_text("no")
    expect(rows.filter(has_text="Whole answer, p50").get_by_role("cell").last).to_have_text("yes")
    assert "[object" not in section.inner_text()
    assert "NaN" not in section.inner_text()


@pytest.mark.slow
def test_too_few_sessions_and_no_experiment(visit, known: Stage):
    _, section = shown(visit, known, results(12))
    expect(section).to_contain_text("Too few sessions to compare: 3 in the smaller group, 20 are needed.")
    expect(section.get_by_text("not known yet").first).to_be_visible()

    page, section = shown(visit, known, {"running": False, "verdict": "There is no experiment."})
    expect(page.get_by_role("heading", name="Fix this first").first).to_be_visible()
    expect(section).to_have_count(0)


@pytest.mark.slow
@pytest.mark.parametrize("screen", TWO_SCREENS, ids=str)
def test_the_results_are_accessible_and_fit(visit, known: Stage, screen: Screen, album: Path | None):
    visitor = visit(known.admin, screen)
    answered(visitor.page, results(400))
    visitor.open()
    visitor.sign_in(OPERATE)
    assert looked_at(visitor, OVERVIEW, album, f"experiment-{screen}") == []


def test_the_trend_marks_what_happened(visit, known: Stage):
    visitor = visit(known.admin)
    page = visitor.open()
    visitor.sign_in(OPERATE)
    arrived(page, OVERVIEW)

    changes = page.get_by_role("list", name="What changed in this time")
    expect(changes).to_contain_text("Gateway started: Prefix Gateway")
    expect(page.get_by_text("Something changed").first).to_be_visible()
