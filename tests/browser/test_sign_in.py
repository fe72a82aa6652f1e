"""Who may look, who may do something, and where the token is kept."""

import pytest
from playwright.sync_api import expect

from browser.stage import OPERATE, READ, Stage

PAGES = ("", "reasons/dynamic_time", "requests", "requests/web-2", "replicas", "spaces")


@pytest.mark.parametrize("path", PAGES)
def test_without_a_token_every_page_asks_for_one_and_then_shows_what_was_asked_for(visit, known: Stage, path: str):
    visitor = visit(known.admin)
    visitor.expects("401")
    page = visitor.open(path)
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    place = visitor.place
    visitor.sign_in(READ)
    expect(page.get_by_role("heading", level=1)).not_to_have_text("Sign in")
    assert visitor.place == place
    expect(page.get_by_text("looks (may only look)")).to_be_visible()


def test_wrong_token_is_reported_and_can_be_corrected(visit, known: Stage):
    visitor = visit(known.admin)
    visitor.expects("401")
    page = visitor.open()
    page.get_by_label("Token").fill("pgw_admin_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid")
    visitor.sign_in(OPERATE)
    expect(page.get_by_text("operates", exact=True)).to_be_visible()


def test_token_is_in_no_url_no_cookie_and_nothing_that_outlives_the_tab(visit, known: Stage):
    visitor = visit(known.admin)
    visitor.expects("401")
    page = visitor.open()
    visitor.sign_in(OPERATE)
    for path in ("requests", "replicas", "spaces"):
        visitor.open(path)
        expect(page.get_by_text("operates", exact=True)).to_be_visible()
    assert visitor.context.cookies() == []
    assert OPERATE not in page.evaluate("JSON.stringify([{...localStorage}, document.cookie, location.href])")
    assert not [url for url in visitor.asked if OPERATE in url]
    # Another tab has to sign in for itself.
    other = visitor.context.new_page()
    other.goto(f"{known.admin}/dashboard")
    expect(other.get_by_role("heading", name="Sign in")).to_be_visible()


def test_sign_out_forgets_the_token(visit, known: Stage):
    visitor = visit(known.admin)
    visitor.expects("401")
    page = visitor.open("replicas")
    visitor.sign_in(READ)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert READ not in page.evaluate("JSON.stringify({...sessionStorage})")
