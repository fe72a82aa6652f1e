"""The dashboard's word for a decision, its colour, and what it means."""

from playwright.sync_api import expect

from browser.stage import READ

WORDS = ("warm", "partial", "cold", "balanced", "failover", "blind")


def test_a_small_part_is_shown_as_partial(visit, busy):
    source = "decisions-shown"
    short, long = (
        "Answer briefly, in one sentence and without guessing, whatever is asked. " * 3,
        "parcel invoice " * 400,
    )
    for number in (1, 2):
        busy.send(f"{number} {long}", source=source, system=short)
    busy.send(f"2 {long}", source=source, system=short)
    busy.wait_until_reported()
    page = visit(busy.admin)
    page.open(f"requests?source={source}")
    page.sign_in(READ)
    badges = page.page.locator("table.feed tbody .badge")
    expect(badges).to_have_text(["warm", "partial", "cold"])
    colours = [badge.evaluate("each => getComputedStyle(each).borderColor") for badge in badges.all()]
    assert len(set(colours)) == 3
    legend = page.page.get_by_text("Decision, by what replicas held")
    for word in WORDS:
        expect(legend.locator(".badge", has_text=word)).to_be_visible()
    expect(legend).to_contain_text("this one holds less than half of it")
    page.page.locator("table.feed tbody tr").nth(1).get_by_role("link").first.click()
    expect(page.page.get_by_text("but this one holds less than half of it").first).to_be_visible()
