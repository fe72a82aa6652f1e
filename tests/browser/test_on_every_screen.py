"""Every page in both colour schemes and both sizes: accessible, within the window, and photographed for people."""

from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from levels import slow_except
from playwright.sync_api import Page, expect

from browser.chromium import NARROW, WIDE, Screen, Visitor
from browser.pages import OVERVIEW, REASON, REPLICAS, REQUESTS, SPACES, Place, arrived, request_page
from browser.processes import Demo
from browser.stage import OPERATE, Stage

TWO_SCREENS = [Screen("light", WIDE), Screen("dark", NARROW)]
"""Each colour scheme and each size once: neither changes what the other one does."""
PLACES = [OVERVIEW, REASON, REQUESTS, request_page("mobile-9"), REPLICAS, SPACES]

OUT_OF_REACH = """
() => {
  const scrolls = (one) => one && one !== document.documentElement &&
    (["auto", "scroll"].includes(getComputedStyle(one).overflowX) || scrolls(one.parentElement));
  return [...document.querySelectorAll("a[href], button, select, input")]
    .filter((one) => one.checkVisibility({ visibilityProperty: true }))
    .filter((one) => !one.classList.contains("skip") && !scrolls(one.parentElement))
    .filter((one) => {
      const box = one.getBoundingClientRect();
      return box.left < 0 || box.right > innerWidth + 0.5 || box.width < 1 || box.height < 1;
    })
    .map((one) => one.outerHTML.slice(0, 120));
}
"""
"""Links, buttons and fields that lie outside of the window, and in nothing that could be scrolled sideways."""


def violations(page: Page) -> list[str]:
    """What axe finds, by its own rules, all of them."""
    found: list[dict[str, Any]] = Axe().run(page).response["violations"]
    return [
        f"{rule['id']} ({rule['impact']}): {node['html'][:160]}: {node['failureSummary']}"
        for rule in found
        for node in rule["nodes"][:3]
    ]


def too_wide(page: Page) -> list[str]:
    """What makes the page wider than its window."""
    found: list[str] = page.evaluate(OUT_OF_REACH)
    width, window = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    return found if width <= window else [f"{width} px in a window of {window} px", *found]


def photograph(page: Page, album: Path | None, name: str) -> None:
    if album is not None:
        album.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=album / f"{name}.png", full_page=True)


def looked_at(visitor: Visitor, place: Place, album: Path | None, name: str) -> list[str]:
    """What is wrong with a page that is open."""
    arrived(visitor.page, place)
    photograph(visitor.page, album, name)
    return [f"{place}: {reported}" for reported in too_wide(visitor.page) + violations(visitor.page)]


@pytest.mark.parametrize("screen", slow_except(TWO_SCREENS, TWO_SCREENS[:1]), ids=str)
def test_every_page_is_accessible_and_fits(visit, known: Stage, screen: Screen, album: Path | None):
    visitor = visit(known.admin, screen)
    visitor.open()
    expect(visitor.page.get_by_label("Token")).to_be_visible()
    photograph(visitor.page, album, f"sign-in-{screen}")
    problems = too_wide(visitor.page) + violations(visitor.page)
    visitor.sign_in(OPERATE)
    for place in PLACES:
        visitor.open(place.path)
        problems += looked_at(visitor, place, album, f"{place}-{screen}")
    visitor.page.get_by_role("button", name="Reset").first.click()
    expect(visitor.page.get_by_role("dialog")).to_be_visible()
    photograph(visitor.page, album, f"reset-{screen}")
    problems += too_wide(visitor.page) + violations(visitor.page)
    assert problems == []


@pytest.mark.slow
@pytest.mark.parametrize("screen", TWO_SCREENS, ids=str)
def test_every_page_of_the_busy_demo_fits(visit, demo: Demo, screen: Screen, album: Path | None):
    visitor = visit(demo.admin, screen)
    problems: list[str] = []
    for place in (OVERVIEW, REASON, REQUESTS, REPLICAS, SPACES):
        visitor.open(place.path)
        arrived(visitor.page, place)
        photograph(visitor.page, album, f"demo-{place}-{screen}")
        problems += [f"{place}: {reported}" for reported in too_wide(visitor.page)]
    assert problems == []
