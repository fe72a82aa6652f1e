"""Resetting a space: what it costs is said before, and nothing happens without a yes."""

import re

import pytest
from playwright.sync_api import expect

from browser.pages import SPACES, arrived
from browser.stage import OPERATE, READ, Stage

pytestmark = pytest.mark.slow


def test_reset_says_what_it_costs_and_is_done_only_when_confirmed(visit, own_stage: Stage):
    stage = own_stage
    for number in range(3):
        stage.send(f"Where is parcel {number}?", tenant="acme")
    stage.send("How much is it?", tenant="globex")
    stage.wait_until_reported()
    alive = {space["tenant"]: space for space in stage.asked("spaces", state="alive")["spaces"]}
    old = alive["tenant:acme"]
    visitor = visit(stage.admin)
    page = visitor.open("spaces?tenant=acme")
    visitor.sign_in(OPERATE)
    arrived(page, SPACES)

    button = page.get_by_role("button", name="Reset demo of acme")
    dialog = page.get_by_role("dialog")
    button.click()
    expect(dialog).to_contain_text(re.compile(r"\b3 requests"))
    expect(dialog).to_contain_text(f"{old['cached_tokens']:,} of the tokens")
    expect(dialog).to_contain_text(f"at most {old['prompt_tokens'] - old['cached_tokens']:,} tokens")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    assert stage.send("Where is parcel 3?", tenant="acme").cached_tokens > 0
    assert {space["id"] for space in stage.asked("spaces", state="alive")["spaces"]} == {
        s["id"] for s in alive.values()
    }

    button.click()
    dialog.get_by_role("button", name=re.compile("^Reset")).click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("main")).to_contain_text("1 space was reset")
    ended = {space["id"]: space["cause"] for space in stage.asked("spaces", state="ended")["spaces"]}
    assert ended.keys() == {old["id"]}
    cold = stage.send("Where is parcel 4?", tenant="acme", request_id="after-the-reset")
    assert cold.cached_tokens == 0
    stage.wait_until_reported()
    assert stage.asked("requests/after-the-reset")["missed"][0]["reason"] == "reset"
    # The other tenant's space is as it was.
    assert stage.send("How much is that?", tenant="globex").cached_tokens > 0


def test_read_only_token_is_offered_no_reset_and_shown_why(visit, known: Stage):
    visitor = visit(known.admin)
    page = visitor.open("spaces")
    visitor.sign_in(READ)
    arrived(page, SPACES)
    expect(page.get_by_role("main")).to_contain_text("This token may only look")
    expect(page.get_by_role("button", name="Reset")).to_have_count(0)
