"""The summary of mixed traffic shows every planted fault with its share."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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


_RETRIEVAL = {"rag-shuffled": 40, "rag-question-first": 40, "rag-both": 40, "stamped": 20, "chat": 20}
_ASKING_FIRST = ("rag-question-first", "rag-both")


class Traffic:
    """Planted requests on their way through a gateway.

    Args:
        seed: Another one, another order of things.
        folder: Where the gateway has its files.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.applications = Applications(seed)
        self.ledger = Ledger()
        self.run = ScenarioRun(Scenario("", "", _SCENARIO), folder)
        self._sent = 0

    async def send(self, planted: Planted) -> None:
        headers = {"authorization": f"Bearer {key(planted.tenant)}", "x-client": planted.application}
        if planted.session:
            headers["x-session-id"] = planted.session
        body = {"model": "demo", "max_tokens": 12} | planted.body
        answer = await self.run.gateway.http.post(CHAT, json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        planted.answer = answer.json()["choices"][0]["message"]["content"]
        self.ledger.enter(planted)
        self._sent += 1

    async def summary(self) -> Mapping[str, Any]:
        """The summary, when everything is explained."""

        async def all_explained() -> bool:
            return bool((await self.run.summary())["requests"] == self._sent)

        await eventually(all_explained)
        return await self.run.summary()

    def check(self, summary: Mapping[str, Any], planted: Sequence[Reason]) -> None:
        """What is reported is what was planted."""
        ledger = self.ledger
        planted_shares = {reason: tokens / ledger.tokens for reason, tokens in ledger.reasons.items() if tokens}
        assert min(planted_shares[reason] for reason in planted) > _NEAR, "too little of it to be noticed"
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


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_shares_are_those_of_what_was_planted(seed: int, tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as closing:
        traffic = Traffic(seed, tmp_path)
        await traffic.run.open(closing)
        applications = traffic.applications
        for application in applications.schedule(_ORDER):
            await traffic.send(applications.write(application))
        readers = [applications.write("acme-readers") for _ in range(_READERS)]
        for planted in readers:
            await traffic.send(planted)
        for _ in range(_READERS):
            await traffic.send(applications.write("globex-readers"))
        await traffic.run.restart("r0")
        traffic.ledger.restart()
        for planted in readers:
            await traffic.send(dataclasses.replace(planted, derived_from=planted))
        summary = await traffic.summary()
    traffic.check(summary, _PLANTED)
    assert {each["source"] for each in summary["by_source"]} >= _ORDER.keys()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_shares_of_retrieval_with_shuffled_documents_and_questions_in_front(seed: int, tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as closing:
        traffic = Traffic(seed, tmp_path)
        await traffic.run.open(closing)
        for application in traffic.applications.schedule(_RETRIEVAL):
            await traffic.send(traffic.applications.write(application))
        summary = await traffic.summary()
    traffic.check(summary, (Reason.DOCUMENTS_REORDERED, Reason.USER_DATA, Reason.DYNAMIC_TIME))
    hinted = {each["source"]: each["hint"] for each in summary["findings"] if each["hint"]}
    assert hinted.keys() == set(_ASKING_FIRST)
    gained = sum(hint["tokens"] for hint in hinted.values())
    assert abs(gained - traffic.ledger.reasons[Reason.USER_DATA]) <= _NEAR * traffic.ledger.tokens
    by_source = {each["source"]: each["reason"] for each in summary["findings"] if each["source"] == "rag-shuffled"}
    assert by_source == {"rag-shuffled": "documents_reordered"}
