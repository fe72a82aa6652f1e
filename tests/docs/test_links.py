"""Links between pages, to headings and to files of the repository lead somewhere."""

import re

import pytest
from markdown_pages import PAGES, ROOT, anchors, links

OUTSIDE = ("http://", "https://")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for target in links(page):
        if target.startswith(OUTSIDE):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            assert file.suffix == ".md", target
            assert anchor in anchors(file), target


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("## How exact limits are", "how-exact-limits-are"),
        ("### `server.admin_host`", "serveradmin_host"),
        ("### `models[].replicas[].events`", "modelsreplicasevents"),
        ("# A *b* & c", "a-b--c"),
        ("# Same\n\n# Same", "same-1"),
    ],
)
def test_headings_have_the_anchors_of_repositories_web_pages(heading, anchor, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(heading)
    assert anchor in anchors(page)


def test_every_page_is_in_the_navigation():
    """In the list of a folder, or of the reference; decisions and commands are listed by patterns."""
    lists = [page for page in PAGES if page.name == "index.md"]
    listed = {
        (page.parent / re.sub(r".*<(.*)>", r"\1", line)).resolve().with_suffix(".md")
        for page in lists
        for line in page.read_text().splitlines()
    }
    for page in PAGES:
        by_pattern = page.name.endswith("-command.md") or re.fullmatch(r"\d{4}-.*", page.name)
        if page.parent != ROOT and page.name != "index.md" and not by_pattern:
            assert page in listed, f"list {page.relative_to(ROOT)} in an index.md, see docs/reference/index.md"
