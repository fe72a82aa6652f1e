"""From real requests to the line that one has to write: nothing of what is shown here is made up."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import expect

from browser.pages import OVERVIEW, REASON, arrived, request_page
from browser.stage import OPERATE, SYSTEM, Stage, eventually, staged

pytestmark = pytest.mark.slow

TIMES = 6


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


def is_observing(stage: Stage) -> bool:
    """Whether requests are tried with the rules: not those that came before the tokenizer was loaded for that."""
    if not stage.asked("summary")["canonicalization"]["looked_at"]["requests"]:
        stage.send("Is anybody there?", source="first")
        stage.wait_until_reported()
        return False
    return True


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A gateway that puts tools into order, and a client that writes the time into its system prompt."""
    with staged(tmp_path_factory.mktemp("timed"), settings={"canon": {"rules": {"tool-order": "apply"}}}) as stage:
        eventually(lambda: is_observing(stage))
        now = datetime.now(UTC)
        for number in range(TIMES):
            time = (now + timedelta(seconds=7 * number)).isoformat(timespec="seconds")
            stage.send("Where is it?", source="mobile", system=f"Be brief.\nCurrent time: {time}\n{SYSTEM}")
        for number in range(3):
            stage.send(f"And number {number}?", source="tools", tools=[tool("look"), tool("add")])
        stage.wait_until_reported()
        yield stage


def test_from_the_finding_to_the_line_that_fixes_it(visit, timed: Stage):
    reported = timed.asked("summary")["canonicalization"]
    (row,) = [each for each in reported["rules"] if each["rule"] == "dynamic-suffix"]
    assert row["net_tokens"] > 500
    visitor = visit(timed.admin)
    page = visitor.open()
    visitor.sign_in(OPERATE)
    arrived(page, OVERVIEW)
    gain = f"+{row['points']:.1f} points"
    first = page.get_by_role("region", name="Fix this first").get_by_role("listitem").first
    expect(first).to_contain_text(f"In the gateway: turn dynamic-suffix on, {gain}")
    section = page.get_by_role("region", name="What canonicalization would bring")
    expect(section.get_by_role("heading", name=f"Turn dynamic-suffix on: {gain} hit rate")).to_be_visible()
    expect(section).to_contain_text(f"{row['net_tokens']:,} prompt tokens not computed again")
    expect(section.get_by_text("dynamic-suffix: apply")).to_be_visible()
    visitor.open(REASON.path)
    arrived(page, REASON)
    section = page.get_by_role("region", name="What canonicalization would do")
    expect(section.get_by_role("heading", name=f"Turn dynamic-suffix on: {gain} hit rate")).to_be_visible()


def test_request_shows_what_would_have_been_moved_without_showing_it(visit, timed: Stage):
    visitor = visit(timed.admin)
    name = [each.id for each in timed.sent if each.source == "mobile"][-1]
    page = visitor.open(f"requests/{name}")
    visitor.sign_in(OPERATE)
    arrived(page, request_page(name))
    expect(page.get_by_text("Sent on as it came: no rule changed it.")).to_be_visible()
    places = page.locator(".edits > li").filter(has_text="dynamic-suffix")
    expect(places).to_have_count(2)
    expect(places.first).to_contain_text("only observed")
    expect(places.first).to_contain_text("messages[0].content")
    expect(places.first.locator("pre")).to_have_text(["Xxxxxxx xxxx: 9999-99-99X99:99:99+99:99", "[xxxxxxx 9]"])
    assert "Current time" not in page.content()


def test_request_that_was_changed_says_by_what(visit, timed: Stage):
    visitor = visit(timed.admin)
    name = timed.sent[-1].id
    page = visitor.open(f"requests/{name}")
    visitor.sign_in(OPERATE)
    arrived(page, request_page(name))
    expect(page.get_by_text("Changed on its way to the engine by tool-order.")).to_be_visible()
    expect(page.locator(".edits > li").first).to_contain_text("applied")
