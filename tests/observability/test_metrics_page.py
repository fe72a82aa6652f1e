"""``/metrics`` of a gateway that served traffic, as Prometheus and its tools read it."""

import asyncio
import contextlib
import subprocess
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from external import program
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from running_gateway import RunningGateway, settings_for

from gateway.simulator.config import EngineConfig
from gateway.simulator.simulated_engine import SimulatedEngine

OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}
SYSTEM = "You answer questions about parcels, invoices and returns, in one sentence each. " * 8


@pytest.fixture
async def gateway(closing: contextlib.AsyncExitStack) -> RunningGateway:
    """In front of two engines."""
    engines = []
    for _ in range(2):
        engine = SimulatedEngine(EngineConfig(prefill_rate=1e6, decode_ms=0.0))
        await engine.start()
        closing.push_async_callback(engine.kill)
        engines.append(engine)
    running = RunningGateway(settings_for(engines, explain={"enabled": True}))
    await running.start()
    closing.push_async_callback(running.stop)
    return running


async def ask(gateway: RunningGateway, request_id: str, **fields: Any) -> httpx.Response:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Where is it?"}]
    answer = await gateway.ask(messages=messages, max_tokens=2, headers={"x-request-id": request_id}, **fields)
    assert answer.headers["x-request-id"] == request_id
    return answer


async def exemplars(gateway: RunningGateway) -> dict[str, list[Mapping[str, str]]]:
    """Labels of all exemplars on the page, by metric. Fails if the page breaks a rule of the format."""
    page = (await gateway.admin.get("/metrics", headers=OPENMETRICS)).text
    found: dict[str, list[Mapping[str, str]]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.exemplar is not None:
                found.setdefault(family.name, []).append(sample.exemplar.labels)
    return found


async def test_promtool_finds_nothing_to_complain_about(gateway):
    await ask(gateway, "one", stream=True)
    await ask(gateway, "two")
    await ask(gateway, "three", model="unheard-of")
    await gateway.settled(3)
    page = (await gateway.admin.get("/metrics")).content
    checked = await asyncio.to_thread(
        subprocess.run, [program("promtool"), "check", "metrics"], input=page, capture_output=True, timeout=60
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


async def test_histograms_name_a_request_where_the_format_allows(gateway):
    await ask(gateway, "streamed-one", stream=True)
    await gateway.settled(1)
    named = [{"request_id": "streamed-one"}]
    assert await exemplars(gateway) == {"gateway_ttft_seconds": named, "gateway_request_seconds": named}
    plain = await gateway.admin.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    assert "streamed-one" not in plain.text


async def test_any_request_id_leaves_the_page_valid(gateway):
    hostile = ['quote"and\\slash', '{a="b"}', "#", "y" * 119]
    for request_id in hostile:
        await ask(gateway, request_id, stream=True)
    await ask(gateway, "x" * 118, stream=True)
    await gateway.settled(5)
    named = {labels["request_id"] for each in (await exemplars(gateway)).values() for labels in each}
    assert named == {"x" * 118}


async def test_what_alerts_wait_for_is_there_before_it_happens(gateway):
    metrics = await gateway.metrics()
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in metrics.families
        for sample in family.samples
    }
    for replica in ("r0", "r1"):
        assert samples["gateway_kv_event_gaps_total", (("replica", replica),)] == 0
        for kind in ("unfit", "unplaced", "removed"):
            assert samples["gateway_kv_unmatched_blocks_total", (("kind", kind), ("replica", replica))] == 0
    assert samples["gateway_token_parity_total", (("model", "demo"), ("result", "different"))] == 0
    for stage in ("connect", "first_byte", "stream"):
        assert samples["gateway_failovers_total", (("stage", stage),)] == 0
    for backend in ("audit", "spaces_file"):
        assert samples["gateway_state_errors_total", (("backend", backend),)] == 0
    assert samples["gateway_explain_skipped_total", ()] == 0
    assert samples["gateway_config_last_reload_successful", ()] == 1
