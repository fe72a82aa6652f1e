"""What ``deploy/`` ships for Prometheus and Grafana, and the names that it may use."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gateway.telemetry import MetricCatalog

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))

_METRIC = re.compile(r"(?<![\w:])gateway_\w+(?![\w:])")
_RECORDED = re.compile(r"\w+:gateway_\w+:\w+")
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}


@dataclass(frozen=True)
class Query:
    """One query of a dashboard.

    Attributes:
        where: For a failure's message.
        expr: As it stands there, with Grafana's variables.
        instant: Whether it is asked for one moment.
    """

    where: str
    expr: str
    instant: bool


def rules(file: str) -> list[dict[str, Any]]:
    """All rules of a file."""
    return [rule for group in yaml.safe_load((PROMETHEUS / file).read_text())["groups"] for rule in group["rules"]]


def dashboard(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Without the headings."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def variables(board: dict[str, Any]) -> dict[str, str]:
    """The queries of its variables, by name."""
    return {each["name"]: each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"}


def queries(board: dict[str, Any]) -> Iterator[Query]:
    for panel in panels(board):
        for target in panel["targets"]:
            yield Query(f"{board['title']}, {panel['title']}, {target['refId']}", target["expr"], target["instant"])


def metrics_in(text: str) -> set[str]:
    """The gateway's metrics that a query names."""
    return set(_METRIC.findall(text))


def recorded_in(text: str) -> set[str]:
    """The recorded series that a query names."""
    return set(_RECORDED.findall(text))


def exposed() -> set[str]:
    """Every sample name of the catalog."""
    metrics = MetricCatalog().registry.collect()
    return {metric.name + suffix for metric in metrics for suffix in _SUFFIXES.get(metric.type, ("",))}
