"""A user sees what canonicalization would save, what it brings, and what to write into the configuration."""

import re
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Locator, Page, expect

from browser.canonical_answers import (
    MANY,
    NOT_LOOKED_AT,
    OF_A_REQUEST,
    answered_with,
    reported_in_summary,
    rule,
    suggestion,
)
from browser.chromium import NARROW, WIDE, Screen
from browser.pages import OVERVIEW, REASON, arrived, request_page
from browser.stage import OPERATE, Stage
from browser.test_hostile_in_the_browser import BREAKOUT, LONG, TAG, TURNED, is_harmless
from browser.test_on_every_screen import TWO_SCREENS, looked_at, too_wide, violations
from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import RuleMode, RuleName

BROUGHT = "What canonicalization would bring"
DONE = "What canonicalization would do"
LINES = "canon:\n  rules:\n    {}: apply\n"


def bring(page: Page, name: str = BROUGHT) -> Locator:
    return page.get_by_role("region", name=name)


def item(section: Locator, text: str) -> Locator:
    """A rule's or a suggestion's own part of a section."""
    return section.get_by_role("listitem").filter(has=section.page.get_by_role("heading", name=text))


@pytest.mark.slow
def test_overview_shows_what_to_turn_on_and_what_that_saves(visit, known: Stage):
    visitor = visit(known.admin)
    answered_with(visitor.page, MANY)
    page = visitor.open()
    visitor.sign_in(OPERATE)
    arrived(page, OVERVIEW)
    section = bring(page)
    expect(section).to_contain_text("12 requests")
    headings = [each.strip() for each in section.get_by_role("heading", level=3).all_inner_texts()]
    assert headings == [
        "warning json-keys is on, and costs 0.5 points now: turn it off",
        "Turn dynamic-suffix on: +18.1 points hit rate",
        "Turn all observed rules together on: +20.4 points hit rate",
        "tool-order is on: saves 12.0 points now",
        "warning role-order costs 3.1 points: leave it off",
        "Places that vary, and no rule finds by itself",
    ]
    first = item(section, "Turn dynamic-suffix on")
    expect(first).to_contain_text("18,100 prompt tokens not computed again")
    expect(first).to_contain_text("19,300 saved, 1,200 lost")
    expect(first).to_contain_text("1.81 s of GPU time")
    expect(first).to_contain_text("$0.0181")
    expect(first).to_contain_text("changes 8 of 12 requests")
    expect(first).to_contain_text("between 17.0 and 19.2 points, with 95 % confidence")
    expect(item(section, "role-order")).to_contain_text("3,100 prompt tokens more to compute")
    expect(section).to_contain_text(
        "make next to no difference in this window: whitespace (3 requests), unicode (8 requests, on)"
    )


@pytest.mark.slow
def test_lines_for_the_configuration_are_there_to_be_copied(visit, known: Stage):
    visitor = visit(known.admin)
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answered_with(visitor.page, MANY)
    page = visitor.open()
    visitor.sign_in(OPERATE)
    arrived(page, OVERVIEW)

    def copied(of: Locator) -> str:
        if not of.get_by_role("button", name="Copy").is_visible():
            of.locator("summary").focus()
            page.keyboard.press("Enter")
        of.get_by_role("button", name="Copy").focus()
        page.keyboard.press("Enter")
        expect(of.get_by_role("status")).to_have_text("Copied.")
        text: str = page.evaluate("navigator.clipboard.readText()")
        return text

    section = bring(page)
    assert copied(item(section, "Turn dynamic-suffix on")) == LINES.format("dynamic-suffix")
    together = item(section, "all observed rules together")
    assert copied(together) == "canon:\n  rules:\n    dynamic-suffix: apply\n    whitespace: apply\n"
    expect(together).to_contain_text("costs more than it saves by itself: role-order")
    assert copied(item(section, "turn it off")) == "canon:\n  rules:\n    json-keys: observe\n"
    assert copied(item(section, "Declare the slot customer")) == suggestion()["yaml"]


@pytest.mark.slow
def test_every_rule_is_described_in_words_and_turned_on_by_its_lines(visit, known: Stage):
    visitor = visit(known.admin)
    answered_with(visitor.page, reported_in_summary([rule(name, "observe", 900) for name in RuleName]))
    page = visitor.open()
    visitor.sign_in(OPERATE)
    arrived(page, OVERVIEW)
    said = set()
    for name in RuleName:
        own = item(bring(page), f"Turn {name} on")
        lines = yaml.safe_load(own.locator("pre").text_content() or "")
        assert CanonSettings.model_validate(lines["canon"]).rules == {name: RuleMode.APPLY}
        said.add(own.locator("p").first.inner_text())
    assert all(re.fullmatch(r"\w.{20,}\.", words) for words in said)
    assert len(said) == len(RuleName)


@pytest.mark.slow
def test_all_together_are_no_advice_where_one_alone_brings_as_much(visit, known: Stage):
    visitor = visit(known.admin)
    rules = [rule("all", "observe", 500), rule("whitespace", "observe", 500), rule("unicode", "observe", 300)]
    answered_with(visitor.page, reported_in_summary(rules))
    page = visitor.open()
    visitor.sign_in(OPERATE)
    arrived(page, OVERVIEW)
    expect(item(bring(page), "Turn unicode on")).to_be_visible()
    expect(bring(page).get_by_role("heading", name="all observed rules")).to_have_count(0)


@pytest.mark.slow
def test_lines_say_how_to_begin_with_the_tenant_whose_figures_are_shown(visit, known: Stage):
    visitor = visit(known.admin)
    answered_with(visitor.page, MANY)
    page = visitor.open("?tenant=acme")
    visitor.sign_in(OPERATE)
    arrived(page, OVERVIEW)
    first = item(bring(page), "Turn dynamic-suffix on")
    expect(first).to_contain_text("canon: {dynamic-suffix: apply} into its entry of tenants")
    visitor.open()
    arrived(page, OVERVIEW)
    expect(first).to_contain_text("dynamic-suffix: apply")
    expect(first).not_to_contain_text("entry of")


def test_finding_leads_to_the_rule_that_fixes_it(visit, known: Stage):
    visitor = visit(known.admin)
    answered_with(visitor.page, MANY)
    page = visitor.open()
    visitor.sign_in(OPERATE)
    arrived(page, OVERVIEW)
    first = page.get_by_role("region", name="Fix this first").get_by_role("listitem").first
    expect(first).to_contain_text("In the gateway: turn dynamic-suffix on, +18.1 points")
    first.get_by_role("link", name="turn dynamic-suffix on").press("Enter")
    expect(page.get_by_role("heading", name=BROUGHT)).to_be_in_viewport()
    expect(page.get_by_role("heading", name=BROUGHT)).to_be_focused()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reported", "texts"),
    [
        (NOT_LOOKED_AT, ["none of these requests was tried", "every rule is off", "the explanation is behind"]),
        (reported_in_summary(), ["Nothing would be saved", "no rule found anything to change"]),
        (
            reported_in_summary(
                [rule("whitespace", "observe", 49), rule("all", "observe", 0), rule("unicode", "observe", -49)]
            ),
            ["Nothing would be saved", "next to no difference", "whitespace (8 requests), unicode (8 requests)"],
        ),
        (reported_in_summary(looked_at={"requests": 3, "prompt_tokens": 9}), ["3 requests (20 % of all"]),
        (
            reported_in_summary(looked_at={"conversations": {"tried": 3, "of": 12}}),
            ["Rules were tried on 3 of the last 12 conversations", "explain.observed_share"],
        ),
    ],
    ids=["not looked at", "clean", "no use", "some", "a sample"],
)
def test_where_nothing_would_be_saved_it_says_so(visit, known: Stage, reported, texts):
    visitor = visit(known.admin)
    answered_with(visitor.page, reported)
    page = visitor.open()
    visitor.sign_in(OPERATE)
    arrived(page, OVERVIEW)
    for text in texts:
        expect(bring(page)).to_contain_text(text)
    expect(bring(page).get_by_role("button", name="Copy")).to_have_count(0)
    expect(page.get_by_role("region", name="Fix this first")).not_to_contain_text("In the gateway")


@pytest.mark.slow
def test_reasons_page_has_its_rules_and_its_suggestions_only(visit, known: Stage):
    visitor = visit(known.admin)
    answered_with(visitor.page, reported_in_summary(MANY["rules"], [suggestion(reason="dynamic_time"), suggestion()]))
    page = visitor.open(REASON.path)
    visitor.sign_in(OPERATE)
    arrived(page, REASON)
    section = bring(page, DONE)
    expect(item(section, "Turn dynamic-suffix on: +18.1 points")).to_be_visible()
    idle = item(section, "pattern would change nothing in this window")
    expect(idle.get_by_text(LINES.format("pattern"))).to_be_hidden()
    idle.locator("summary").click()
    expect(idle.get_by_text(LINES.format("pattern"))).to_be_visible()
    expect(section).not_to_contain_text("tool-order")
    expect(section.get_by_role("heading", name="Declare the slot customer")).to_have_count(1)
    visitor.open("reasons/new_content")
    expect(page.get_by_role("heading", level=1)).to_contain_text("New content")
    expect(page.get_by_role("heading", name="Examples")).to_be_visible()
    expect(bring(page, DONE)).to_have_count(0)


@pytest.mark.slow
def test_reasons_page_says_so_where_nothing_was_looked_at(visit, known: Stage):
    visitor = visit(known.admin)
    answered_with(visitor.page, NOT_LOOKED_AT)
    page = visitor.open(REASON.path)
    visitor.sign_in(OPERATE)
    arrived(page, REASON)
    section = bring(page, DONE)
    expect(section).to_contain_text("none of these requests was tried")
    # What they do, and how to turn them on, stands there all the same; that they would change nothing does not.
    expect(section.get_by_role("heading", name="dynamic-suffix")).to_be_visible()
    expect(section).not_to_contain_text("would change nothing")


@pytest.mark.slow
def test_requests_page_has_every_place_with_both_texts_and_what_it_saved(visit, known: Stage):
    visitor = visit(known.admin)
    answered_with(visitor.page, request=OF_A_REQUEST)
    page = visitor.open("requests/mobile-9")
    visitor.sign_in(OPERATE)
    arrived(page, request_page("mobile-9"))
    main = page.get_by_role("main")
    expect(main).to_contain_text("Changed on its way to the engine by tool-order.")
    expect(main).to_contain_text("Context was lost")
    table = page.get_by_role("table", name=re.compile("^Rules of canonicalization"))
    for texts in (
        ["dynamic-suffix", "only observed", "+500"],
        ["tool-order", "applied", "−48"],
        ["All observed rules together", "+500"],
    ):
        row = table.get_by_role("row").filter(has_text=texts[0])
        for text in texts:
            expect(row).to_contain_text(text)
    places = page.locator(".edits > li")
    expect(places).to_have_count(3)
    expect(places.nth(0)).to_contain_text("the prompt keeps its length")
    expect(places.nth(0).get_by_role("heading")).to_have_count(0)
    expect(places.nth(1)).to_contain_text("21 tokens more in the prompt, if it were on")
    expect(places.nth(1)).to_contain_text("Xx xx ‹date and time› xxx.")
    expect(places.nth(1)).to_contain_text("[xxxxxxx 9]")
    expect(places.nth(2)).to_contain_text("No text here.")
    expect(places.nth(2)).not_to_contain_text("in the prompt, if")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reported", "text"),
    [
        ({"observed": True}, "No observed rule found anything to change either."),
        ({"observed": False}, "was not computed"),
        ({"observed": False, "left_out": True}, "its conversation is not in the sample"),
        ({"observed": False, "rules": OF_A_REQUEST["rules"][:1]}, "not known"),
    ],
)
def test_request_that_no_rule_changed_says_what_is_known(visit, known: Stage, reported, text):
    visitor = visit(known.admin)
    nothing = {"applied": [], "context_lost": False, "rules": [], "edits": []}
    answered_with(visitor.page, request=nothing | reported)
    page = visitor.open("requests/web-3")
    visitor.sign_in(OPERATE)
    arrived(page, request_page("web-3"))
    main = page.get_by_role("main")
    expect(main).to_contain_text("Sent on as it came: no rule changed it.")
    expect(main).to_contain_text(text)
    expect(main).not_to_contain_text("Context was lost")


@pytest.mark.slow
@pytest.mark.parametrize("screen", TWO_SCREENS, ids=str)
def test_every_state_is_accessible_and_fits(visit, known: Stage, screen: Screen, album: Path | None):
    visitor = visit(known.admin, screen)
    page = visitor.page
    answered_with(page, MANY, OF_A_REQUEST)
    visitor.open()
    visitor.sign_in(OPERATE)
    problems: list[str] = []
    for place in (OVERVIEW, REASON, request_page("mobile-9")):
        visitor.open(place.path)
        arrived(page, place)
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        problems += looked_at(visitor, place, album, f"canonical-{place}-{screen}")
    answered_with(page, NOT_LOOKED_AT)
    for place in (OVERVIEW, REASON):
        visitor.open(place.path)
        problems += looked_at(visitor, place, album, f"canonical-unknown-{place}-{screen}")
    assert problems == []


@pytest.mark.slow
@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_texts_of_prompts_stay_text(visit, known: Stage, size):
    visitor = visit(known.admin, Screen(size=size))
    page = visitor.page
    hostile = [
        suggestion(name=text[:40], regex=text, yaml=f"canon: {text}", tenant=text, source=text, model=text)
        for text in (TAG, BREAKOUT, TURNED, LONG[:2000])
    ]
    rules = [
        rule(text, mode, 100)
        for text in (TAG, LONG[:2000], "__proto__", "constructor")
        for mode in ("observe", "apply")
    ]
    hostile = [each | {"reason": "dynamic_time"} for each in hostile]
    edits = [
        {**OF_A_REQUEST["edits"][1], "rule": text, "path": text, "said": text, "before": text, "after": f"{text}!"}
        for text in (TAG, BREAKOUT, TURNED, LONG[:2000])
    ]
    answered_with(
        page,
        reported_in_summary(rules, hostile),
        {**OF_A_REQUEST, "applied": [TAG, LONG[:2000]], "edits": edits},
    )
    visitor.open()
    visitor.sign_in(OPERATE)
    for place in (OVERVIEW, REASON, request_page("mobile-9")):
        visitor.open(place.path)
        arrived(page, place)
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        is_harmless(page)
        expect(page.get_by_role("main").get_by_text(TAG).first).to_be_visible()
    assert too_wide(page) + violations(page) == []
