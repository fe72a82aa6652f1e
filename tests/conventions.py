"""Checks what no linter knows: names that stand for two things, and words that do not belong to the field's language.

    python -m tests.conventions

Rejected are a class name that two modules of `gateway/` define, a file name that two folders of `gateway/` hold
(`__init__.py` and `settings.py` excepted), and the words of `DISCOURAGED` in identifiers, docstrings, comments,
messages, the dashboard's texts and documentation. Prints one line for each, and exits with 1.
"""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

DISCOURAGED = {
    "told": "reported, passed, sent",
    "heard": "received",
    "nobody": "no client, no replica, nothing",
    "somebody": "a client, an operator",
    "whoever": "the client that, the caller that",
    "whatever": "any",
    "just so": "as it is",
    "mended": "fixed",
}
"""Word or phrase, and what to write instead. See docs/glossary.md."""

WRITTEN = re.compile(r"""(?<![`"'])\b(""" + "|".join(DISCOURAGED) + r""")\b(?![`"'])""", re.IGNORECASE)
"""Not in quotes: values of the API, such as the field `told`."""
NOT_OURS = ("gateway/canon/lexicon/", "gateway/admin/dashboard/vendor/", "gateway/demo/applications.py")
"""Word lists and texts of prompts, and other projects' files."""
TEXTS = (
    "docs/*.md",
    "README.md",
    "CONTRIBUTING.md",
    "config/*.yaml",
    "gateway/admin/dashboard/*.js",
    "gateway/admin/dashboard/*.css",
    "gateway/admin/dashboard/*.html",
)


def tracked(*patterns: str) -> list[Path]:
    """Files under version control, and new ones that are not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted({ROOT / name for name in names if not name.startswith(NOT_OURS) and (ROOT / name).is_file()})


def duplicate_classes(files: list[Path]) -> Iterator[str]:
    """Class names that more than one module defines."""
    defined: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    for name, places in sorted(defined.items()):
        if len(places) > 1:
            yield f"class {name} is defined more than once: {', '.join(places)}"


def duplicate_files(files: list[Path]) -> Iterator[str]:
    """File names that stand in more than one folder."""
    named: dict[str, list[str]] = defaultdict(list)
    for file in files:
        if file.name not in ("__init__.py", "settings.py"):
            named[file.name].append(str(file.relative_to(ROOT)))
    for name, places in sorted(named.items()):
        if len(places) > 1:
            yield f"file {name} exists more than once: {', '.join(places)}"


def discouraged_words(files: list[Path]) -> Iterator[str]:
    """Places at which a discouraged word is written."""
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            for match in WRITTEN.finditer(line):
                instead = DISCOURAGED[match[1].lower()]
                yield f"{file.relative_to(ROOT)}:{number}: {match[1]!r} (write {instead})"


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    modules = tracked("gateway/*.py")
    found = [
        *duplicate_classes(modules),
        *duplicate_files(modules),
        *discouraged_words([*modules, *tracked(*TEXTS)]),
    ]
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
