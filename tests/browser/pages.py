"""The dashboard's pages: where they are, and how to recognize that one is loaded completely."""

import re
from dataclasses import dataclass

from playwright.sync_api import Page, expect


@dataclass(frozen=True, slots=True)
class Place:
    """One page.

    Attributes:
        name: For people.
        path: Below ``/dashboard/``.
        heading: Its first heading.
        shows: A text that only stands there when the answers of the gateway are shown.
    """

    name: str
    path: str
    heading: str
    shows: str

    def __str__(self) -> str:
        return self.name


OVERVIEW = Place("overview", "", "Where prompt tokens went", "Fix this first")
REASON = Place("reason", "reasons/dynamic_time", "A time in the prompt", "Now: this request")
REQUESTS = Place("requests", "requests", "Requests", "are listed")
REPLICAS = Place("replicas", "replicas", "Replicas", "replica-1")
SPACES = Place("spaces", "spaces", "Prefix spaces", "alive")
TABS = {"Overview": OVERVIEW, "Requests": REQUESTS, "Replicas": REPLICAS, "Spaces": SPACES}


def request_page(request_id: str) -> Place:
    """The page of one request."""
    return Place("request", f"requests/{request_id}", "Request", "were not computed again")


def arrived(page: Page, place: Place) -> None:
    """Wait until a page is there with its figures."""
    expect(page.get_by_role("heading", level=1)).to_contain_text(place.heading)
    expect(page.get_by_role("main").get_by_text(place.shows).first).to_be_visible()
    expect(page.get_by_text("Loading")).to_have_count(0)


def counts(page: Page, requests: int) -> None:
    """Wait until the overview is one of so many requests."""
    expect(page.get_by_role("main").get_by_text(re.compile(rf"^{requests} requests? "))).to_be_visible()
