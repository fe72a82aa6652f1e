"""The metrics pages of several workers as one page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Gauge, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read

from gateway.core.replica_state import ReplicaState
from gateway.server.workers.merged_metrics import ASK_FOR, GAUGES, MergedPages
from gateway.telemetry import MetricCatalog


def page(catalog: MetricCatalog) -> str:
    return openmetrics(catalog.registry).decode()


def values(merged: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in read(merged.decode())
        for sample in family.samples
    }


def counted(requests: int, seconds: float = 0.2) -> MetricCatalog:
    catalog = MetricCatalog()
    for _ in range(requests):
        catalog.requests.inc("demo", "a", "/v1/chat/completions", 200)
        series = catalog.request_seconds.series["demo", "/v1/chat/completions", "warm"]
        series.observe_requests([(seconds, f"r{seconds}", 0.0)])
    return catalog


def total(pages: MergedPages, given: dict[int, str]) -> float:
    merged, _ = pages.merged(given, "")
    return sum(value for (name, _), value in values(merged).items() if name == "gateway_requests_total")


def test_one_page_is_what_it_was():
    catalog = counted(3)
    catalog.replica_up.labels("demo", "r0").set(1)
    merged, content_type = MergedPages(1).merged({0: page(catalog)}, "")
    assert values(merged) == values(generate_latest(catalog.registry))
    assert content_type.startswith("text/plain")


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5))
def test_counters_and_histograms_are_summed(requests):
    pages = {number: page(counted(count, 0.2 + number)) for number, count in enumerate(requests)}
    merged, _ = MergedPages(len(requests)).merged(pages, "")
    found = values(merged)
    for name in ("gateway_requests_total", "gateway_request_seconds_count"):
        assert sum(value for (sample, _), value in found.items() if sample == name) == sum(requests)
    buckets = [
        (float(dict(labels)["le"].replace("+Inf", "inf")), value)
        for (sample, labels), value in found.items()
        if sample == "gateway_request_seconds_bucket"
    ]
    assert [value for _, value in sorted(buckets)] == sorted(value for _, value in buckets)
    # Well-formed also for the strict reader, with exemplars.
    strict, content_type = MergedPages(len(requests)).merged(pages, ASK_FOR)
    assert content_type.startswith("application/openmetrics-text")
    exemplars = [s.exemplar for family in read_openmetrics(strict.decode()) for s in family.samples if s.exemplar]
    assert bool(exemplars) == any(requests)


def restarts(pages: MergedPages, given: dict[int, str]) -> float:
    merged, _ = pages.merged(given, "")
    return values(merged)["gateway_worker_restarts_total", frozenset()]


def test_how_often_workers_were_lost_is_counted_for_them():
    pages, answers = MergedPages(2), {0: page(MetricCatalog()), 1: page(MetricCatalog())}
    assert restarts(pages, answers) == 0
    pages.lost(1)
    assert restarts(pages, {0: answers[0]}) == 1
    assert restarts(pages, answers) == 1
    for worker in (0, 1, 1):
        pages.lost(worker)
    assert restarts(pages, {1: answers[1]}) == 4


def gaps(catalog: MetricCatalog, **counted: int) -> str:
    """Its page, with what was counted of each replica that it has."""
    catalog.replica_up.clear()
    for replica, count in counted.items():
        catalog.replica_up.labels("demo", replica).set(1)
        catalog.kv_event_gaps.inc(replica, by=count)
    return page(catalog)


def test_what_a_lost_worker_counted_of_replicas_that_left_is_forgotten():
    pages = MergedPages(2)

    def shown(given: dict[int, str]) -> dict[str, float]:
        found = values(pages.merged(given, "")[0])
        return {
            dict(of)["replica"]: reported
            for (name, of), reported in found.items()
            if name == "gateway_kv_event_gaps_total"
        }

    assert shown({0: gaps(MetricCatalog(), r0=1, r1=2), 1: gaps(MetricCatalog(), r0=3, r1=4)}) == {"r0": 4, "r1": 6}
    pages.lost(0)
    assert shown({1: gaps(MetricCatalog(), r0=3, r1=4)}) == {"r0": 4, "r1": 6}
    assert shown({0: gaps(MetricCatalog(), r0=10, r2=1), 1: gaps(MetricCatalog(), r0=3)}) == {"r0": 14, "r2": 1}
    assert shown({0: gaps(MetricCatalog(), r0=10, r1=1), 1: gaps(MetricCatalog(), r0=3)}) == {"r0": 14, "r1": 1}


WORKER_EVENTS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["counts", "dies", "hangs"]), st.integers(0, 9)))


@given(WORKER_EVENTS)
def test_reported_counters_never_fall_when_any_worker_dies(steps):
    present = [MetricCatalog(), MetricCatalog()]
    pages = MergedPages(2)
    reported = 0.0
    for worker, what, count in steps:
        for _ in range(count):
            present[worker].requests.inc("demo", "a", "/v1/chat/completions", 200)
        given = {number: page(catalog) for number, catalog in enumerate(present)}
        if what == "hangs":
            del given[worker]
        now = total(pages, given)
        assert now >= reported
        reported = now
        if what == "dies":
            pages.lost(worker)
            present[worker] = MetricCatalog()
    assert total(pages, {number: page(catalog) for number, catalog in enumerate(present)}) >= reported


def test_what_a_lost_worker_had_reported_is_counted_once():
    pages = MergedPages(2)
    assert total(pages, {0: page(counted(5)), 1: page(counted(7))}) == 12
    pages.lost(0)
    assert total(pages, {1: page(counted(8))}) == 13
    assert total(pages, {0: page(counted(1)), 1: page(counted(8))}) == 14
    pages.lost(0)
    pages.lost(0)
    assert total(pages, {0: page(counted(2)), 1: page(counted(8))}) == 16


def test_gauges():
    one, other = MetricCatalog(), MetricCatalog()
    for catalog, (up, inflight, blocks, reloaded) in ((one, (1, 3, 100, 1)), (other, (0, 4, 90, 0))):
        catalog.replica_up.labels("demo", "r0").set(up)
        catalog.replica_inflight.labels("r0").set(inflight)
        catalog.index_blocks.labels("r0", "events").set(blocks)
        catalog.config_last_reload_successful.set(reloaded)
    merged, _ = MergedPages(2).merged({0: page(one), 1: page(other)}, "")
    found = {name: value for (name, _), value in values(merged).items() if value or "reload" in name}
    assert found["gateway_replica_up"] == 1
    assert found["gateway_replica_inflight"] == 7
    assert found["gateway_index_blocks"] == 100
    assert found["gateway_config_last_reload_successful"] == 0


@pytest.mark.parametrize(
    ("states", "merged"),
    [(("ready", "ready"), "ready"), (("ready", "suspect"), "suspect"), (("ejected", "starting"), "ejected")],
)
def test_a_replica_is_in_one_state(states, merged):
    pages = {}
    for number, present in enumerate(states):
        catalog = MetricCatalog()
        for state in ReplicaState:
            catalog.replica_state.labels("demo", "r0", str(state)).set(state == present)
        pages[number] = page(catalog)
    found = values(MergedPages(2).merged(pages, "")[0])
    shown = {dict(labels)["state"]: value for (name, labels), value in found.items() if name == "gateway_replica_state"}
    assert shown == {str(state): float(state == merged) for state in ReplicaState}


def test_it_is_said_of_every_gauge_how_it_is_merged():
    catalog = MetricCatalog()
    gauges = {gauge._name for gauge in vars(catalog).values() if isinstance(gauge, Gauge)}
    assert set(GAUGES) == gauges
