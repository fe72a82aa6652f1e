"""Anything that clients and operators write stays text: it becomes no markup, no link, no script."""

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from browser.pages import OVERVIEW, SPACES, arrived
from browser.stage import OPERATE, SYSTEM, Stage, staged
from browser.test_on_every_screen import too_wide

TAG = '<img src=x onerror="alert(1)">'
BREAKOUT = "\"'></option></select></textarea><script>alert(1)</script><svg onload=alert(1)>"
LINK = "javascript:alert(1)"
TURNED = "\u202etxt.exe\u2066\u200b\u0007\u0085"
LONG = "W" * 10_000
LABEL = f"v3 {TAG}"

MADE_OF_TEXT = """
() => [...document.querySelectorAll("*")]
  .filter((one) =>
    ["IMG", "IFRAME", "OBJECT", "EMBED", "BASE", "VIDEO", "MATH"].includes(one.tagName) ||
    (one.tagName.toLowerCase() === "svg") ||
    (one.tagName === "SCRIPT" && !one.src.startsWith(location.origin)) ||
    one.getAttributeNames().some((name) => name.startsWith("on") || name === "srcdoc") ||
    ["href", "src", "action", "formaction", "data"].some((name) =>
      /^\\s*(javascript|data):/i.test(one.getAttribute(name))))
  .map((one) => one.outerHTML.slice(0, 200))
"""
"""Elements that the dashboard never makes."""


def tool(name: str) -> dict[str, object]:
    parameters = {"type": "object", "properties": {name[:1000]: {"type": "string", "description": name[:1000]}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A gateway whose clients write what they can into everything that is shown."""
    with staged(tmp_path_factory.mktemp("hostile"), label=LABEL) as stage:
        for number, text in enumerate((TAG, BREAKOUT, LINK, LONG)):
            prompt = text[:1000]
            keys = json.dumps({prompt: number, TURNED: prompt})
            for turn in (1, 2):
                stage.send(
                    prompt,
                    source=text,
                    session=f"{text[:4000]} {number}",  # longer ones count as none
                    request_id=text[:100] if turn == 1 else f"hostile-{number}",
                    system=f"{prompt} It is 2026-11-21T10:00:{10 + turn}Z. {keys} {SYSTEM}",
                )
            for turn in (1, 2):
                stage.send(
                    prompt,
                    source="tools",
                    session=f"tools {number}",
                    request_id=f"tools-{number}-{turn}",
                    tools=[tool(text), tool(f"{prompt} {turn}"), tool(TURNED)],
                )
        stage.wait_until_reported()
        yield stage


def is_harmless(page: Page) -> None:
    expect(page.get_by_text("Loading")).to_have_count(0)
    assert page.evaluate(MADE_OF_TEXT) == []
    assert too_wide(page) == []


def test_texts_of_clients_stay_text_on_every_page(visit, hostile: Stage):
    visitor = visit(hostile.admin)
    page = visitor.open()
    visitor.sign_in(OPERATE)
    arrived(page, OVERVIEW)
    is_harmless(page)
    reasons = [each["code"] for each in hostile.asked("summary")["reasons"]]
    assert {"dynamic_time", "tools_changed"} <= set(reasons)
    for path in ("requests", "replicas", "spaces", *(f"reasons/{code}" for code in reasons)):
        visitor.open(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        is_harmless(page)
    arrived(visitor.open("spaces"), SPACES)
    expect(page.get_by_text(LABEL).first).to_be_visible()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_texts_of_clients_stay_text_on_the_pages_of_their_requests(visit, hostile: Stage, number: int):
    visitor = visit(hostile.admin)
    page = visitor.open(f"requests/hostile-{number}")
    visitor.sign_in(OPERATE)
    session = hostile.asked(f"requests/hostile-{number}")["session"]
    assert session
    link = page.get_by_role("main").get_by_role("link", name=session, exact=True)
    expect(link).to_be_visible()
    is_harmless(page)
    link.press("Enter")
    expect(page.get_by_role("table").get_by_role("link", name=f"hostile-{number}", exact=True)).to_be_visible()
    expect(page.get_by_label("Session")).to_have_value(session)
    is_harmless(page)
    visitor.open(f"requests/tools-{number}-2")
    expect(page.get_by_text("Now: this request")).to_be_visible()
    is_harmless(page)


@pytest.mark.slow
@pytest.mark.parametrize("text", [TAG, BREAKOUT, LINK, TURNED, "../../..", "%00%ff", "__proto__"])
def test_texts_in_the_url_stay_text(visit, hostile: Stage, text: str):
    visitor = visit(hostile.admin)
    # They are no reasons, requests, windows: the gateway says so.
    visitor.expects("status of 40", "status 40", "net::ERR")
    page = visitor.open()
    visitor.sign_in(OPERATE)
    coded = quote(text, safe="")
    query = "&".join(f"{name}={coded}" for name in ("source", "tenant", "model", "template", "window", "step", "by"))
    for path in (
        f"?{query}",
        f"requests?{query}&reason={coded}&session={coded}",
        f"reasons/dynamic_time?example={coded}",
        f"reasons/{coded}",
        f"requests/{coded}",
        f"spaces?{query}&state={coded}",
        f"{coded}?#{coded}",
    ):
        visitor.open(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        is_harmless(page)
        expect(page.get_by_text("This page failed")).to_have_count(0)
