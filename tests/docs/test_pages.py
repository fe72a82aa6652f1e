"""The pages say what the code does."""

import re
from pathlib import Path

from prometheus_client import Counter
from prometheus_client.metrics import MetricWrapperBase

from gateway.telemetry import MetricCatalog

DOCS = Path(__file__).parents[2] / "docs"


def test_every_metric_is_on_its_page_with_its_labels_and_none_else_is():
    told = {}
    for line in (DOCS / "reference" / "metrics.md").read_text().splitlines():
        if match := re.match(r"\| `(gateway_\w+)` \| ([\w, ]*) \|", line):
            told[match[1]] = tuple(label.strip() for label in match[2].split(",") if label.strip())
    declared = {}
    for metric in vars(MetricCatalog()).values():
        if isinstance(metric, MetricWrapperBase):
            name = metric._name + ("_total" if isinstance(metric, Counter) else "")
            declared[name] = metric._labelnames
    assert told == declared


def test_links_between_pages_lead_somewhere():
    for page in [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
