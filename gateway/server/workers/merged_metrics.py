"""Merges the metrics pages of all workers into one.

Counters and histograms are summed, and never fall: the last known counters of a lost worker are kept. Gauges are summed
where each worker has a share of something (requests in flight), and else
are what stands out: see ``GAUGES``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

from gateway.core.replica_state import ReplicaState

ASK_FOR = "application/openmetrics-text; version=1.0.0"
"""The form in which pages are read: the one that has exemplars."""

GAUGES: Mapping[str, Callable[[Iterable[float]], float]] = {
    "gateway_config_last_reload_successful": min,
    "gateway_index_blocks": max,
    "gateway_peers": max,
    "gateway_queue_requests": sum,
    "gateway_replica_inflight": sum,
    "gateway_replica_state": max,
    "gateway_replica_up": max,
}
"""How the values of several workers become one. A gauge that does not stand here is the largest."""

_RESTARTS = "gateway_worker_restarts"
"""Metrics that no worker counts itself."""

_UP_GAUGE = "gateway_replica_up"
_REPLICA_LABEL = "replica"
_STATE_GAUGE = "gateway_replica_state"
_STATE_LABEL = "state"
_WORST_FIRST = [str(state) for state in reversed(ReplicaState)]

_Key = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name and labels."""


@dataclass(slots=True)
class _Family:
    metric: Metric
    values: dict[_Key, list[float]] = field(default_factory=dict)
    exemplars: dict[_Key, Exemplar] = field(default_factory=dict)

    @property
    def is_cumulative(self) -> bool:
        return self.metric.type != "gauge"


class MergedPages:
    """Puts pages together.

    Args:
        workers: How many workers there are.
    """

    def __init__(self, workers: int) -> None:
        # By worker: what it counted in earlier lives, and when it was asked last.
        self._before: list[dict[str, dict[_Key, float]]] = [{} for _ in range(workers)]
        self._last: list[dict[str, dict[_Key, float]]] = [{} for _ in range(workers)]
        self._lost = 0

    def lost(self, worker: int) -> None:
        """A worker is there no more; another one takes its place, and counts from zero."""
        self._lost += 1
        for name, values in self._last[worker].items():
            before = self._before[worker].setdefault(name, {})
            for key, value in values.items():
                before[key] = before.get(key, 0.0) + value
        self._last[worker] = {}

    def merged(self, pages: Mapping[int, str], accept: str) -> tuple[bytes, str]:
        """One page, and its content type.

        Args:
            pages: By worker; one that did not answer is missing, and counts with its last page.
            accept: The ``accept`` header of the request.
        """
        families: dict[str, _Family] = {}
        for worker, page in pages.items():
            self._last[worker] = self._read(page, families)
        self._forget_replicas(families)
        for worker, last in enumerate(self._last):
            for counted in (self._before[worker], {} if worker in pages else last):
                for name, values in counted.items():
                    family = families.get(name)
                    for key, value in values.items() if family is not None else ():
                        assert family is not None
                        family.values.setdefault(key, []).append(value)
        if (restarts := families.get(_RESTARTS)) is not None:
            restarts.values.setdefault((f"{_RESTARTS}_total", ()), []).append(self._lost)
        encode, content_type = choose_encoder(accept)
        return encode(_Registry([_finished(family) for family in families.values()])), content_type

    def _forget_replicas(self, families: Mapping[str, _Family]) -> None:
        """Drop the series of replicas that no worker has any more, as a single process does."""
        up = families.get(_UP_GAUGE)
        if up is None:
            return
        known = {None, *(_replica_of(key) for key in up.values)}
        for counted in (*self._before, *self._last):
            for values in counted.values():
                for key in [key for key in values if _replica_of(key) not in known]:
                    del values[key]

    def _read(self, page: str, families: dict[str, _Family]) -> dict[str, dict[_Key, float]]:
        """Add a page to the families; returns what of it only grows."""
        counted: dict[str, dict[_Key, float]] = {}
        for metric in text_string_to_metric_families(page):  # type: ignore[no-untyped-call]
            family = families.get(metric.name)
            if family is None:
                empty = Metric(metric.name, metric.documentation, metric.type, metric.unit)
                family = families[metric.name] = _Family(empty)
            own = counted.setdefault(metric.name, {}) if family.is_cumulative else {}
            for sample in metric.samples:
                key = sample.name, tuple(sample.labels.items())
                own[key] = sample.value
                family.values.setdefault(key, []).append(sample.value)
                if sample.exemplar is not None and _is_newer(sample.exemplar, family.exemplars.get(key)):
                    family.exemplars[key] = sample.exemplar
        return counted


def _replica_of(key: _Key) -> str | None:
    return next((value for name, value in key[1] if name == _REPLICA_LABEL), None)


def _is_newer(exemplar: Exemplar, other: Exemplar | None) -> bool:
    return other is None or float(exemplar.timestamp or 0) > float(other.timestamp or 0)


def _finished(family: _Family) -> Metric:
    combine = sum if family.is_cumulative else GAUGES.get(family.metric.name, max)
    values = {key: float(combine(values)) for key, values in family.values.items()}
    if family.metric.name == _STATE_GAUGE:
        values = _one_state(values)
    family.metric.samples = [
        Sample(name, dict(labels), value, None, family.exemplars.get((name, labels)))
        for (name, labels), value in _together(values)
    ]
    return family.metric


def _together(values: Mapping[_Key, float]) -> Sequence[tuple[_Key, float]]:
    """The samples of a histogram's child have to stand together, also where only one worker has it."""
    groups: dict[tuple[tuple[str, str], ...], list[tuple[_Key, float]]] = {}
    for (name, labels), value in values.items():
        group = tuple(label for label in labels if label[0] != "le")
        groups.setdefault(group, []).append(((name, labels), value))
    return [sample for group in groups.values() for sample in group]


def _one_state(values: Mapping[_Key, float]) -> dict[_Key, float]:
    """Where workers see a replica in several states, the worst of them is the one it is in."""
    seen: dict[tuple[tuple[str, str], ...], set[str]] = {}
    for (_, labels), value in values.items():
        if value:
            seen.setdefault(_without_state(labels), set()).add(dict(labels)[_STATE_LABEL])
    worst = {which: min(states, key=_WORST_FIRST.index) for which, states in seen.items()}
    return {key: float(worst.get(_without_state(key[1])) == dict(key[1])[_STATE_LABEL]) for key in values}


def _without_state(labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple(label for label in labels if label[0] != _STATE_LABEL)


class _Registry(Collector):
    """What an encoder takes for a registry."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
