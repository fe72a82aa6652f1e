import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from browser.chromium import DAY, Screen, Visitor, chromium
from browser.processes import Demo
from browser.stage import Stage, play, staged, wait_for_requests

Visit = Callable[..., Visitor]

DEMO_REQUESTS = 200


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need the demo come last: its processes run from the first of them on."""
    places = [place for place, item in enumerate(items) if item.path.is_relative_to(Path(__file__).parent)]
    ordered = sorted((items[place] for place in places), key=lambda item: "demo" in getattr(item, "fixturenames", ()))
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="package")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """The demo, with some hundred requests shown, and no more to come."""
    with Demo(tmp_path_factory.mktemp("demo")) as running:
        wait_for_requests(running.ready(), DEMO_REQUESTS)
        running.pause()
        yield running


@pytest.fixture(scope="package")
def known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A gateway whose requests are all known. Nothing may be changed there."""
    with staged(tmp_path_factory.mktemp("known")) as stage:
        play(stage)
        yield stage


@pytest.fixture(scope="package")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A gateway that tests may send requests to. They name what they look for."""
    with staged(tmp_path_factory.mktemp("busy")) as stage:
        yield stage


@pytest.fixture
def own_stage(tmp_path: Path) -> Iterator[Stage]:
    """A gateway for this test alone: it may kill and reset what it likes."""
    with staged(tmp_path) as stage:
        yield stage


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """A user who opens a gateway's dashboard: ``visit(admin_url)``. Any error in the window fails the test."""
    visitors: list[Visitor] = []

    def come(home: str, screen: Screen = DAY) -> Visitor:
        visitors.append(Visitor(browser, home, screen))
        return visitors[-1]

    yield come
    problems = [problem for visitor in visitors for problem in visitor.problems]
    for visitor in visitors:
        visitor.leave()
    assert problems == []


@pytest.fixture
def other_site() -> Iterator[str]:
    """URL of a page that is not the gateway's."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>Another site</title><h1>Another site</h1>")

        def log_message(self, *reported: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    # Another name is another site, too, not only another origin.
    yield f"http://localhost:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def album() -> Path | None:
    """Where screenshots go, for people to look at; None: nowhere."""
    folder = os.environ.get("PREFIX_GATEWAY_SCREENSHOTS")
    return Path(folder) if folder else None
