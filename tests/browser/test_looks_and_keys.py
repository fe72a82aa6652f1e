"""Light and dark, large and small, with the mouse and without."""

import pytest
from playwright.sync_api import Page, expect

from browser.chromium import NARROW, WIDE, Screen
from browser.pages import OVERVIEW, REQUESTS, SPACES, arrived
from browser.processes import Demo
from browser.stage import OPERATE, Stage

pytestmark = pytest.mark.slow


def is_dark(page: Page) -> bool:
    """Whether the page's ground is."""
    colour = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    red, green, blue = (int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
    return red + green + blue < 3 * 128


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_follow_the_system_until_chosen(visit, demo: Demo, theme):
    page = visit(demo.admin, Screen(theme)).open("replicas")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert is_dark(page) == (theme == "dark")
    other = "light" if theme == "dark" else "dark"
    page.emulate_media(color_scheme=other)
    # What the button offers changes, too.
    expect(page.get_by_role("button", name=f"Show in {theme} colours")).to_be_visible()
    assert is_dark(page) == (other == "dark")


def test_chosen_colours_are_kept_after_reload_with_any_system_setting(visit, demo: Demo):
    page = visit(demo.admin).open("replicas")
    page.get_by_role("button", name="Show in dark colours").click()
    assert is_dark(page)
    page.reload()
    expect(page.get_by_role("button", name="Show in light colours")).to_be_visible()
    assert is_dark(page)
    page.emulate_media(color_scheme="dark")
    page.get_by_role("button", name="Show in light colours").click()
    assert not is_dark(page)
    page.reload()
    expect(page.get_by_role("button", name="Show in dark colours")).to_be_visible()
    assert not is_dark(page)


def focused(page: Page) -> str:
    """What has the focus, as a screen reader would call it."""
    reported: str = page.evaluate(
        """() => {
          const one = document.activeElement;
          if (!one || one === document.body) return "";
          const label = one.getAttribute("aria-label") ?? one.labels?.[0]?.innerText ?? one.innerText;
          const within = one.closest("nav, form, table, dialog")?.tagName.toLowerCase() ?? "";
          return `${within} ${one.tagName.toLowerCase()} ${label.trim().split("\\n")[0]}`.trim();
        }"""
    )
    return reported


def tabbed(page: Page, most: int = 200) -> list[str]:
    """Everything that Tab reaches, in order."""
    reached: list[str] = []
    for _ in range(most):
        page.keyboard.press("Tab")
        if not (now := focused(page)) and reached:
            break
        reached.append(now)
    return reached


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_tab_reaches_the_skip_link_the_pages_the_filters_and_the_tables_in_this_order(visit, known: Stage, size):
    visitor = visit(known.admin, Screen(size=size))
    page = visitor.open()
    visitor.sign_in(OPERATE)
    arrived(page, OVERVIEW)
    page.reload()
    arrived(page, OVERVIEW)
    expect(page.get_by_role("combobox", name="Source")).to_be_visible()
    reached = tabbed(page)
    order = [
        "a Skip to the page",
        "a Prefix Gateway",
        "nav a Overview",
        "nav a Requests",
        "nav a Replicas",
        "nav a Spaces",
        "form a 15m",
        "form a 7d",
        "form select Tenant",
        "form select Source",
        "button Sign out",
        "table a mobile",
        "table a globex",
    ]
    places = [reached.index(each) for each in order]
    assert places == sorted(places)
    assert places[0] == 0


def test_skip_link_leads_past_the_bar(visit, demo: Demo):
    page = visit(demo.admin).open()
    arrived(page, OVERVIEW)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the page")).to_be_focused()
    expect(page.get_by_role("link", name="Skip to the page")).to_be_in_viewport()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")


def test_opening_a_page_moves_the_focus_to_its_heading(visit, demo: Demo):
    page = visit(demo.admin).open()
    arrived(page, OVERVIEW)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Requests").focus()
    page.keyboard.press("Enter")
    arrived(page, REQUESTS)
    expect(page.get_by_role("heading", level=1)).to_be_focused()


def test_dialog_keeps_the_focus_and_escape_gives_it_back(visit, known: Stage):
    visitor = visit(known.admin)
    page = visitor.open("spaces")
    visitor.sign_in(OPERATE)
    arrived(page, SPACES)
    before = known.asked("spaces")["spaces"]
    button = page.get_by_role("button", name="Reset").first
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    for key in ["Tab"] * 5 + ["Shift+Tab"] * 5:
        page.keyboard.press(key)
        # Nothing of the page behind it; only the browser itself lies between its last and its first.
        assert page.evaluate(
            "document.activeElement.closest('dialog') !== null || document.activeElement === document.body"
        )
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(button).to_be_focused()
    assert [each["id"] for each in known.asked("spaces")["spaces"]] == [each["id"] for each in before]
