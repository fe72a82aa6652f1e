"""Counters and histograms of plain numbers show what those of prometheus_client show."""

import threading
from collections.abc import Callable

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics

from gateway.core.request import Endpoint
from gateway.telemetry.collectors import Counter, Histogram

BOUNDS = (0.005, 0.5, 1.0, 300.0)
LABELS = st.tuples(st.sampled_from(["m", "a\nb", 'c"d\\']), st.sampled_from([Endpoint.CHAT, "/v1/completions", 200]))
AMOUNTS = st.integers(0, 2**40) | st.floats(0, 1e9)
"""Whole numbers whose sums a float holds exactly: the library adds floats."""
VALUES = st.sampled_from([0.0, *BOUNDS, 1e9]) | st.floats(0, 400)


@pytest.fixture(autouse=True)
def _no_created_series():
    disable_created_metrics()
    yield
    prometheus_client.enable_created_metrics()


def pages(registry: CollectorRegistry) -> tuple[bytes, bytes]:
    return generate_latest(registry), openmetrics(registry)


@given(st.lists(st.tuples(LABELS, AMOUNTS)))
def test_a_counter_has_the_page_of_the_library(counted):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    one = Counter("gateway_things", "Things, by kind.", ("model", "kind"), registry=ours)
    other = prometheus_client.Counter("gateway_things", "Things, by kind.", ("model", "kind"), registry=theirs)
    for labels, amount in counted:
        one.inc(*labels, by=amount)
        other.labels(*labels).inc(amount)
    assert pages(ours) == pages(theirs)


def test_a_counter_without_labels_begins_with_0():
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counter = Counter("gateway_things", "Things.", registry=ours)
    prometheus_client.Counter("gateway_things", "Things.", registry=theirs)
    assert pages(ours) == pages(theirs)
    counter.inc(by=2)
    assert ours.get_sample_value("gateway_things_total") == 2


@given(st.lists(st.tuples(LABELS, VALUES)))
def test_a_histogram_has_the_page_of_the_library(observed):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    one = Histogram("gateway_seconds", "Seconds.", ("model", "kind"), bounds=BOUNDS, registry=ours)
    other = prometheus_client.Histogram(
        "gateway_seconds", "Seconds.", ("model", "kind"), buckets=BOUNDS, registry=theirs
    )
    for labels, value in observed:
        one.series[labels].observe(value)
        other.labels(*labels).observe(value)
    assert pages(ours) == pages(theirs)


def test_an_exemplar_has_the_page_of_the_library(monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1234.5)
    monkeypatch.setattr("time.monotonic", lambda: 500.0)
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    one = Histogram("gateway_seconds", "Seconds.", ("model",), bounds=BOUNDS, registry=ours)
    other = prometheus_client.Histogram("gateway_seconds", "Seconds.", ("model",), buckets=BOUNDS, registry=theirs)
    one.series["m",].observe_requests([(0.7, "req-1", 500.0)])
    other.labels("m").observe(0.7, {"request_id": "req-1"})
    assert pages(ours) == pages(theirs)
    assert b"req-1" in pages(ours)[1]


def test_series_with_a_label_value_are_removed():
    registry = CollectorRegistry()
    counter = Counter("gateway_things", "Things.", ("replica", "kind"), registry=registry)
    for replica in ("r0", "r1"):
        for kind in ("a", "b"):
            counter.inc(replica, kind)
    counter.remove("replica", "r0")
    assert sorted(counter.values) == [("r1", "a"), ("r1", "b")]


def test_counting_in_threads_loses_nothing():
    counter = Counter("gateway_things", "Things.", ("kind",), registry=CollectorRegistry())

    def count(until: Callable[[], bool]) -> None:
        while not until():
            counter.inc("a")

    calls = iter(range(40_000))
    threads = [threading.Thread(target=count, args=(lambda: next(calls, None) is None,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.values["a",] == 40_000
