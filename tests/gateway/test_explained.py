"""Every token of every request has its place, however the request ends, and in any state of the explanation."""

import asyncio
import json
import os
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fork_server import children
from raw_http import post
from running_gateway import CHAT, COMPLETIONS, Metrics, RunningGateway, eventually
from tenancy import ask_as, sections, tenant

from gateway.core.explanation import MEASUREMENT
from gateway.core.reasons import REASONS
from gateway.explain.worker import cpu_share

ON = {"enabled": True}
SYSTEM = "You answer questions about parcels, invoices and returns, in one sentence each. " * 8


def chat(question: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


async def explained(gateway: RunningGateway, requests: int) -> dict[str, Any]:
    """The summary, when so many requests are in it."""
    found: dict[str, Any] = {}

    async def there() -> bool:
        answer = await gateway.admin.get("/admin/api/summary")
        if answer.status_code == 200:
            found.update(answer.json())
        return bool(found.get("requests", 0) >= requests)

    await eventually(there)
    return found


async def detail(gateway: RunningGateway, request_id: str) -> dict[str, Any]:
    async def there() -> bool:
        return (await gateway.admin.get(f"/admin/api/requests/{request_id}")).status_code == 200

    await eventually(there)
    found: dict[str, Any] = (await gateway.admin.get(f"/admin/api/requests/{request_id}")).json()
    return found


async def test_requests_that_measure_are_in_metrics_and_in_no_report(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), explain=ON)
    for number in range(4):
        body = {"model": "demo", "messages": chat(f"Is it {number} o'clock?"), "max_tokens": 1}
        answer = await gateway.http.post(CHAT, json=body, headers={"x-client": MEASUREMENT.upper()})
        assert answer.status_code == 200
    answer = await gateway.http.post(CHAT, json=body, headers={"x-client": "web", "x-request-id": "after"})
    assert answer.status_code == 200
    metrics = await gateway.settled(5)
    summary = await explained(gateway, 1)
    assert (summary["requests"], [each["source"] for each in summary["by_source"]]) == (1, ["web"])
    listed = (await gateway.admin.get("/admin/api/requests")).json()["requests"]
    assert [each["id"] for each in listed] == ["after"]
    assert (await detail(gateway, "after"))["reference"] is None
    assert (await gateway.admin.get("/admin/api/prefixes")).json()["prefixes"] == []
    prompts = metrics.value("gateway_prompt_tokens_total")
    assert prompts > 4 * summary["prompt_tokens"]

    async def counted() -> bool:
        hits = metrics.value("gateway_cached_tokens_total", evidence="confirmed")
        return missed(await gateway.metrics()) + hits == prompts

    await eventually(counted)


def missed(metrics: Metrics) -> float:
    return metrics.value("gateway_missed_tokens_total")


async def test_reused_and_missed_tokens_are_all_tokens_in_metrics_and_summary(start_engine, start_gateway, connect):
    engine = await start_engine(decode_ms=20)
    gateway = await start_gateway(engine, explain=ON)
    for question in ("Where is it?", "How much is it?", "Where is it?"):
        await gateway.ask(messages=chat(question), max_tokens=2)
    await gateway.ask(messages=chat("Three ways, please."), n=3, max_tokens=4)
    await gateway.http.post(COMPLETIONS, json={"model": "demo", "prompt": [SYSTEM, "short", SYSTEM + "more"]})
    await gateway.ask(messages=chat("Not with me."), max_tokens=2, prompt_logprobs=1)
    leaving = await connect(gateway)
    body = {"model": "demo", "messages": chat("Bye."), "max_tokens": 300, "ignore_eos": True, "stream": True}
    await leaving.send(post(CHAT, json.dumps(body).encode()))
    await leaving.reader.readuntil(b"data: ")
    leaving.abort()
    assert (await gateway.ask(messages=chat("x"), max_tokens=-1)).status_code == 400
    metrics = await gateway.settled(8)
    summary = await explained(gateway, 7)
    assert summary["requests"] == 7
    assert summary["prompt_tokens"] == metrics.value("gateway_prompt_tokens_total")
    hits = summary["prompt_tokens"] - sum(each["tokens"] for each in summary["reasons"])
    assert hits == summary["hits"]

    async def counted() -> bool:
        metrics = await gateway.metrics()
        return missed(metrics) + hits == metrics.value("gateway_prompt_tokens_total")

    await eventually(counted)
    reasons = {
        sample.labels["reason"]
        for family in (await gateway.metrics()).families
        for sample in family.samples
        if sample.name == "gateway_missed_tokens_total"
    }
    assert "cache_bypassed" in reasons
    assert reasons <= set(REASONS)


SGLANG = {"flavor": "sglang", "prompt_tokens_details": True}


@pytest.mark.parametrize("flag", [{"prompt_tokens_details": False}, SGLANG])
async def test_engine_that_reports_less_is_explained_all_the_same(start_engine, start_gateway, flag):
    engine = await start_engine(**flag)
    gateway = await start_gateway(engine, explain=ON)
    for number in range(3):
        await gateway.ask(messages=chat("Where is it?"), max_tokens=2, headers={"x-request-id": f"r{number}"})
    first, last = await detail(gateway, "r0"), await detail(gateway, "r2")
    assert sum(each["tokens"] for each in first["missed"]) + first["hits"] == first["prompt_tokens"]
    assert [each["reason"] for each in first["missed"]] == ["first_seen"]
    assert last["hits"] > 100
    assert last["evidence"] == ("confirmed" if "flavor" in flag else "predicted")


async def test_request_that_failed_over_is_explained_once(start_engine, start_gateway):
    engines = [await start_engine(), await start_engine()]
    gateway = await start_gateway(*engines, explain=ON)
    for question in ("One?", "Two?"):
        await gateway.ask(messages=chat(question), max_tokens=2)
    warm = next(each for each in engines if each.scheduler.totals.finished == 2)
    await warm.kill()
    answer = await gateway.ask(messages=chat("Three?"), max_tokens=2, headers={"x-request-id": "third"})
    assert answer.status_code == 200
    found = await detail(gateway, "third")
    assert next(each["reason"] for each in found["missed"]) == "failover"
    assert (await explained(gateway, 3))["requests"] == 3


async def test_prompt_text_is_nowhere_in_what_is_shown(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), explain=ON)
    # Near now, so that a rule finds the date; for one that no rule finds, a slot is suggested with the words around it.
    days = [f"{datetime.now(UTC) - timedelta(days=ago):%Y-%m-%d}" for ago in (1, 0)]
    for day in days:
        system = f"Today is {day}. Customer Zebulon Quux of Ypsilanti.\n{SYSTEM}"
        messages = [{"role": "system", "content": system}, {"role": "user", "content": "Zanzibar?"}]
        await gateway.ask(messages=messages, max_tokens=2, headers={"x-request-id": day})
    found = await detail(gateway, days[-1])
    assert found["difference"]["reason"] == "dynamic_time"
    pages = [json.dumps(found)]
    pages += [
        (await gateway.admin.get(f"/admin/api/{page}")).text for page in ("summary", "reasons", "requests?limit=5")
    ]
    for page in pages:
        for secret in ("Zebulon", "Quux", "Ypsilanti", "Zanzibar", "parcels", "Today"):
            assert secret not in page


async def test_explanations_can_be_turned_off_and_cost_no_request(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), explain={"enabled": False})
    assert (await gateway.ask(messages=chat("Hello"))).status_code == 200
    answer = await gateway.admin.get("/admin/api/summary")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "explain_off")


def explain_workers() -> set[int]:
    """The explain workers that this process started."""
    return set(children(os.getpid(), "gateway.explain.worker.process"))


async def test_explaining_process_that_is_killed_costs_no_request_and_comes_back(start_engine, start_gateway):
    before = explain_workers()
    gateway = await start_gateway(await start_engine(), explain=ON)
    await gateway.ask(messages=chat("One?"), max_tokens=2)
    await explained(gateway, 1)
    (child,) = explain_workers() - before
    os.kill(child, signal.SIGKILL)
    for number in range(20):
        answer = await gateway.ask(messages=chat(f"Number {number}?"), max_tokens=2)
        assert answer.status_code == 200
        await asyncio.sleep(0.05)
    await gateway.ask(messages=chat("Again?"), max_tokens=2)

    async def all_counted() -> bool:
        metrics = await gateway.metrics()
        cached = metrics.value("gateway_cached_tokens_total", evidence="confirmed")
        return missed(metrics) + cached == metrics.value("gateway_prompt_tokens_total")

    await eventually(all_counted)
    (again,) = explain_workers() - before
    assert again != child


async def test_what_another_tenant_computed_is_named_as_that(start_engine, start_gateway):
    gateway = await start_gateway(
        await start_engine(), explain=ON, **sections(tenant("acme"), tenant("globex"), isolation="tenant")
    )
    await ask_as(gateway, "acme", "Where?", headers={"x-request-id": "a"})
    await ask_as(gateway, "globex", "Where?", headers={"x-request-id": "b"})
    found = await detail(gateway, "b")
    assert found["missed"][0]["reason"] == "tenant_isolated"
    assert "acme" not in json.dumps(found)


async def test_beyond_its_share_of_the_cpu_time_requests_are_counted_without_their_text(
    start_engine, start_gateway, monkeypatch
):
    monkeypatch.setattr(cpu_share, "_FREE_SHARE", 1e-6)
    gateway = await start_gateway(await start_engine(), explain=ON | {"max_cpu_share": 0.002})
    sent = 0

    async def limited() -> bool:
        nonlocal sent
        sent += 1
        await gateway.ask(messages=chat(f"What of parcel {sent}?"), max_tokens=1)
        answer = await gateway.admin.get("/admin/api/summary")
        return answer.status_code == 200 and answer.json()["skipped"] > 3

    await eventually(limited)
    summary = await explained(gateway, sent)
    assert sum(each["tokens"] for each in summary["reasons"]) + summary["hits"] == summary["prompt_tokens"]
    assert (await gateway.metrics()).value("gateway_explain_skipped_total") == summary["skipped"]


async def test_all_turns_of_a_conversation_are_explained_or_none(start_engine, start_gateway, monkeypatch):
    monkeypatch.setattr(cpu_share.CpuShare, "spent", lambda share, *_: setattr(share, "admitted", 0.5))
    gateway = await start_gateway(await start_engine(), explain=ON)
    await gateway.ask(messages=chat("First."), max_tokens=1)
    await explained(gateway, 1)
    for turn in range(2):
        for number in range(20):
            said = [{"role": "assistant", "content": "There."}, {"role": "user", "content": "And now?"}] * turn
            body = {"model": "demo", "messages": [*chat(f"Where is order {number}?"), *said], "max_tokens": 1}
            answer = await gateway.http.post(CHAT, json=body, headers={"x-request-id": f"order-{number}-{turn}"})
            assert answer.status_code == 200
    summary = await explained(gateway, 41)
    fates = [
        tuple([(await detail(gateway, f"order-{number}-{turn}"))["skipped"] for turn in range(2)])
        for number in range(20)
    ]
    assert set(fates) == {(True, True), (False, False)}
    assert summary["skipped"] == sum(map(sum, fates))
    assert summary["avoidable"]["estimated"]["tokens"] >= summary["avoidable"]["tokens"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a" * 50}] * 150}]}),
        (CHAT, {"messages": [{"role": "system", "content": "Only this."}]}),
        (CHAT, {"messages": [{"role": "system", "content": "x"}] * 200 + [{"role": "user", "content": "Hi"}]}),
        (COMPLETIONS, {"prompt": "Once upon a time"}),
        (COMPLETIONS, {"prompt": ["one", "two"]}),
        (COMPLETIONS, {"prompt": [5, 6, 7]}),
        (COMPLETIONS, {"prompt": [[5, 6, 7] * 500, [8, 9]]}),
    ],
    ids=["parts", "system only", "many leading", "prompt", "prompts", "ids", "lists of ids"],
)
async def test_every_body_is_of_a_conversation_that_is_explained_or_not(
    start_engine, start_gateway, monkeypatch, path, body
):
    monkeypatch.setattr(cpu_share.CpuShare, "spent", lambda share, *_: setattr(share, "admitted", 0.5))
    gateway = await start_gateway(await start_engine(), explain=ON)
    await gateway.ask(messages=chat("First."), max_tokens=1)
    await explained(gateway, 1)
    for number in range(2):
        answer = await gateway.http.post(
            path, json={"model": "demo", "max_tokens": 1} | body, headers={"x-request-id": f"again-{number}"}
        )
        assert answer.status_code == 200
    await explained(gateway, 3)
    assert len({(await detail(gateway, f"again-{number}"))["skipped"] for number in range(2)}) == 1
