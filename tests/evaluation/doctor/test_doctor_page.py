"""The page lists every finding, and no other."""

import re
from pathlib import Path

from gateway.evaluation.doctor.doctor_finding import FINDING_NAMES

ROOT = Path(__file__).parents[3]


def test_every_finding_is_on_the_page():
    made = set()
    for file in (ROOT / "gateway" / "evaluation" / "doctor").glob("*.py"):
        made |= set(re.findall(r'DoctorFinding\(\s*"([a-z-]+)"', file.read_text()))
    assert made == FINDING_NAMES
    page = (ROOT / "docs" / "doctor.md").read_text().partition("## Findings")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \|", page, flags=re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)} == made
