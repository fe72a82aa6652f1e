"""The pages of the translated APIs name tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["messages-api", "responses-api"])
def test_the_tests_that_it_names_exist(name):
    page = (ROOT / "docs" / "reference" / f"{name}.md").read_text()
    written = "".join(file.read_text() for file in (ROOT / "tests" / "gateway").glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert named
    assert named <= set(re.findall(r"def (test_\w+)\(", written))
