"""The audit log of a gateway at work: every line that an operator will look for."""

import asyncio
import json
import signal

import pytest
import yaml
from running_gateway import eventually
from tenancy import SECRET, SYSTEM, ask_as, error, key, sections, tenant

from gateway.core.api_keys import hash_key

OPERATOR = "an-operators-token-of-some-length"


@pytest.fixture
async def setup(engine, start_gateway, tmp_path):
    file = tmp_path / "audit.jsonl"
    gateway = await start_gateway(
        engine,
        **sections(tenant("a"), tenant("limited", concurrent=1), idle_ttl_seconds=3600.0),
        audit={"file": str(file)},
        server={"admin_tokens": ({"id": "ops", "hash": hash_key(OPERATOR), "role": "operate"},)},
    )
    gateway.admin.headers["authorization"] = f"Bearer {OPERATOR}"
    return gateway, engine, reader(file)


def reader(file):
    """A function that waits for so many lines of an event, and returns them."""

    async def lines(event, count=1):
        reported = []

        def there() -> bool:
            nonlocal reported
            reported = [line for line in written(file) if line["event"] == event]
            return len(reported) >= count

        await eventually(there)
        return reported

    return lines


def written(file):
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def test_who_asked_what_in_which_space(setup):
    gateway, _, lines = setup
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


async def test_who_was_not_let_in(setup):
    gateway, _, lines = setup
    await gateway.ask("hi")
    await gateway.ask("hi", headers={"authorization": "Bearer pgw_not-a-key"})
    await gateway.ask("hi", headers={"authorization": f"Bearer {key('a')}", "x-tenant-id": "b"})
    await ask_as(gateway, "a", model="other")
    await lines("access_refused")
    await gateway.stop()
    refused = await lines("access_refused", 3)
    assert [(line["status"], line["code"], line["tenant"], line.get("count")) for line in refused] == [
        (404, "model_not_found", "a", None),
        (401, "invalid_api_key", "", 2),
        (403, "tenant_header_not_trusted", "", 1),
    ]
    assert {line["peer"] for line in refused} == {"127.0.0.1"}
    assert refused[0]["key_id"] == "a-key"


async def test_a_limit_reached_names_the_tenant(setup):
    gateway, _, lines = setup
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


MAIL = "jane.doe@example.com"


@pytest.mark.parametrize("requests", [True, False])
@pytest.mark.parametrize(
    ("name", "fields", "status", "code", "entered"),
    [
        ("careful", {"messages": [{"role": "system", "content": MAIL}]}, 400, "personal_data_in_prefix", True),
        ("limited", {}, 429, "rate_limit_exceeded", True),
        ("a", {"kv_transfer_params": {"remote_block_ids": [1]}}, 400, "names_cached", False),
        ("a", {"cache_salt": "@"}, 400, "invalid_cache_salt", False),
    ],
)
async def test_what_is_refused_after_admission_is_recorded_whether_or_not_requests_are(
    engine, start_gateway, tmp_path, requests, name, fields, status, code, entered
):
    tenants = (tenant("a"), tenant("careful", personal_data="block"), tenant("limited", prompt_tokens_per_minute=50))
    file = tmp_path / "audit.jsonl"
    gateway = await start_gateway(engine, **sections(*tenants), audit={"file": str(file), "requests": requests})
    answer = await ask_as(gateway, name, headers={"x-request-id": "r-1"}, **fields)
    assert error(answer) == (status, code)
    (line,) = await reader(file)("access_refused")
    listed = (await gateway.admin.get("/admin/api/spaces")).json()["spaces"]
    expected = {
        "peer": "127.0.0.1",
        "tenant": name,
        "key_id": f"{name}-key",
        "request_id": "r-1",
        "endpoint": "/v1/chat/completions",
        "model": "demo",
        "status": status,
        "code": code,
        "space": listed[0]["id"] if entered else "",
    }
    assert expected.items() <= line.items()
    assert not engine.requests
    await gateway.stop()
    assert not [line for line in written(file) if line["event"] == "request"]
    assert MAIL not in file.read_text()


@pytest.mark.parametrize("requests", [True, False])
async def test_a_region_without_a_replica_is_a_failure_and_no_refusal(start_engine, start_gateway, tmp_path, requests):
    engine, far = await start_engine(), await start_engine()
    replicas = [{"url": engine.url, "id": "r0", "region": "eu"}, {"url": far.url, "id": "r1", "region": "us"}]
    file = tmp_path / "audit.jsonl"
    gateway = await start_gateway(
        **sections(tenant("a", regions=("eu",))),
        model={"replicas": replicas},
        audit={"file": str(file), "requests": requests},
        relay={"health_interval_seconds": 0.1, "suspect_seconds": 0.1},
    )
    await engine.kill()

    async def noticed() -> bool:
        return (await gateway.replicas())["r0"]["state"] != "ready"

    await eventually(noticed)
    assert error(await ask_as(gateway, "a")) == (503, "no_replica")
    await gateway.settled(1)
    await gateway.stop()
    events = [line for line in written(file) if line["event"] in {"access_refused", "request"}]
    assert [(line["event"], line["status"], line["code"], line["peer"], line["tenant"]) for line in events] == (
        [("request", 503, "no_replica", "127.0.0.1", "a")] if requests else []
    )


async def test_what_the_engine_refuses_is_a_request_without_a_code(setup):
    gateway, _, lines = setup
    assert (await ask_as(gateway, "a", n=-1)).status_code == 400
    (line,) = await lines("request")
    assert (line["status"], line["code"], line["replica"], line["peer"]) == (400, None, "r0", "127.0.0.1")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/x"])
async def test_keys_cannot_be_tried_unseen_where_models_are_listed(setup, capfd, path):
    gateway, _, lines = setup
    for number, headers in enumerate(
        [
            {},
            {"authorization": "Bearer pgw_not-a-key"},
            {"authorization": f"Bearer {key('a')}", "x-tenant-id": "limited"},
        ]
    ):
        answer = await gateway.http.get(path, headers=headers | {"x-request-id": f"r-{number}"})
        assert answer.status_code == (403 if "x-tenant-id" in headers else 401)
        assert answer.headers["x-request-id"] == f"r-{number}"
    metrics = await gateway.metrics()
    for status, count in (("401", 2), ("403", 1)):
        assert metrics.value("gateway_requests_total", endpoint="/v1/models", status=status, tenant="unknown") == count
    assert "".join(capfd.readouterr()).count("request_refused") == 3
    assert (await gateway.http.get("/v1/models", headers={"authorization": f"Bearer {key('a')}"})).status_code == 200
    assert (await gateway.metrics()).value("gateway_requests_total") == 3
    await gateway.stop()
    refused = await lines("access_refused", 2)
    assert [
        (line["status"], line["code"], line["request_id"], line["endpoint"], line["count"]) for line in refused
    ] == [
        (401, "invalid_api_key", "r-0", "/v1/models", 2),
        (403, "tenant_header_not_trusted", "r-2", "/v1/models", 1),
    ]
    assert {line["peer"] for line in refused} == {"127.0.0.1"}


async def test_personal_data_found_says_in_whose_request_and_which_space(setup):
    gateway, _, lines = setup
    messages = [{"role": "system", "content": f"Write to {MAIL}."}, {"role": "user", "content": "x"}]
    await ask_as(gateway, "a", messages=messages, headers={"x-request-id": "r-7"})
    (line,) = await lines("personal_data")
    (space,) = (await gateway.admin.get("/admin/api/spaces")).json()["spaces"]
    expected = {"tenant": "a", "key_id": "a-key", "request_id": "r-7", "space": space["id"], "kind": "email"}
    assert expected.items() <= line.items()
    assert MAIL not in json.dumps(line)


async def test_start_and_stop_of_a_gateway_are_recorded(setup, tmp_path):
    gateway, _, lines = setup
    await lines("gateway_started")
    await ask_as(gateway, "a")
    await gateway.stop()
    events = [line["event"] for line in written(tmp_path / "audit.jsonl")]
    assert (events[0], events[-1]) == ("gateway_started", "gateway_stopped")
    assert events.count("gateway_started") == events.count("gateway_stopped") == 1


async def test_what_a_reload_changed_is_recorded_and_so_is_one_that_was_refused(serve, start_engine, tmp_path):
    audit = tmp_path / "audit.jsonl"
    reported = {"tenants": json.loads(json.dumps([tenant("a")])), "spaces": {"secret": SECRET}}
    serving = await serve((await start_engine()).url, **reported, audit={"file": str(audit)})
    valid = yaml.safe_load(serving.config.read_text())
    lines = reader(audit)

    async def reload(text):
        serving.config.write_text(text)
        serving.process.send_signal(signal.SIGHUP)

    more = json.loads(json.dumps([tenant("a"), tenant("b")]))
    await reload(yaml.safe_dump(valid | {"tenants": more, "personal_data": {"mode": "off"}}))
    (taken,) = await lines("config_taken")
    assert sorted(taken["changed"]) == ["personal_data", "tenants"]
    await reload("models: [")
    await lines("config_refused")
    assert len(await lines("config_taken")) == 1
    # What needs a restart was not taken over.
    await reload(yaml.safe_dump(valid | {"tenants": more, "placement": {"policy": "round_robin"}}))
    assert (await lines("config_taken", 2))[1]["changed"] == ["personal_data"]
    assert SECRET not in audit.read_text()


async def test_who_reset_what_and_why(setup):
    gateway, _, lines = setup
    await ask_as(gateway, "a")
    await gateway.admin.post("/admin/api/spaces/reset", json={"tenant": "a"})
    (asked,) = await lines("spaces_reset_asked")
    (ended,) = await lines("space_end")
    assert (asked["by"], asked["tenant"]) == ("ops", "a")
    assert (ended["by"], ended["cause"]) == ("ops", "manual")
    assert ended["parts"]["tenant"] == "tenant:a"


async def test_operators_that_are_not_let_in(setup):
    gateway, _, lines = setup
    for token in ("", "Bearer nonsense"):
        assert (await gateway.admin.get("/admin/api/spaces", headers={"authorization": token})).status_code == 401
    await gateway.stop()
    (refused,) = await lines("admin_refused")
    assert (refused["path"], refused["peer"], refused["status"], refused["count"]) == (
        "/admin/api/spaces",
        "127.0.0.1",
        401,
        2,
    )


async def test_nobodys_text_and_no_key_is_in_it(setup, tmp_path):
    gateway, _, lines = setup
    await ask_as(gateway, "a", "a question nobody else asks")
    await gateway.ask("hi", headers={"authorization": "Bearer pgw_not-a-key"})
    await lines("request")
    await gateway.stop()
    text = (tmp_path / "audit.jsonl").read_text()
    for secret in ("a question nobody", SYSTEM[:30], key("a"), "pgw_", OPERATOR, hash_key(key("a"))):
        assert secret not in text
