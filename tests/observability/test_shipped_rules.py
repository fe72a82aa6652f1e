"""The rules and alerts that are shipped: valid, tested, explained, and about metrics that exist."""

import re
import subprocess

import pytest
import yaml
from external import program
from shipped import PROMETHEUS, ROOT, exposed, metrics_in, recorded_in, rules

RUNBOOKS = ROOT / "docs" / "runbooks.md"
HEADINGS = ("What it means", "Confirm", "What to do", "What is normal")
"""What every runbook says."""


def promtool(*arguments: str) -> str:
    """What it says, run beside the rules. Fails if it finds a mistake."""
    done = subprocess.run(
        [program("promtool"), *arguments], check=False, cwd=PROMETHEUS, capture_output=True, text=True, timeout=240
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def alerts() -> list[str]:
    return [rule["alert"] for rule in rules("alerts.yml")]


def runbooks() -> dict[str, str]:
    parts = re.split(r"^## (\w+)$", RUNBOOKS.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_configuration_and_its_rules_are_valid():
    assert "2 rule files found" in promtool("check", "config", "--lint=all", "--lint-fatal", "prometheus.yml")
    promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yml", "alerts.yml")


@pytest.mark.parametrize(
    "file", ["rules_test.yml", "alerts_test.yml", pytest.param("hit_rate_test.yml", marks=pytest.mark.slow)]
)
def test_the_rules_do_what_their_tests_say(file):
    promtool("test", "rules", file)


def test_every_alert_is_tested_firing_and_not_firing():
    fires, silent = set(), set()
    for file in ("alerts_test.yml", "hit_rate_test.yml"):
        for test in yaml.safe_load((PROMETHEUS / file).read_text())["tests"]:
            for case in test["alert_rule_test"]:
                (fires if case["exp_alerts"] else silent).add(case["alertname"])
    assert fires == silent == set(alerts())


def test_every_recorded_series_is_tested():
    asked = (PROMETHEUS / "rules_test.yml").read_text()
    assert {rule["record"] for rule in rules("rules.yml")} == recorded_in(asked)


def test_rules_and_alerts_name_only_what_there_is():
    recorded = {rule["record"] for rule in rules("rules.yml")}
    for rule in rules("rules.yml") + rules("alerts.yml"):
        texts = rule["expr"] + str(rule.get("annotations", ""))
        assert metrics_in(texts) <= exposed()
        assert recorded_in(texts) <= recorded
        assert metrics_in(texts) or recorded_in(texts) or "up{" in texts


def test_every_alert_says_what_it_is_and_leads_to_its_runbook():
    for rule in rules("alerts.yml"):
        name, reported = rule["alert"], rule["annotations"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert reported.keys() == {"summary", "description", "runbook_url"}
        assert not reported["summary"].endswith(".")
        assert reported["description"].endswith(".")
        assert reported["runbook_url"] == f"docs/runbooks.md#{name.lower()}"


def test_every_alert_has_a_runbook_and_none_is_left_over():
    found = runbooks()
    assert set(found) == set(alerts())
    for name, text in found.items():
        for heading in HEADINGS:
            assert f"**{heading}" in text, f"{name}: {heading}"
        assert "```promql" in text, name


def test_queries_in_the_runbooks_name_only_what_there_is():
    text = RUNBOOKS.read_text() + (ROOT / "docs" / "monitoring.md").read_text()
    assert metrics_in(text) <= exposed() | {metric.removesuffix("_total") for metric in exposed()}
    assert recorded_in(text) <= {rule["record"] for rule in rules("rules.yml")}
