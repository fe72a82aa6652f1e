"""What is looked at stands in the URL: every user who opens it sees the same."""

import re
from collections.abc import Iterable

import pytest
from playwright.sync_api import Locator, Page, expect

from browser.pages import OVERVIEW, REQUESTS, arrived, counts
from browser.stage import OPERATE, Sent, Stage

pytestmark = pytest.mark.slow


@pytest.fixture
def visitor(visit, known: Stage):
    """An operator, on the overview of the gateway whose requests are all known."""
    visitor = visit(known.admin)
    visitor.open()
    visitor.sign_in(OPERATE)
    arrived(visitor.page, OVERVIEW)
    return visitor


def hit_rate(sent: Iterable[Sent]) -> str:
    """As the engines reported to the clients."""
    counted = list(sent)
    share = sum(each.cached_tokens for each in counted) / sum(each.prompt_tokens for each in counted)
    return f"{share * 100:.1f} %"


def chosen(page: Page, name: str) -> Locator:
    """The field of the bar in which one chooses a source, a tenant and so on."""
    return page.get_by_role("banner").get_by_role("combobox", name=name)


def headline(page: Page, name: str) -> Locator:
    """A headline figure, by its name."""
    figures = page.get_by_role("region", name="Headline figures")
    return figures.get_by_text(name, exact=True).locator("xpath=following-sibling::dd[1]")


def shows(page: Page, sent: Iterable[Sent]) -> None:
    """Wait until the page shows these requests and no others, with the engines' reported figures."""
    counted = list(sent)
    counts(page, len(counted))
    expect(headline(page, "Hit rate")).to_have_text(hit_rate(counted))


def test_headline_of_everything_is_what_the_engines_reported_to_the_clients(visitor, known: Stage):
    page = visitor.page
    shows(page, known.sent)
    served = page.get_by_role("region", name="Headline figures").get_by_text("Served from cache").locator("xpath=..")
    cached, total = (sum(each) for each in zip(*((x.cached_tokens, x.prompt_tokens) for x in known.sent), strict=True))
    expect(served.locator(f"[title='{cached:,}']")).to_be_visible()
    expect(served.locator(f"[title='{total:,}']")).to_be_visible()


@pytest.mark.parametrize("source", ["web", "mobile"])
def test_source_chosen_in_the_bar_restricts_all_figures_and_stands_in_the_url(visitor, known: Stage, source: str):
    page = visitor.page
    chosen(page, "Source").select_option(source)
    shows(page, (each for each in known.sent if each.source == source))
    assert visitor.place == f"?source={source}"
    sources = page.get_by_role("table").filter(has=page.get_by_role("columnheader", name="Mostly for"))
    expect(sources.get_by_role("rowheader")).to_have_count(1)


def test_a_tenants_name_restricts_the_page_to_it_until_all_are_shown_again(visitor, known: Stage):
    page = visitor.page
    visitor.follow("globex")
    shows(page, (each for each in known.sent if each.tenant == "globex"))
    expect(chosen(page, "Tenant")).to_have_value("globex")
    page.get_by_role("link", name="show all").click()
    shows(page, known.sent)


def test_shared_url_shows_the_same_view_to_another_user(visit, visitor, known: Stage):
    page = visitor.page
    page.get_by_role("group", name="Window").get_by_role("link", name="1h").click()
    chosen(page, "Source").select_option("mobile")
    page.get_by_role("group", name="Broken down by").get_by_role("link", name="tenant").click()
    page.get_by_role("region", name="The ladder").get_by_role("link", name="Prompt changed").click()
    expect(page.get_by_role("heading", name=re.compile("^Reasons:"))).to_be_visible()
    shared = visitor.place
    for parameter in ("window=1h", "source=mobile", "by=tenant", "step=reusable"):
        assert parameter in shared
    mobile = [each for each in known.sent if each.source == "mobile"]
    shows(page, mobile)

    user = visit(known.admin)
    other = user.open(shared)
    user.sign_in(OPERATE)
    arrived(other, OVERVIEW)
    shows(other, mobile)
    expect(other.get_by_role("heading", name=re.compile("^Reasons:"))).to_be_visible()
    expect(other.get_by_role("group", name="Window").get_by_role("link", name="1h")).to_have_attribute(
        "aria-current", "true"
    )
    expect(chosen(other, "Source")).to_have_value("mobile")
    assert user.place == shared


def test_back_takes_a_filter_off_again(visitor, known: Stage):
    page = visitor.page
    chosen(page, "Source").select_option("mobile")
    shows(page, (each for each in known.sent if each.source == "mobile"))
    page.go_back()
    shows(page, known.sent)
    expect(chosen(page, "Source")).to_have_value("")


def test_filters_stay_when_another_page_is_opened(visitor, known: Stage):
    page = visitor.page
    chosen(page, "Source").select_option("mobile")
    shows(page, (each for each in known.sent if each.source == "mobile"))
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Requests").click()
    arrived(page, REQUESTS)
    assert visitor.place == "/requests?source=mobile"
    rows = page.get_by_role("table").get_by_role("row").filter(has=page.get_by_role("link"))
    expect(rows).to_have_count(6)
    expect(rows.filter(has_text="mobile")).to_have_count(6)


def reasons_listed(page: Page) -> list[str]:
    table = page.get_by_role("table").filter(has=page.get_by_role("columnheader", name="Reason", exact=True))
    return [text.strip() for text in table.get_by_role("rowheader").all_inner_texts()]


def test_a_step_of_the_ladder_restricts_the_reasons_to_its_own_and_back(visitor, known: Stage):
    page = visitor.page
    everything = reasons_listed(page)
    catalog = {each["code"]: each for each in known.asked("reasons")["catalog"]}
    reported = [(each["title"], catalog[each["code"]]["rung"]) for each in known.asked("summary")["reasons"]]
    assert sorted(everything) == sorted(title for title, _ in reported)
    step = page.get_by_role("region", name="The ladder").get_by_role("listitem").filter(has_text="Prompt changed")
    step.get_by_role("link").click()
    expect(page.get_by_role("heading", name=re.compile("^Reasons:"))).to_be_visible()
    assert "step=reusable" in visitor.place
    assert sorted(reasons_listed(page)) == sorted(title for title, rung in reported if rung == "reusable")
    step.get_by_role("link").click()
    expect(page.get_by_role("heading", name=re.compile("^Reasons:"))).to_have_count(0)
    assert reasons_listed(page) == everything


def test_a_bar_of_the_ladder_can_be_clicked_as_well(visitor):
    page = visitor.page
    ladder = page.get_by_role("region", name="The ladder")
    steps = ladder.get_by_role("listitem")
    canvas = ladder.get_by_role("img")
    canvas.scroll_into_view_if_needed()
    bar, drawn = steps.filter(has_text="Prompt changed").bounding_box(), canvas.bounding_box()
    assert bar
    assert drawn
    page.mouse.click(drawn["x"] + drawn["width"] / 2, bar["y"] + bar["height"] / 2)
    expect(page.get_by_role("heading", name=re.compile("^Reasons:"))).to_be_visible()
    assert "step=reusable" in visitor.place


def test_charts_have_the_same_figures_as_a_table(visitor, known: Stage):
    page = visitor.page
    ladder = page.get_by_role("region", name="The ladder")
    ladder.get_by_role("button", name="Show numbers").click()
    rows = ladder.get_by_role("row")
    expect(rows.first).to_contain_text("Tokens")
    summary = known.asked("summary")
    expect(rows.nth(1)).to_contain_text(f"{summary['prompt_tokens']:,}")
    for rung in summary["ladder"]:
        expect(rows.filter(has_text=rung["title"]).first).to_contain_text(f"{rung['more']:,}")
