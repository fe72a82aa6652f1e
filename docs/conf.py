"""Configuration of the documentation site: `make docs` builds it with Sphinx, every warning being an error."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

project = "Prefix Gateway"
author = "the Prefix Gateway authors"
extensions = ["myst_parser", "repository_links"]
exclude_patterns = ["generate", "site"]
# Every heading has the anchor that it has where the sources are read, so that links work in both places.
myst_heading_anchors = 6
# The lexer of PromQL knows no colons in names, which all recording rules have.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "pydata_sphinx_theme"
html_title = project
html_static_path = ["site"]
html_css_files = ["site.css"]
html_context = {"default_mode": "auto"}
html_show_sphinx = False
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {"index": [], "tutorial": []}
html_theme_options = {
    "logo": {"text": project},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "footer_start": [],
    "footer_center": [],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
