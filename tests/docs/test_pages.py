"""The pages say what the code does."""

import re
from pathlib import Path

from prometheus_client import Gauge

from gateway.core.canonical import OPT_IN, RuleName
from gateway.telemetry import MetricCatalog
from gateway.telemetry.collectors import Counter, Histogram

DOCS = Path(__file__).parents[2] / "docs"


def test_every_metric_is_on_its_page_with_its_labels_and_none_else_is():
    reported = {}
    for line in (DOCS / "reference" / "metrics.md").read_text().splitlines():
        if match := re.match(r"\| `(gateway_\w+)` \| ([\w, ]*) \|", line):
            reported[match[1]] = tuple(label.strip() for label in match[2].split(",") if label.strip())
    declared = {}
    for metric in vars(MetricCatalog()).values():
        if isinstance(metric, Counter | Histogram | Gauge):
            (family,) = metric.describe()
            name = family.name + ("_total" if isinstance(metric, Counter) else "")
            declared[name] = metric._labelnames if isinstance(metric, Gauge) else metric.label_names
    assert reported == declared


def test_every_rule_is_described_on_its_page_and_on_the_dashboard():
    page = (DOCS / "canonicalization.md").read_text()
    rows = re.findall(
        r"^\| `([a-z-]+)` \| (\*off by default:\*)?",
        page.partition("## Rules")[2].partition("###")[0],
        flags=re.MULTILINE,
    )
    table = [(rule, "*off by default:*" if rule in OPT_IN else "") for rule in RuleName]
    assert rows == table, "the table of rules in docs/canonicalization.md"
    words = (DOCS.parent / "gateway/admin/dashboard/core/canon.js").read_text()
    described = re.findall(r'^  "?([a-z-]+)"?: \{$', words, flags=re.MULTILINE)
    assert sorted(described) == sorted(RuleName), "WORDS in gateway/admin/dashboard/core/canon.js"
    (off,) = re.findall(r"OFF_BY_DEFAULT = new Set\(\[(.*?)\]\)", words)
    assert set(re.findall('"([a-z-]+)"', off)) == OPT_IN


def test_paths_in_contributing_and_architecture_exist():
    """Paths from the root, and paths within ``gateway/``; ``NAME`` and other capitals stand for something to choose."""
    root = DOCS.parent
    packages = {path.name for path in (root / "gateway").iterdir() if path.is_dir()}
    for page in (root / "CONTRIBUTING.md", DOCS / "architecture.md"):
        for path in re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", page.read_text()):
            if re.search(r"[A-Z]{3}", path):
                continue
            first = path.partition("/")[0]
            if (root / first).exists():
                assert (root / path).exists(), f"{page.name}: {path}"
            elif first in packages:
                assert (root / "gateway" / path).exists(), f"{page.name}: {path}"
