"""A user who has never seen the dashboard finds which application to fix, where, and how."""

import re

from playwright.sync_api import Route, expect

from browser.pages import OVERVIEW, arrived
from browser.stage import OPERATE, Stage


def test_first_finding_names_the_application_the_place_and_the_remedy_and_leads_to_the_proof(visit, known: Stage):
    visitor = visit(known.admin)
    page = visitor.open()
    visitor.sign_in(OPERATE)
    arrived(page, OVERVIEW)
    first = page.get_by_role("region", name="Fix this first").get_by_role("listitem").first
    expect(first).to_contain_text("mobile")
    expect(first).to_contain_text("a date and time that changes")
    expect(first).to_contain_text("messages[0].content, line 2")
    expect(first).to_contain_text("Move it behind what repeats")
    expect(first).to_contain_text("in the application's prompts")

    first.get_by_role("link", name=re.compile("^A time in the prompt")).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("A time in the prompt")
    assert visitor.place.startswith("/reasons/dynamic_time?")
    assert "source=mobile" in visitor.place
    main = page.get_by_role("main")
    expect(main).to_contain_text("3,060")
    expect(main).to_contain_text("Move it behind what repeats")
    # The example: both texts, masked, with the place that differs marked.
    expect(main.get_by_text("Now: this request")).to_be_visible()
    expect(main.locator("mark").first).to_be_visible()

    newest = [each.id for each in known.sent if each.source == "mobile"][-1]
    visitor.follow(re.compile(newest))
    reported = known.asked(f"requests/{newest}")["told"]
    expect(page.get_by_role("heading", level=1)).to_contain_text(newest)
    for line in reported[1:4]:
        expect(page.get_by_role("main")).to_contain_text(line.strip())
    expect(page.get_by_text("Now: this request")).to_be_visible()
    marked = page.get_by_role("main").locator("mark")
    expect(marked.first).to_be_visible()
    assert "T10:05" not in page.content()
    assert "parcels" not in page.content()


def test_a_question_in_front_of_documents_is_shown_with_what_it_brings(visit, known: Stage):
    hint = {"code": "question_first", "tokens": 1234, "gain": "Up to 1,234 tokens more.", "advice": "Documents first."}
    visitor = visit(known.admin)

    def hinted(route: Route) -> None:
        given = route.fetch()
        if given.ok:
            reported = given.json()
            for finding in reported["findings"]:
                finding.update(hint=hint, advice=hint["advice"], reason="user_data")
            route.fulfill(response=given, json=reported)
        else:
            route.fulfill(response=given)

    visitor.page.route("**/admin/api/summary?*", hinted)
    page = visitor.open()
    visitor.sign_in(OPERATE)
    arrived(page, OVERVIEW)
    first = page.get_by_role("region", name="Fix this first").get_by_role("listitem").first
    expect(first).to_contain_text("What to do: Documents first.")
    expect(first).to_contain_text("What it brings: Up to 1,234 tokens more.")
    expect(first).not_to_contain_text("In the gateway")


def test_request_leads_to_the_one_it_was_compared_with(visit, known: Stage):
    visitor = visit(known.admin)
    page = visitor.open("requests/mobile-9")
    visitor.sign_in(OPERATE)
    reference = known.asked("requests/mobile-9")["reference"]["id"]
    visitor.follow(reference)
    expect(page.get_by_role("heading", level=1)).to_contain_text(reference)
    assert visitor.place == f"/requests/{reference}"


def test_candidates_are_shown_with_their_terms_and_the_chosen_one_is_marked(visit, known: Stage):
    visitor = visit(known.admin)
    page = visitor.open("requests/web-3")
    visitor.sign_in(OPERATE)
    detail = known.asked("requests/web-3")
    for target in detail["decision"]["targets"]:
        row = page.get_by_role("row").filter(has_text=target["replica"]).first
        expect(row).to_contain_text(f"{target['held_tokens']:,}")
        if target["chosen"]:
            expect(row).to_contain_text(re.compile("chosen", re.IGNORECASE))
