"""Filling the caches from the replicas page: what it costs is said before, and only operators may."""

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import expect

from browser.pages import REPLICAS, arrived
from browser.stage import OPERATE, READ, SYSTEM, Stage, staged

pytestmark = pytest.mark.slow

DECLARED = [{"model": "demo", "tenant": "acme", "messages": [{"role": "system", "content": SYSTEM}]}]


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A gateway with a declared prefix."""
    with staged(tmp_path_factory.mktemp("warmed"), declared=DECLARED) as stage:
        yield stage


def test_read_only_token_is_offered_no_warming_and_shown_why(visit, warmed: Stage):
    visitor = visit(warmed.admin)
    page = visitor.open("replicas")
    visitor.sign_in(READ)
    arrived(page, REPLICAS)
    expect(page.get_by_role("region", name="Warming")).to_contain_text("This token may only look")
    expect(page.get_by_role("button", name=re.compile("warm", re.IGNORECASE))).to_have_count(0)


def test_warming_says_what_it_costs_is_done_only_when_confirmed_and_shows_how_it_went(visit, warmed: Stage):
    visitor = visit(warmed.admin)
    page = visitor.open("replicas")
    visitor.sign_in(OPERATE)
    arrived(page, REPLICAS)
    asked_for = page.get_by_role("region", name="Warming").get_by_role("row").filter(has_text="asked for by operates")
    before = len(warmed.asked("warm")["jobs"])
    page.get_by_role("button", name="Warm now").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("up to 2 requests")
    expect(dialog).to_contain_text(re.compile(r"At most [\d,]+ tokens to prefill"))
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    assert len(warmed.asked("warm")["jobs"]) == before
    page.get_by_role("button", name="Warm now").click()
    dialog.get_by_role("button", name="Warm now").click()
    expect(dialog).to_have_count(0)
    expect(asked_for).to_contain_text("done")
    expect(asked_for).to_contain_text("2 of 2")
    # What it cost, and that nothing is sent again without a budget.
    warming = page.get_by_role("region", name="Warming")
    expect(warming.get_by_role("table", name="Cost and gain of warming")).to_contain_text("asked for")
    expect(warming).to_contain_text("warm.again.tokens_per_hour")


def test_what_is_sent_again_by_itself_is_shown_with_its_budget_cost_and_gain(visit, tmp_path):
    again = {"warm": {"again": {"tokens_per_hour": 100_000}}}
    with staged(tmp_path, declared=DECLARED, settings=again) as stage:
        visitor = visit(stage.admin)
        page = visitor.open("replicas")
        visitor.sign_in(OPERATE)
        arrived(page, REPLICAS)
        warming = page.get_by_role("region", name="Warming")
        expect(warming).to_contain_text(re.compile(r"Last hour: 0\s+of 100,000 tokens"))
        headers = {"authorization": f"Bearer {OPERATE}"}
        reset = f"{stage.admin}/admin/api/spaces/reset"
        httpx.post(reset, json={"all": True}, headers=headers, trust_env=False).raise_for_status()
        jobs = warming.get_by_role("table", name="Last jobs of warming")
        again_row = jobs.get_by_role("row").filter(has_text="after a reset")
        expect(again_row).to_contain_text("done")
        cached = stage.send("Where is it?").cached_tokens
        assert cached > 100
        gain = warming.get_by_role("table", name="Cost and gain of warming").get_by_role("row")
        expect(gain.filter(has_text="after a reset")).to_contain_text(f"{cached:,}")
        expect(warming).not_to_contain_text(re.compile(r"Last hour: 0\s+of"))
