"""Checks what no linter knows: names that stand for two things, and words that do not belong to the field's language.

    python -m tests.conventions

Rejected are a class name that two modules of `gateway/` define, a file name that two folders of `gateway/` hold
(`__init__.py` and `settings.py` excepted), and the words of `DISCOURAGED` in identifiers, docstrings, comments,
messages, the dashboard's texts and documentation. In `tests/` and `benchmarks/` the same words are rejected in names
of modules, classes, functions, arguments and variables, in docstrings and in comments; their other strings are data,
such as prompts and fields of the API. Prints one line for each, and exits with 1.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
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

_WORDS = "|".join(DISCOURAGED)
WRITTEN = re.compile(rf"""(?!(?<=[`"'])(?:{_WORDS})[`"'])\b({_WORDS})\b""", re.IGNORECASE)
"""Not as a whole in quotes: values of the API, such as the field `told`."""
NOT_OURS = ("gateway/canon/lexicon/", "gateway/admin/dashboard/vendor/", "gateway/demo/applications.py")
"""Word lists and texts of prompts, and other projects' files."""
NAME_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""Words of a name such as `first_token` or `FirstToken`."""
TESTS = ("tests/*.py", "benchmarks/*.py")
TEXTS = (
    ".ci/run",
    "Makefile",
    "deploy/*",
    "docs/generate*",
    "docs/*.md",
    "tests/*.md",
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


def discouraged_in_code(files: list[Path]) -> Iterator[str]:
    """Places in code at which a discouraged word is part of a name, or stands in a docstring or comment."""
    for file in files:
        place = file.relative_to(ROOT)
        for word in discouraged_parts("/".join(place.with_suffix("").parts)):
            yield f"{place}: {word!r} in its name (write {DISCOURAGED[word]})"
        source = file.read_text(encoding="utf-8")
        if not any(word in source.lower() for word in DISCOURAGED):
            continue
        starts = docstring_starts(source)
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            found: list[tuple[int, str]] = []
            if token.type == tokenize.NAME:
                found = [(0, word) for word in discouraged_parts(token.string)]
            elif token.type == tokenize.COMMENT or token.start in starts:
                for below, line in enumerate(token.string.splitlines()):
                    found += [(below, match[1].lower()) for match in WRITTEN.finditer(line)]
            for below, word in found:
                yield f"{place}:{token.start[0] + below}: {word!r} (write {DISCOURAGED[word]})"


def discouraged_parts(name: str) -> list[str]:
    """Discouraged words that a name is put together from, in lower case."""
    return [part for part in map(str.lower, NAME_PARTS.findall(name)) if part in DISCOURAGED]


def docstring_starts(source: str) -> set[tuple[int, int]]:
    """Lines and columns at which docstrings begin, those below attributes and constants included."""
    return {
        (statement.value.lineno, statement.value.col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(body := getattr(node, "body", None), list)
        for statement in body
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    }


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    modules = tracked("gateway/*.py")
    found = [
        *duplicate_classes(modules),
        *duplicate_files(modules),
        *duplicate_files([file for file in tracked("tests/*.py") if file.name.startswith("test_")]),
        *discouraged_words([*modules, *tracked(*TEXTS)]),
        *discouraged_in_code([*modules, *tracked(*TESTS)]),
    ]
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
