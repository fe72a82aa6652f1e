"""The page of the Messages API names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tests_that_it_names_exist():
    page = (ROOT / "docs" / "reference" / "messages-api.md").read_text()
    written = "".join(file.read_text() for file in (ROOT / "tests" / "gateway").glob("test_messages*.py"))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert named
    assert named <= set(re.findall(r"def (test_\w+)\(", written))
