"""The pages of the documentation, read by a Markdown parser."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
_PARSER = MarkdownIt("commonmark").enable("table")
_HERE_DOCUMENT = re.compile(r"^\$ cat > (\S+) <<'(\w+)'\n(.*?\n)\2$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        place: Page and line, for messages and names of tests.
        kind: What stands behind the fence, such as ``yaml``; of a file that a command writes, its suffix.
        text: Its content, without the indentation of a list that it stands in.
    """

    place: str
    kind: str
    text: str


@cache
def tokens(page: Path) -> list[Token]:
    return _PARSER.parse(page.read_text(encoding="utf-8"))


def links(page: Path) -> Iterator[str]:
    """Targets of links and images."""
    for token in tokens(page):
        for child in token.children or ():
            target = child.attrGet("href") or child.attrGet("src")
            if target is not None:
                yield str(target)


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as repositories' web pages and the site have them."""
    found: set[str] = set()
    for before, token in zip(tokens(page), tokens(page)[1:], strict=False):
        if before.type == "heading_open":
            words = "".join(child.content for child in token.children or () if child.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
            number = 0
            while (name := f"{slug}-{number}" if number else slug) in found:
                number += 1
            found.add(name)
    return found


def blocks(page: Path) -> Iterator[Block]:
    """Blocks of code, and the files that commands in them write."""
    for token in tokens(page):
        if token.type == "fence" and token.map:
            place = f"{page.relative_to(ROOT)}:{token.map[0] + 1}"
            yield Block(place, token.info.strip(), token.content)
            if token.info.strip() == "console":
                for match in _HERE_DOCUMENT.finditer(token.content):
                    yield Block(f"{place} {match[1]}", match[1].rpartition(".")[2], match[3])
