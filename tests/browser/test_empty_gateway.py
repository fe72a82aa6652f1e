"""A gateway that has not been used yet: every page says what to do."""

import pytest
from playwright.sync_api import expect

from browser.pages import REPLICAS, arrived, counts
from browser.stage import OPERATE, Stage

pytestmark = pytest.mark.slow

NOTHING_YET = {
    "": ("No requests in the last 15 minutes", "base_url"),
    "?window=24h": ("No requests in the last 24 hours", "base_url"),
    "?source=web": ("No requests in the last 15 minutes with these filters", "Take the filters off"),
    "requests": ("No requests yet", "Send one to the gateway's public port"),
    "requests?source=web": ("None of the requests that are kept", "Show all requests"),
    "requests/some-id": ("Not kept, or not yet", "See the last requests"),
    "reasons/dynamic_time": ("Nothing was computed again for this reason", "Look at 7 days"),
    "spaces": ("No spaces yet", "A space begins with the first request"),
    "spaces?tenant=acme": ("No such spaces", "Show all spaces"),
}


def test_every_page_of_an_unused_gateway_says_what_to_do_until_the_first_request(visit, own_stage: Stage):
    visitor = visit(own_stage.admin)
    visitor.expects("some-id", "status of 404")
    page = visitor.open()
    visitor.sign_in(OPERATE)
    main = page.get_by_role("main")
    for path, texts in NOTHING_YET.items():
        visitor.open(path)
        for text in texts:
            expect(main).to_contain_text(text)
    arrived(visitor.open("replicas"), REPLICAS)
    expect(main).to_contain_text("No prefix was shared yet")
    expect(main).to_contain_text("No prefixes are declared")

    visitor.open()
    expect(main).to_contain_text("No requests")
    own_stage.send("Hello?")
    counts(page, 1)
    expect(main).to_contain_text("Fix this first")
