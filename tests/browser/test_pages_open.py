"""Every page opens, however one comes to it, and says so when there is none."""

import re

import pytest
from playwright.sync_api import expect

from browser.pages import OVERVIEW, REASON, REPLICAS, REQUESTS, SPACES, TABS, Place, arrived, request_page
from browser.processes import Demo
from browser.stage import OPERATE, Stage

PLACES = [OVERVIEW, REASON, REQUESTS, request_page("mobile-9"), REPLICAS, SPACES]


@pytest.mark.slow
def test_every_page_of_the_demo_opens_by_its_link_and_has_a_title_of_its_own(visit, demo: Demo):
    visitor = visit(demo.admin)
    page = visitor.open()
    titles = set()
    for tab, place in TABS.items():
        page.get_by_role("navigation", name="Pages").get_by_role("link", name=tab).click()
        arrived(page, place)
        expect(page.get_by_role("navigation", name="Pages").get_by_role("link", name=tab)).to_have_attribute(
            "aria-current", "page"
        )
        assert visitor.place.strip("/") == place.path
        titles.add(page.title())
    assert len(titles) == len(TABS)
    page.get_by_role("link", name="Prefix Gateway", exact=True).click()
    arrived(page, OVERVIEW)


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_every_page_opens_by_its_url_and_after_reload(visit, known: Stage, place: Place):
    visitor = visit(known.admin)
    page = visitor.open(place.path)
    visitor.sign_in(OPERATE)
    arrived(page, place)
    page.reload()
    arrived(page, place)


def test_back_and_forward_lead_through_the_pages_that_were_seen(visit, demo: Demo):
    visitor = visit(demo.admin)
    page = visitor.open()
    arrived(page, OVERVIEW)
    tabs = page.get_by_role("navigation", name="Pages")
    tabs.get_by_role("link", name="Replicas").click()
    arrived(page, REPLICAS)
    tabs.get_by_role("link", name="Requests").click()
    arrived(page, REQUESTS)
    page.go_back()
    arrived(page, REPLICAS)
    page.go_back()
    arrived(page, OVERVIEW)
    page.go_forward()
    arrived(page, REPLICAS)


def test_links_within_the_dashboard_do_not_load_it_anew(visit, demo: Demo):
    visitor = visit(demo.admin)
    page = visitor.open()
    arrived(page, OVERVIEW)
    page.evaluate("window.sameDocument = true")
    visitor.follow(re.compile("examples$"))
    expect(page.get_by_role("heading", level=1)).not_to_have_text(OVERVIEW.heading)
    assert page.evaluate("window.sameDocument")


def test_unknown_page_says_so_and_leads_back(visit, demo: Demo):
    visitor = visit(demo.admin)
    page = visitor.open("nowhere/at%2Fall/%E0%A4")
    expect(page.get_by_role("heading", level=1)).to_have_text("Nothing here")
    page.get_by_role("link", name="Go to the overview").click()
    arrived(page, OVERVIEW)


def test_unknown_reason_says_so(visit, demo: Demo):
    visitor = visit(demo.admin)
    visitor.expects("moon_phase", "status of 400")
    page = visitor.open("reasons/moon_phase")
    expect(page.get_by_role("main")).to_contain_text("moon_phase")
    expect(page.get_by_role("main")).to_contain_text(re.compile("no reason|not a reason|unknown", re.IGNORECASE))


def test_unknown_request_says_so_and_leads_to_those_that_are_kept(visit, demo: Demo):
    visitor = visit(demo.admin)
    visitor.expects("404")
    page = visitor.open("requests/never-sent")
    expect(page.get_by_role("main")).to_contain_text("never-sent")
    visitor.follow(re.compile("requests", re.IGNORECASE))
    arrived(page, REQUESTS)
