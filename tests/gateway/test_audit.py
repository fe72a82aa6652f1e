"""The audit log of a gateway at work: every line that somebody will look for."""

import asyncio
import json

import pytest
from running_gateway import eventually
from tenancy import SYSTEM, ask_as, key, sections, tenant

from gateway.keys import hash_key

OPERATOR = "an-operators-token-of-some-length"


@pytest.fixture
async def world(engine, start_gateway, tmp_path):
    file = tmp_path / "audit.jsonl"
    gateway = await start_gateway(
        engine,
        **sections(tenant("a"), tenant("limited", concurrent=1), idle_ttl_seconds=3600.0),
        audit={"file": str(file)},
        server={"admin_tokens": ({"id": "ops", "hash": hash_key(OPERATOR), "role": "operate"},)},
    )
    gateway.admin.headers["authorization"] = f"Bearer {OPERATOR}"

    async def lines(event, count=1):
        told = []

        def there() -> bool:
            nonlocal told
            every = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
            told = [line for line in every if line["event"] == event]
            return len(told) >= count

        await eventually(there)
        return told

    return gateway, engine, lines


async def test_who_asked_what_in_which_space(world):
    gateway, _, lines = world
    answer = await ask_as(gateway, "a", headers={"x-request-id": "r-1"})
    (line,) = await lines("request")
    (space,) = (await gateway.admin.get("/admin/api/spaces")).json()["spaces"]
    expected = {
        "tenant": "a",
        "key_id": "a-key",
        "request_id": "r-1",
        "model": "demo",
        "endpoint": "/v1/chat/completions",
        "space": space["id"],
        "replica": "r0",
        "decision": "cold",
        "status": 200,
        "prompt_tokens": answer.json()["usage"]["prompt_tokens"],
        "cached_tokens": 0,
    }
    assert expected.items() <= line.items()
    assert line["time"].endswith(("Z", "+00:00"))


async def test_who_was_not_let_in(world):
    gateway, _, lines = world
    await gateway.ask("hi")
    await gateway.ask("hi", headers={"authorization": "Bearer pgw_not-a-key"})
    await gateway.ask("hi", headers={"authorization": f"Bearer {key('a')}", "x-tenant-id": "b"})
    await ask_as(gateway, "a", model="other")
    refused = await lines("access_refused", 4)
    assert [(line["status"], line["code"], line["tenant"]) for line in refused] == [
        (401, "invalid_api_key", ""),
        (401, "invalid_api_key", ""),
        (403, "tenant_header_not_trusted", ""),
        (404, "model_not_found", "a"),
    ]
    assert {line["peer"] for line in refused} == {"127.0.0.1"}
    assert refused[-1]["key_id"] == "a-key"


async def test_a_limit_reached_names_the_tenant(world):
    gateway, _, lines = world
    await asyncio.gather(*(ask_as(gateway, "limited", str(number)) for number in range(10)))
    (line, *_) = await lines("access_refused")
    assert (line["status"], line["code"], line["tenant"], line["key_id"]) == (
        429,
        "rate_limit_exceeded",
        "limited",
        "limited-key",
    )
    metrics = await gateway.settled(10)
    assert metrics.value("gateway_requests_total", tenant="limited", status="429") >= 1


async def test_who_reset_what_and_why(world):
    gateway, _, lines = world
    await ask_as(gateway, "a")
    await gateway.admin.post("/admin/api/spaces/reset", json={"tenant": "a"})
    (asked,) = await lines("spaces_reset_asked")
    (ended,) = await lines("space_end")
    assert (asked["by"], asked["tenant"]) == ("ops", "a")
    assert (ended["by"], ended["cause"]) == ("ops", "manual")
    assert ended["parts"]["tenant"] == "tenant:a"


async def test_operators_that_are_not_let_in(world):
    gateway, _, lines = world
    for token in ("", "Bearer nonsense"):
        assert (await gateway.admin.get("/admin/api/spaces", headers={"authorization": token})).status_code == 401
    refused = await lines("admin_refused", 2)
    assert {(line["path"], line["peer"], line["status"]) for line in refused} == {
        ("/admin/api/spaces", "127.0.0.1", 401)
    }


async def test_nobodys_text_and_no_key_is_in_it(world, tmp_path):
    gateway, _, lines = world
    await ask_as(gateway, "a", "a question nobody else asks")
    await gateway.ask("hi", headers={"authorization": "Bearer pgw_not-a-key"})
    await lines("request")
    await gateway.stop()
    text = (tmp_path / "audit.jsonl").read_text()
    for secret in ("a question nobody", SYSTEM[:30], key("a"), "pgw_", OPERATOR, hash_key(key("a"))):
        assert secret not in text
