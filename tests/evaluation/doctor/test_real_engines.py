"""``doctor`` against real vLLM replicas: nothing at one that is set up correctly, and the mistakes of two others.

Run by ``make test-engine``, or alone with ``python -m pytest -m engine tests/evaluation``.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config.settings import Settings
from gateway.evaluation.doctor.doctor_finding import DoctorFinding
from gateway.evaluation.doctor.examination import ExaminationOptions, examine
from tests.engine.places import DEMO_TEMPLATE, GOLDEN
from tests.engine.replica import HOME, MODEL, MODEL_FOLDER, START_SECONDS, Ports, Process, start_replica

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not (HOME / "venv" / "bin" / "vllm").is_file(), reason="run tests/engine/install.sh"),
]

SILENT = (
    "--no-enable-prefix-caching",
    "--no-enable-prompt-tokens-details",
    *("--kv-events-config", json.dumps({"enable_kv_cache_events": False})),
)


def without_replay(ports: Ports) -> tuple[str, str]:
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{ports.events}"}
    return "--kv-events-config", json.dumps(events)


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Process]]:
    """``right``, ``silent`` (no caching, no usage details, no events) and ``other`` (template, no replay)."""
    folder: Path = tmp_path_factory.mktemp("engines")
    right, silent, other = Ports.free(), Ports.free(), Ports.free()
    with contextlib.ExitStack() as running:
        started = {
            "silent": start_replica(folder, "silent", DEMO_TEMPLATE, silent, SILENT),
            "other": start_replica(folder, "other", GOLDEN / "agent.jinja", other, without_replay(other)),
            "right": start_replica(folder, "right", DEMO_TEMPLATE, right),
        }
        for process in started.values():
            running.callback(process.stop)
        for process in started.values():
            process.wait_ready("/health", START_SECONDS)
        yield started


async def found(*processes: Process, **model: Any) -> list[DoctorFinding]:
    settings = Settings.model_validate(
        {
            "server": {"port": 0, "admin_port": 0},
            "spaces": {"isolation": "tenant", "secret": "what all gateways have in common"},
            "models": [
                {
                    "id": MODEL,
                    "tokenizer": str(MODEL_FOLDER),
                    "chat_template": str(DEMO_TEMPLATE),
                    "replicas": [{"url": each.url, "id": each.name} for each in processes],
                    **model,
                }
            ],
        }
    )
    diagnosis, _ = await examine(settings, ExaminationOptions(timeout_seconds=30.0))
    return diagnosis.ordered()


async def test_nothing_is_found_at_a_replica_that_is_set_up_correctly(replicas):
    assert await found(replicas["right"]) == []


async def test_prefix_caching_usage_details_and_events_that_are_off(replicas):
    fixes = {each.name: each.fix for each in await found(replicas["silent"])}
    assert fixes.keys() == {"prefix-caching-off", "usage-details-off", "events-off"}
    assert "--enable-prefix-caching" in fixes["prefix-caching-off"]
    assert "--enable-prompt-tokens-details" in fixes["usage-details-off"]
    assert "--kv-events-config" in fixes["events-off"]


async def test_another_chat_template_and_events_without_replay(replicas):
    said = {each.name: each.said for each in await found(replicas["other"])}
    assert said.keys() == {"template-differs", "events-without-replay"}
    assert "is the first that differs" in said["template-differs"]


async def test_replicas_with_different_templates_without_a_tokenizer_here(replicas):
    everything = await found(replicas["right"], replicas["other"], tokenizer="engine", chat_template=None)
    assert {each.name for each in everything} == {"templates-differ", "events-without-replay"}
