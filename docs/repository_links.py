"""Sphinx extension: links to files of the repository that are no pages of the site.

Where the sources are read in the repository, such a link opens the file. The site does not have the file: with
``DOCS_REPOSITORY_URL`` in the environment (the address in front of a path, such as
``https://git.example.com/prefix-gateway/blob/main``) the link leads there; without it the link becomes its text and
the file's path.
"""

import os
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class RepositoryLinks(SphinxTransform):
    """Replaces links whose target is outside the documentation folder. A target that does not exist stays an error."""

    default_priority = 500

    def apply(self, **_: Any) -> None:
        """Replace them in one page."""
        pages = Path(self.env.srcdir)
        page = Path(self.env.doc2path(self.env.docname))
        for link in list(self.document.findall(_is_link)):
            wanted = link["reftarget"] + (".md" if link.get("refdomain") == "doc" else "")
            target = (pages / wanted if link.get("refdomain") == "doc" else page.parent / wanted).resolve()
            if not target.exists() or target.is_relative_to(pages):
                continue
            link.replace_self(_shown(link, str(target.relative_to(pages.parent))))


def _is_link(node: nodes.Node) -> bool:
    return isinstance(node, addnodes.pending_xref | addnodes.download_reference) and bool(node.get("reftarget"))


def _shown(link: nodes.Element, path: str) -> list[nodes.Node]:
    named = path.endswith(link.astext())
    text = [nodes.literal(path, path)] if named else link.children
    if address := os.environ.get("DOCS_REPOSITORY_URL"):
        return [nodes.reference("", "", *text, refuri=f"{address.rstrip('/')}/{path}")]
    return text if named else [*text, nodes.Text(" ("), nodes.literal(path, path), nodes.Text(")")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
