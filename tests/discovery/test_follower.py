"""A source that is followed: when what it says counts, and what becomes of its failures."""

import asyncio

import pytest
import structlog
from patience import HANG_SECONDS
from prometheus_client import generate_latest

from gateway.config.discovery_settings import DiscoverSettings
from gateway.config.replica_settings import ReplicaSettings
from gateway.core.ids import ModelId, ReplicaId
from gateway.discovery import discovery as follower
from gateway.discovery.discovered import DiscoveredReplica, SourceFailed
from gateway.discovery.discovery import Follower
from gateway.telemetry import MetricCatalog, MetricsObserver

A = DiscoveredReplica(ReplicaSettings(url="http://a:1"))
PATIENCE = 0.2


class Scripted:
    """A source that says what a test puts into it."""

    def __init__(self):
        self.says = asyncio.Queue()

    async def answers(self):
        while True:
            said = await self.says.get()
            if isinstance(said, Exception):
                raise said
            yield said


@pytest.fixture
async def followed(monkeypatch):
    """The source, what was believed of it, and how often it failed."""
    monkeypatch.setattr(follower, "_RETRY_SECONDS", (0.01,))
    source, believed, failures = Scripted(), [], []
    settings = DiscoverSettings(file={"path": "any"}, empty_after_seconds=PATIENCE)
    each = Follower(ModelId("m"), settings, source, believed.append, lambda: failures.append(1))
    yield source, believed, failures
    await each.stop()


async def until(holds):
    async with asyncio.timeout(HANG_SECONDS):
        while not holds():
            await asyncio.sleep(0.01)


async def test_nothing_is_believed_in_the_end_though_it_is_said_only_once(followed):
    source, believed, _ = followed
    source.says.put_nowait([A])
    source.says.put_nowait([])
    await until(lambda: len(believed) == 2)
    assert believed == [[A], [A]]
    await until(lambda: len(believed) == 3)
    assert believed[-1] == []


async def test_what_was_said_before_a_failure_does_not_count_any_more(followed):
    source, believed, failures = followed
    source.says.put_nowait([A])
    source.says.put_nowait([])
    source.says.put_nowait(SourceFailed("away"))
    await until(lambda: failures)
    await asyncio.sleep(2 * PATIENCE)
    source.says.put_nowait([])
    await until(lambda: len(believed) == 3)
    assert believed == [[A], [A], [A]]


async def test_failures_are_counted_and_logged_once(followed):
    source, believed, failures = followed
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            source.says.put_nowait(SourceFailed("away"))
        source.says.put_nowait(ValueError("a mistake of the gateway's own"))
        source.says.put_nowait([A])
        await until(lambda: believed)
    assert len(failures) == 4
    reported = [(line["event"], line["log_level"]) for line in logs]
    assert reported == [("discovery_failed", "error"), ("discovery_broke", "error"), ("discovery_recovered", "info")]
    assert logs[0]["problem"] == "away"


def test_the_series_of_a_replica_that_left_are_gone_and_begin_anew():
    catalog = MetricCatalog()
    observer = MetricsObserver(catalog)
    for replica in ("r0", "r1"):
        for _ in range(2):
            observer.on_kv_gap(ReplicaId(replica))
    observer.forget_replica(ReplicaId("r0"))
    page = generate_latest(catalog.registry).decode()
    assert '"r0"' not in page
    assert 'gateway_kv_event_gaps_total{replica="r1"} 2.0' in page
    observer.on_kv_gap(ReplicaId("r0"))
    observer.on_kv_gap(ReplicaId("r1"))
    page = generate_latest(catalog.registry).decode()
    assert 'gateway_kv_event_gaps_total{replica="r0"} 1.0' in page
    assert 'gateway_kv_event_gaps_total{replica="r1"} 3.0' in page
