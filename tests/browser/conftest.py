import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar

import pytest
from playwright.sync_api import Browser

from browser.chromium import DAY, Screen, Visitor, chromium
from browser.processes import Demo
from browser.stage import Stage, play, staged, wait_for_requests

Visit = Callable[..., Visitor]
Running = TypeVar("Running", Demo, Stage)

DEMO_REQUESTS = 200
RECENT_SECONDS = 300


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


@contextmanager
def renewed(begun: Callable[[], AbstractContextManager[Running]]) -> Iterator[Callable[[], Running]]:
    """Gives what tests share, begun anew once its requests are too old: pages show those of the last 15 minutes."""
    current: list[tuple[float, Running]] = []
    with ExitStack() as stack:

        def get() -> Running:
            if not current or time.monotonic() - current[0][0] > RECENT_SECONDS:
                stack.close()
                current[:] = [(time.monotonic(), stack.enter_context(begun()))]
            return current[0][1]

        yield get


@pytest.fixture(scope="package")
def recent_demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Demo]]:
    @contextmanager
    def begun() -> Iterator[Demo]:
        with Demo(tmp_path_factory.mktemp("demo")) as running:
            wait_for_requests(running.ready(), DEMO_REQUESTS)
            running.pause()
            yield running

    with renewed(begun) as get:
        yield get


@pytest.fixture
def demo(recent_demo: Callable[[], Demo]) -> Demo:
    """The demo, with some hundred requests shown, and no more to come."""
    return recent_demo()


@pytest.fixture(scope="package")
def recent_known(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Stage]]:
    @contextmanager
    def begun() -> Iterator[Stage]:
        with staged(tmp_path_factory.mktemp("known")) as stage:
            play(stage)
            yield stage

    with renewed(begun) as get:
        yield get


@pytest.fixture
def known(recent_known: Callable[[], Stage]) -> Stage:
    """A gateway whose requests are all known. Nothing may be changed there."""
    return recent_known()


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
