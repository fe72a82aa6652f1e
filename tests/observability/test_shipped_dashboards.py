"""The dashboards that are shipped, as files: what Grafana needs to load them, and what readers need."""

import re
from itertools import combinations

import pytest
import yaml
from shipped import DASHBOARDS, GRAFANA, dashboard, exposed, metrics_in, panels, queries, variables

from gateway.core.reasons import REASONS, Reason, Remedy

CURRENT_SCHEMA = 42
"""Of Grafana 12 and 13, and the last of this kind of dashboards."""


@pytest.fixture(params=DASHBOARDS, ids=lambda path: path.stem)
def board(request):
    return dashboard(request.param)


def test_there_are_three_with_ids_of_their_own():
    found = [dashboard(path) for path in DASHBOARDS]
    assert {path.stem for path in DASHBOARDS} == {"overview", "replicas", "tenants"}
    assert len({each["uid"] for each in found}) == len({each["title"] for each in found}) == len(found)


def test_it_loads_anywhere(board):
    assert board["id"] is None
    assert board["schemaVersion"] == CURRENT_SCHEMA
    source = next(each for each in board["templating"]["list"] if each["type"] == "datasource")
    assert source["name"] == "datasource"
    wanted = {"type": "prometheus", "uid": "${datasource}"}
    for part in [*panels(board), *(target for panel in panels(board) for target in panel["targets"])]:
        assert part["datasource"] == wanted
    assert all(each["datasource"] == wanted for each in board["templating"]["list"] if each["type"] == "query")
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)


def test_panels_lie_beside_each_other(board):
    for one, other in combinations([panel["gridPos"] for panel in board["panels"]], 2):
        apart_across = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_down = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_across or apart_down
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board["panels"])


def test_every_panel_says_what_it_shows_and_in_which_unit(board):
    assert board["description"]
    titles = [panel["title"] for panel in panels(board)]
    assert len(set(titles)) == len(titles)
    for panel in panels(board):
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"]


def test_it_asks_only_for_metrics_that_there_are_and_uses_its_variables(board):
    asked = [query.expr for query in queries(board)] + list(variables(board).values())
    for expr in asked:
        assert metrics_in(expr)
        assert metrics_in(expr) <= exposed()
    for name in variables(board):
        assert any(f"${name}" in expr for expr in asked), name


def test_every_metric_can_be_seen_on_a_dashboard():
    asked = {metric for path in DASHBOARDS for query in queries(dashboard(path)) for metric in metrics_in(query.expr)}
    histograms = ("_bucket", "_count", "_sum")
    families = {metric for metric in exposed() if not metric.endswith(histograms)}
    families |= {metric for metric in exposed() if metric.endswith("_bucket")}
    # Distinguished by whether it was taken or refused; what is in force is what is shown.
    assert families - asked == {"gateway_config_reloads_total"}


def test_misses_that_can_be_avoided_leave_out_the_reasons_without_a_remedy():
    inherent = {reason for reason, text in REASONS.items() if text.remedy is Remedy.NONE} - {Reason.UNCLASSIFIED}
    asked = [query for path in DASHBOARDS for query in queries(dashboard(path)) if "reason!~" in query.expr]
    assert asked
    for query in asked:
        assert set(re.findall(r'reason!~"([^"]*)"', query.expr)[0].split("|")) == inherent, query.where


def test_the_provisioning_files_fit_together():
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    (destination,) = source["jsonData"]["exemplarTraceIdDestinations"]
    assert source["type"] == "prometheus"
    assert destination["name"] == "request_id"
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/prefix-gateway.yml").read_text())["providers"]
    assert provider["type"] == "file"
