"""Requests appear as they come, unless the user turns that off."""

import pytest
from playwright.sync_api import Page, expect

from browser.stage import OPERATE, Stage


@pytest.fixture
def follower(visit, busy: Stage):
    """Opens the requests page with a query, and waits until it follows."""

    def follow(query: str = ""):
        visitor = visit(busy.admin)
        page = visitor.open(f"requests{query}")
        visitor.sign_in(OPERATE)
        expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
        return visitor

    return follow


def shown(page: Page, request_id: str):
    return page.get_by_role("table").get_by_role("link", name=request_id, exact=True)


def test_request_that_is_sent_appears_on_top_by_itself(follower, busy: Stage):
    busy.send("Is it there?", request_id="feed-before")
    busy.wait_until_reported()
    visitor = follower()
    expect(shown(visitor.page, "feed-before")).to_be_visible()
    busy.send("And now?", request_id="feed-after")
    expect(shown(visitor.page, "feed-after")).to_be_visible()
    links = visitor.page.get_by_role("table").get_by_role("link").filter(has_text="feed-")
    assert links.all_inner_texts()[:2] == ["feed-after", "feed-before"]
    shown(visitor.page, "feed-after").click()
    expect(visitor.page.get_by_role("heading", level=1)).to_contain_text("feed-after")


@pytest.mark.slow
def test_pause_holds_back_what_comes_and_going_on_shows_it(follower, busy: Stage):
    visitor = follower()
    page = visitor.page
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status").filter(has_text="Paused")).to_be_visible()
    assert "paused=1" in visitor.place
    busy.send("One.", request_id="while-paused-1")
    busy.send("Two.", request_id="while-paused-2")
    expect(page.get_by_role("button", name="Show 2 new")).to_be_visible()
    expect(shown(page, "while-paused-1")).to_have_count(0)
    page.get_by_role("button", name="Go on").click()
    expect(shown(page, "while-paused-1")).to_be_visible()
    expect(shown(page, "while-paused-2")).to_be_visible()
    assert "paused" not in visitor.place
    # Without moving the pointer away first.
    busy.send("Three.", request_id="after-the-pause")
    expect(shown(page, "after-the-pause")).to_be_visible()


@pytest.mark.slow
def test_rows_do_not_move_under_the_pointer(follower, busy: Stage):
    busy.send("To point at.", request_id="pointed-at")
    busy.wait_until_reported()
    page = follower().page
    shown(page, "pointed-at").hover()
    busy.send("Not yet.", request_id="held-back")
    show = page.get_by_role("button", name="Show 1 new")
    expect(show).to_be_visible()
    expect(shown(page, "held-back")).to_have_count(0)
    show.click()
    expect(shown(page, "held-back")).to_be_visible()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "other", "wanted"),
    [
        ("?source=batch", {"source": "phone"}, {"source": "batch"}),
        ("?tenant=globex", {"tenant": "acme"}, {"tenant": "globex"}),
        ("?session=s-17", {"session": "s-18"}, {"session": "s-17"}),
    ],
    ids=["source", "tenant", "session"],
)
def test_filters_hold_for_what_comes(visit, busy: Stage, query, other, wanted):
    visitor = visit(busy.admin)
    page = visitor.open(f"requests{query}")
    visitor.sign_in(OPERATE)
    expect(page.get_by_role("heading", level=1)).to_have_text("Requests")
    name = query.strip("?").partition("=")[0]
    busy.send("Not this one.", request_id=f"other-{name}", **other)
    busy.send("This one.", request_id=f"wanted-{name}", **wanted)
    expect(shown(page, f"wanted-{name}")).to_be_visible()
    expect(shown(page, f"other-{name}")).to_have_count(0)


@pytest.mark.slow
def test_requests_of_one_reason_can_be_chosen(follower, busy: Stage):
    for minute in range(2):
        busy.send(
            "Hm?",
            source="clock",
            request_id=f"timed-{minute}",
            system=f"It is 2026-11-21T11:{minute:02}:00Z.\n" + "x y z " * 99,
        )
    busy.wait_until_reported()
    visitor = follower()
    page = visitor.page
    expect(shown(page, "timed-0")).to_be_visible()
    page.get_by_label("Reason").select_option(label="A time in the prompt")
    expect(shown(page, "timed-0")).to_have_count(0)
    expect(shown(page, "timed-1")).to_be_visible()
    assert "reason=dynamic_time" in visitor.place
