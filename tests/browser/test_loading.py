"""What a page needs comes from the admin port alone, and is little."""

import httpx
import pytest
from playwright.sync_api import Request, expect

from browser.pages import OVERVIEW, REPLICAS, REQUESTS, SPACES, Place, arrived
from browser.processes import Demo

pytestmark = pytest.mark.slow

MOST_BYTES = 300_000


@pytest.mark.parametrize("place", [OVERVIEW, REQUESTS, REPLICAS, SPACES], ids=str)
def test_everything_comes_from_the_admin_port(visit, demo: Demo, place: Place):
    visitor = visit(demo.admin)
    arrived(visitor.open(place.path), place)
    assert visitor.asked
    assert [url for url in visitor.asked if not url.startswith((demo.admin + "/", "data:"))] == []


def test_first_load_of_the_overview_takes_less_than_300_kilobytes(visit, demo: Demo):
    visitor = visit(demo.admin)
    sizes: dict[str, int] = {}

    def count(request: Request) -> None:
        reported = request.sizes()
        sizes[request.url] = reported["responseBodySize"] + reported["responseHeadersSize"]

    visitor.page.on("requestfinished", count)
    arrived(visitor.open(), OVERVIEW)
    visitor.page.wait_for_load_state("networkidle")
    assert len(sizes) > 10
    assert sum(sizes.values()) < MOST_BYTES, sizes


def test_second_visit_takes_the_files_from_the_browsers_cache(visit, demo: Demo):
    visitor = visit(demo.admin)
    arrived(visitor.open(), OVERVIEW)
    visitor.open("replicas")
    arrived(visitor.page, REPLICAS)
    sent = visitor.page.evaluate(
        """performance.getEntriesByType("resource")
          .filter((file) => file.name.includes("/assets/"))
          .map((file) => file.transferSize)"""
    )
    assert len(sent) > 10
    assert sum(sent) == 0


def test_pages_and_answers_carry_the_policy_that_keeps_scripts_out(demo: Demo):
    for path in ("/dashboard", "/dashboard/requests/x", "/admin/api/summary", "/admin/api/nothing", "/"):
        policy = httpx.get(demo.admin + path, trust_env=False).headers["content-security-policy"]
        directives = dict(part.strip().partition(" ")[::2] for part in policy.split(";"))
        assert directives["default-src"] == "'none'"
        assert directives["script-src"] == "'self'"
        assert directives["frame-ancestors"] == "'none'"
        assert directives["require-trusted-types-for"] == "'script'"


def test_policy_is_in_force_in_the_page(visit, demo: Demo):
    visitor = visit(demo.admin)
    visitor.expects("Content Security Policy", "TrustedHTML", "TrustedScript")
    page = visitor.open()
    arrived(page, OVERVIEW)
    reported = page.evaluate(
        """() => {
          window.ran = false;
          const script = document.createElement("script");
          try { script.text = "window.ran = true"; document.body.append(script); } catch {}
          try { document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.ran = true'>"); } catch {}
          return [window.ran, document.querySelector("img[src=x]")];
        }"""
    )
    assert reported == [False, None]
    expect(page.get_by_role("heading", level=1)).to_be_visible()
