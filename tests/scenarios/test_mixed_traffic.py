"""The summary of mixed traffic shows every planted fault with its share."""

import contextlib
import dataclasses
from pathlib import Path

import pytest
from planted_traffic import Applications, Ledger, Planted
from running_gateway import CHAT, eventually
from scenario_file import Scenario
from scenario_run import ScenarioRun
from tenancy import key

from gateway.core.reasons import Reason

_NEAR = 0.02
_ORDER = {
    "stamped": 40,
    "numbered": 45,
    "shuffled": 25,
    "blanks": 45,
    "chat": 60,
    "trimming": 60,
}
_READERS = 30
_PLANTED = (
    Reason.DYNAMIC_TIME,
    Reason.DYNAMIC_ID,
    Reason.TOOLS_REORDERED,
    Reason.WHITESPACE,
    Reason.HISTORY_TRIMMED,
    Reason.TENANT_ISOLATED,
    Reason.REPLICA_RESTARTED,
    Reason.NEW_CONTENT,
)
_SCENARIO = {
    "gateway": {"tenants": ["acme", "globex"], "relay": {"health_interval_seconds": 0.05}},
    "engines": [{"blocks": 20_000}],
}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_shares_are_those_of_what_was_planted(seed: int, tmp_path: Path) -> None:
    applications, ledger, sent = Applications(seed), Ledger(), 0
    async with contextlib.AsyncExitStack() as closing:
        run = ScenarioRun(Scenario("", "", _SCENARIO), tmp_path)
        await run.open(closing)

        async def send(planted: Planted) -> None:
            nonlocal sent
            headers = {"authorization": f"Bearer {key(planted.tenant)}", "x-client": planted.application}
            if planted.session:
                headers["x-session-id"] = planted.session
            body = {"model": "demo", "max_tokens": 12} | planted.body
            answer = await run.gateway.http.post(CHAT, json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            planted.answer = answer.json()["choices"][0]["message"]["content"]
            ledger.enter(planted)
            sent += 1

        for application in applications.schedule(_ORDER):
            await send(applications.write(application))
        readers = [applications.write("acme-readers") for _ in range(_READERS)]
        for planted in readers:
            await send(planted)
        for _ in range(_READERS):
            await send(applications.write("globex-readers"))
        await run.restart("r0")
        ledger.restart()
        for planted in readers:
            await send(dataclasses.replace(planted, derived_from=planted))

        async def all_explained() -> bool:
            return bool((await run.summary())["requests"] == sent)

        await eventually(all_explained)
        summary = await run.summary()

    planted_shares = {reason: tokens / ledger.tokens for reason, tokens in ledger.reasons.items() if tokens}
    assert min(planted_shares[reason] for reason in _PLANTED) > _NEAR, "too little of it to be noticed"
    reported = {Reason(each["code"]): each["share"] for each in summary["reasons"]}
    wrong = {
        str(reason): (reported.get(reason, 0.0), planted_shares.get(reason, 0.0))
        for reason in reported.keys() | planted_shares.keys()
        if abs(reported.get(reason, 0.0) - planted_shares.get(reason, 0.0)) > _NEAR
    }
    assert wrong == {}, "reported, planted"
    assert summary["prompt_tokens"] == ledger.tokens
    assert summary["hits"] + sum(each["tokens"] for each in summary["reasons"]) == ledger.tokens
    assert abs(summary["hits"] - ledger.hits) <= _NEAR * ledger.tokens
    assert {each["source"] for each in summary["by_source"]} >= _ORDER.keys()
