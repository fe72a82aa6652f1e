"""What only the fleet knows of a request that names an earlier one: the scenarios of those reasons."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from levels import slow_except
from scenario_file import Scenario, load_all, name_of
from scenario_run import ScenarioRun

from gateway.core.reasons import REASONS, Reason, Rung
from gateway.explain.worker import explain_client

_RUNGS = {Rung.CHOSEN, Rung.ANYWHERE, Rung.SEEN_HERE, Rung.SEEN}
_FLEET = {reason for reason in Reason if REASONS[reason].rung in _RUNGS} - {
    Reason.HELD_OUT,
    Reason.STALE_INDEX,
    Reason.TENANT_ISOLATED,
}
"""Reasons that are known when a request is placed; ``tenant_isolated`` is not shown to clients."""


def _of_the_fleet(reasons: Mapping[str, int]) -> dict[str, int]:
    return {reason: tokens for reason, tokens in reasons.items() if reason in _FLEET}


def _named(scenario: Scenario) -> dict[str, str]:
    """The requests with a cause in the fleet, and the earlier one of the same tenant that each names."""
    sends = [send for send in scenario.sends() if "send" in send]
    named: dict[str, str] = {}
    for at, send in enumerate(sends):
        name = name_of(send)
        own = [name_of(each) for each in sends[:at] if each.get("tenant") == send.get("tenant")]
        expected = scenario.expect.get(name, {})
        if own and _of_the_fleet(expected.get("reasons", {})):
            named[name] = expected["reference"] if expected.get("reference") in own else own[-1]
    return named


_CASES = [
    each for each in load_all() if _named(each) and each.name != "engine_does_not_tokenize"
]  # there tokens are estimates
_FIRST = {scenario.reason: scenario.id for scenario in reversed(_CASES) if scenario.reason in _FLEET}


@pytest.mark.usefixtures("explained_in_a_thread")
@pytest.mark.parametrize(
    "scenario", slow_except(_CASES, set(_FIRST.values()), lambda each: each.id), ids=lambda scenario: scenario.id
)
async def test_fleet_causes(scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain_client, "_DIAGNOSE_SECONDS", 30.0)
    async with contextlib.AsyncExitStack() as closing:
        run = ScenarioRun(scenario, tmp_path)
        run.named = _named(scenario)
        await run.open(closing)
        await run.play()
        for name in run.named:
            found: Any = run.compared[name]
            assert found["status"] == "compared"
            expected = _of_the_fleet(scenario.expect[name]["reasons"])
            # On a busy machine a replica that is gone may be tried once more.
            if found["decision"] != "failover" or Reason.FAILOVER in expected:
                assert found["fleet"] == expected, found
