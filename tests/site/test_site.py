"""The built site: every warning is an error, nothing is loaded from elsewhere, pages fit every screen."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from external import program
from playwright.sync_api import Browser, sync_playwright

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PAGES = (
    "index",
    "tutorial",
    "how-to/kubernetes",
    "concepts/routing",
    "reference/settings",
    "performance",
    "decisions/index",
)
SCREENS = [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]


def build(source: Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(source), str(folder)]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "docs", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.mark.parametrize(("theme", "width"), SCREENS)
def test_pages_load_nothing_from_elsewhere_and_never_scroll_sideways(site, browser, theme, width):
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
    page = context.new_page()
    asked, problems = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    for name in PAGES:
        page.goto(f"file://{site}/{name}.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate("document.documentElement.dataset.theme") == theme
    context.close()
    assert problems == []
    assert [url for url in asked if not url.startswith((f"file://{site}/", "data:"))] == []


def test_no_page_names_a_script_style_font_or_image_of_another_host(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for start in ('src="http', 'src="//', '<link rel="stylesheet" href="http', "url(http", "@import"):
            assert start not in text, f"{page.name}: {start}"


def test_the_search_finds_a_setting(site, browser):
    page = browser.new_page()
    page.goto(f"file://{site}/search.html?q=miss_weight")
    page.get_by_role("link", name="Settings").first.wait_for()
    page.close()


def test_files_of_the_repository_are_links_if_its_address_is_known(tmp_path):
    pages = tmp_path / "repository" / "docs"
    pages.mkdir(parents=True)
    (pages.parent / "example.yaml").write_text("a: 1\n")
    (pages.parent / "folder").mkdir()
    for name in ("conf.py", "repository_links.py"):
        (pages / name).write_text((ROOT / "docs" / name).read_text())
    (pages / "site").mkdir()
    (pages / "site" / "site.css").write_text("")
    (pages / "index.md").write_text("# A page\n\n[an example](../example.yaml), [`folder`](../folder)\n")
    address = "https://git.example.com/prefix-gateway/blob/main"
    assert build(pages, tmp_path / "known", DOCS_REPOSITORY_URL=address).returncode == 0
    assert f'href="{address}/example.yaml"' in (tmp_path / "known" / "index.html").read_text()
    assert build(pages, tmp_path / "unknown", DOCS_REPOSITORY_URL="").returncode == 0
    text = (tmp_path / "unknown" / "index.html").read_text()
    assert "an example" in text
    assert "example.yaml</span>" in text
    (pages / "index.md").write_text("# A page\n\n[an example](../missing.yaml)\n")
    done = build(pages, tmp_path / "missing")
    assert done.returncode != 0
    assert "missing.yaml" in done.stderr
