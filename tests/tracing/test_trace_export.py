"""A collector that is there, or not: what requests and operators notice of it."""

import asyncio

import pytest
import structlog
from patience import HANG_SECONDS
from running_gateway import eventually
from tenancy import ask_as, key, sections, tenant

from gateway.telemetry.tracing import export

SECRETS = ["the colour of the parcel is ultramarine", "sk-of-the-engine", "a-credential-of-the-collector"]


async def errors(gateway):
    return (await gateway.metrics()).value("gateway_state_errors_total", backend="tracing")


async def test_neither_prompts_nor_answers_nor_keys_are_ever_in_a_span(start, collector, engine):
    gateway = await start(
        engine,
        model={"replicas": [{"url": engine.url, "id": "r0", "api_key": "sk-of-the-engine"}]},
        tracing={"headers": {"authorization": "Bearer a-credential-of-the-collector"}, "service_name": "gw-7"},
        **sections(tenant("acme")),
    )
    acme = key("acme")
    hidden = {
        "x-request-id": acme,
        "x-session-id": acme,
        "tracestate": f"v={acme}",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    }
    answer = await ask_as(gateway, "acme", SECRETS[0], headers=hidden, user=SECRETS[0], max_tokens=8)
    reply = answer.json()["choices"][0]["message"]["content"]
    assert answer.status_code == 200
    assert reply.strip()
    bad = await gateway.send(
        b'{"model": "' + SECRETS[0].encode() + b'", "messages": []}', authorization=f"Bearer {acme}"
    )
    assert bad.status_code == 404
    await gateway.send(b"{}", authorization=f"Bearer {acme}x", **{"x-request-id": "last"})
    await collector.trace("last")
    sent = b"".join(collector.bodies)
    for secret in [*SECRETS, acme, reply.strip(), "You answer questions about parcels"]:
        assert secret.encode() not in sent
    assert b"gw-7" in sent
    assert collector.headers["authorization"] == "Bearer a-credential-of-the-collector"
    assert collector.paths == {"POST /v1/traces HTTP/1.1"}
    config = (await gateway.admin.get("/admin/api/config")).text
    assert SECRETS[2] not in config
    assert '"authorization":"***"' in config.replace(" ", "")


async def test_a_collector_that_is_down_costs_no_request_and_is_said_once(start, collector, engine, monkeypatch):
    monkeypatch.setattr(export, "_EXPORT_TIMEOUT_SECONDS", 0.3)
    await collector.stop()
    with structlog.testing.capture_logs() as logs:
        gateway = await start(engine)
        # One after another, so that they do not all wait for the same batch.
        for number in range(1, 4):
            assert (await gateway.ask()).status_code == 200

            async def counted(least: int = number) -> bool:
                return await errors(gateway) >= least

            await eventually(counted)
    (said,) = [line for line in logs if line["event"] == "tracing_failing"]
    assert said["endpoint"] == collector.url
    assert said["reason"]


async def test_a_collector_that_refuses_and_then_does_not(start, collector, engine):
    collector.status = 401
    with structlog.testing.capture_logs() as logs:
        gateway = await start(engine)
        assert (await gateway.ask()).status_code == 200

        async def counted() -> bool:
            return await errors(gateway) >= 1

        await eventually(counted)
        (said,) = [line for line in logs if line["event"] == "tracing_failing"]
        assert "401" in said["reason"]
        collector.status = 200
        assert (await gateway.ask(headers={"x-request-id": "then"})).status_code == 200
        await collector.trace("then")
        await eventually(lambda: any(line["event"] == "tracing_works_again" for line in logs))


async def test_a_collector_that_hangs_holds_up_neither_requests_nor_the_end(start, collector, engine, monkeypatch):
    monkeypatch.setattr(export, "_FLUSH_SECONDS", 0.2)
    monkeypatch.setattr(export, "_QUEUED_SPANS", 50)
    monkeypatch.setattr(export, "_BATCH_SPANS", 10)
    collector.hangs = True
    with structlog.testing.capture_logs() as logs:
        gateway = await start(engine)
        assert (await gateway.ask()).status_code == 200
        await eventually(lambda: bool(collector.bodies))
        for _ in range(10):
            assert (await gateway.ask()).status_code == 200
        # Five traces and what is being sent fit; the others are left out, and counted.
        assert 4 <= await errors(gateway) <= 6
        async with asyncio.timeout(HANG_SECONDS):
            await gateway.gateway._tracing.stop()
    assert [line["event"] for line in logs if line["event"].startswith("tracing")] == [
        "tracing_failing",
        "tracing_not_flushed",
    ]


async def test_what_waits_is_sent_when_the_gateway_ends(start, collector, engine, monkeypatch):
    monkeypatch.setattr(export, "_DELAY_SECONDS", 60.0)
    gateway = await start(engine)
    for _ in range(5):
        assert (await gateway.ask()).status_code == 200
    await gateway.settled(5)
    assert collector.spans == []
    await gateway.gateway.stop()
    assert len({span.trace for span in collector.spans}) == 5


@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
async def test_the_endpoint_may_name_the_path(start, collector, engine, path):
    gateway = await start(engine, tracing={"endpoint": collector.url + path})
    await gateway.ask(headers={"x-request-id": "here"})
    await collector.trace("here")
    assert collector.paths == {"POST /v1/traces HTTP/1.1"}
