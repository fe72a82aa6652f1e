"""A replica or the gateway itself goes away while a user looks."""

import re

import pytest
from playwright.sync_api import expect

from browser.pages import REPLICAS, SPACES, arrived, counts
from browser.stage import OPERATE, Stage

pytestmark = pytest.mark.slow

GONE = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE", "ERR_INCOMPLETE_CHUNKED", "ERR_SOCKET")


def test_killed_replica_turns_ejected_while_one_watches_and_ready_again_when_it_is_back(visit, own_stage: Stage):
    visitor = visit(own_stage.admin)
    page = visitor.open("replicas")
    visitor.sign_in(OPERATE)
    arrived(page, REPLICAS)
    first = page.get_by_role("article", name="replica-1")
    second = page.get_by_role("article", name="replica-2")
    expect(first.get_by_text("ready", exact=True)).to_be_visible()
    own_stage.engines[0].kill()
    expect(first.get_by_text("ejected", exact=True)).to_be_visible()
    expect(first).to_contain_text("Its health checks fail.")
    expect(second.get_by_text("ready", exact=True)).to_be_visible()
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Spaces").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(SPACES.heading)
    page.go_back()
    expect(first.get_by_text("ejected", exact=True)).to_be_visible()
    own_stage.revive(0)
    expect(first.get_by_text("ready", exact=True)).to_be_visible()


def test_replica_whose_address_went_to_another_model_says_so_and_gets_no_requests(visit, own_stage: Stage):
    visitor = visit(own_stage.admin)
    page = visitor.open("replicas")
    visitor.sign_in(OPERATE)
    arrived(page, REPLICAS)
    own_stage.engines[0].kill()
    own_stage.revive(0, "--model", "other")
    first = page.get_by_role("article", name="replica-1")
    expect(first).to_contain_text("does not contain this model")
    expect(page.get_by_role("region", name="Replicas of demo").get_by_role("status")).to_contain_text("1 of 2 take")
    for number in range(4):
        own_stage.send(f"Where is parcel {number}?", system=f"Application {number}.")
    reported = own_stage.asked("replicas")["replicas"]
    assert [(each["serves_model"], each["prediction"]["requests"]) for each in reported] == [(False, 0), (True, 4)]


def test_killed_gateway_is_shown_its_last_figures_stay_and_another_one_is_found(visit, own_stage: Stage):
    for number in range(3):
        own_stage.send(f"Where is parcel {number}?")
    own_stage.wait_until_reported()
    visitor = visit(own_stage.admin)
    visitor.expects(*GONE)
    page = visitor.open()
    visitor.sign_in(OPERATE)
    main = page.get_by_role("main")
    counts(page, 3)
    served = main.get_by_role("region", name="Headline figures").inner_text()
    own_stage.gateway.kill()
    expect(page.get_by_role("alert").first).to_contain_text("does not answer")
    expect(page.get_by_role("alert").first).to_contain_text(re.compile(r"is from \d\d:\d\d:\d\d"))
    assert main.get_by_role("region", name="Headline figures").inner_text() == served
    own_stage.restart_gateway()
    own_stage.send("Where is it now?")
    counts(page, 1)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_live_feed_says_that_it_is_cut_off_and_goes_on_by_itself(visit, own_stage: Stage):
    own_stage.send("Before.", request_id="before-the-end")
    own_stage.wait_until_reported()
    visitor = visit(own_stage.admin)
    visitor.expects(*GONE)
    page = visitor.open("requests")
    visitor.sign_in(OPERATE)
    expect(page.get_by_role("link", name="before-the-end")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    own_stage.gateway.kill()
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    expect(page.get_by_role("link", name="before-the-end")).to_be_visible()
    own_stage.restart_gateway()
    own_stage.send("After.", request_id="after-the-end")
    expect(page.get_by_role("link", name="after-the-end")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)
