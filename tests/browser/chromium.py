"""The browser and its user: what goes wrong in the window is kept."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from external import program
from patience import HANG_SECONDS
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)

Theme = Literal["light", "dark"]
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDE, NARROW = (1280, 800), (390, 844)
PATIENCE_MS = 1000 * HANG_SECONDS

expect.set_options(timeout=PATIENCE_MS)


@dataclass(frozen=True, slots=True)
class Screen:
    """What a user looks at: a colour scheme of the system, and a size in CSS pixels."""

    theme: Theme = "light"
    size: tuple[int, int] = WIDE

    def __str__(self) -> str:
        return f"{self.theme}-{self.size[0]}"


DAY = Screen()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program("chromium"), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """A user with a fresh browser: no storage, no cache.

    Console errors, errors of scripts, dialogs of the browser and failed requests are problems, unless a test said
    before that it expects them.

    Args:
        browser: Where the window opens.
        home: URL of the admin port.
        screen: What they look at.

    Attributes:
        page: Their window.
        asked: URLs of everything that the browser asked for.
    """

    def __init__(self, browser: Browser, home: str, screen: Screen) -> None:
        self.home = home
        width, height = screen.size
        self.context: BrowserContext = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=screen.theme, locale="en-GB", timezone_id="UTC"
        )
        self.context.set_default_timeout(PATIENCE_MS)
        self.page: Page = self.context.new_page()
        self.asked: list[str] = []
        self._problems: list[str] = []
        self._expected: list[re.Pattern[str]] = []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self._problems.append(f"error of a script: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("response", self._on_response)
        self.page.on("requestfailed", self._on_failed)
        self.page.on("dialog", lambda dialog: (self._problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def open(self, path: str = "") -> Page:
        """Open a page of the dashboard by its URL: ``requests?source=web``."""
        self.page.goto(f"{self.home}/dashboard" + ("/" if path and path[0] not in "/?" else "") + path)
        return self.page

    def sign_in(self, token: str) -> Page:
        """Give a token to the form that asks for one."""
        self.expects("401")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.get_by_role("heading", name="Sign in")).to_have_count(0)
        return self.page

    def follow(self, name: str | re.Pattern[str], *, within: str = "main") -> Page:
        """Click on the first link of that name."""
        self.page.locator(within).get_by_role("link", name=name).first.click()
        return self.page

    def expects(self, *patterns: str) -> None:
        """Problems that match one of these are none."""
        self._expected += map(re.compile, patterns)

    @property
    def problems(self) -> list[str]:
        return [reported for reported in self._problems if not any(each.search(reported) for each in self._expected)]

    @property
    def place(self) -> str:
        """What the address bar shows, below ``/dashboard``."""
        parts = urlsplit(self.page.url)
        return parts.path.removeprefix("/dashboard") + (f"?{parts.query}" if parts.query else "")

    def leave(self) -> None:
        # What a test answers in the gateway's stead may be asked for at this very moment.
        self.page.unroute_all(behavior="ignoreErrors")
        self.context.close()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._problems.append(f"console {message.type}: {message.text} ({message.location.get('url')})")

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            self._problems.append(f"status {response.status}: {response.url}")

    def _on_failed(self, request: Request) -> None:
        # Leaving a page cuts off what it still asks for.
        if request.failure != "net::ERR_ABORTED":
            self._problems.append(f"no answer: {request.url} ({request.failure})")
