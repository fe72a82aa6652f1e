"""Updates the metrics from settlements and events.

Histograms carry exemplars with request ids. Setting an exemplar costs more than counting, and a scrape reads only one
per bucket, so a bucket's exemplar is replaced at most once per second.
"""

import functools
import re
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import Counter, Histogram
from prometheus_client.metrics import MetricWrapperBase

from gateway.core.canonical import ALL_RULES, PersonalFinding, RuleMode
from gateway.core.ids import ModelId, ReplicaId
from gateway.core.kv_events import IndexSource
from gateway.core.outcome import Ending, FailureStage
from gateway.core.reasons import Reason
from gateway.core.replica_state import ReplicaState
from gateway.core.request import ChatRequest
from gateway.core.settlement import Refusal, Settlement
from gateway.core.space import ResetCause, SpaceEnd
from gateway.core.tenant import Tenant
from gateway.telemetry.catalog import REQUEST_SECONDS, MetricCatalog

_LABEL = "request_id"
_NAMEABLE = re.compile(rf"[A-Za-z0-9._:/+=@~-]{{1,{128 - len(_LABEL)}}}")
"""OpenMetrics allows 128 characters for an exemplar's labels including names, and an invalid one breaks the whole
scrape. Clients choose the ids, and not every parser accepts escaped quotes, so such ids are not used."""
_INTERVAL_SECONDS = 1.0


class ExemplarHistogram:
    """One labelled child of a histogram.

    Args:
        child: The child.
        bounds: Upper bounds of its buckets, without +Inf.
    """

    def __init__(self, child: Histogram, bounds: Sequence[float]) -> None:
        self._child = child
        self._bounds = bounds
        self._due = [0.0] * (len(bounds) + 1)

    def observe(self, value: float, request_id: str) -> None:
        """Count a value. Request ids that are not valid in an exemplar are left out."""
        bucket = bisect_left(self._bounds, value)
        now = time.monotonic()
        if now < self._due[bucket] or not _NAMEABLE.fullmatch(request_id):
            self._child.observe(value)
            return
        self._due[bucket] = now + _INTERVAL_SECONDS
        self._child.observe(value, {_LABEL: request_id})


_UNKNOWN = "unknown"
_WAITING = "queue"
_RELOAD_RESULTS = ("taken", "refused")
_RESUMED = ("whole", "broken")
_BACKENDS = ("audit", "spaces_file")
_PARITY_RESULTS = ("equal", "different")
_DIRECTIONS = ("over", "under")


@dataclass(frozen=True, slots=True)
class ReplicaGauges:
    """A replica's current state for the gauges."""

    replica: ReplicaId
    model: ModelId
    state: ReplicaState
    up: bool
    requests: int
    index_blocks: int
    index_source: IndexSource


class MetricsObserver:
    """An ``Observer``, ``EventObserver``, ``SpaceObserver``, ``PersonalDataObserver``, ``ExplainObserver`` and
    ``QueueObserver`` that counts.

    Args:
        catalog: The metrics.
    """

    def __init__(self, catalog: MetricCatalog) -> None:
        self._catalog = catalog
        # Looking up a labelled child costs more than counting; there are few label values, so children are cached.
        self._counter = functools.cache(_counter_child)
        self._histogram = functools.cache(_histogram_child)
        self._named = functools.cache(_exemplar_child)
        catalog.config_last_reload_successful.set(1)
        # Prometheus sees no increase in a series that begins with 1, so counters used in alerts are initialized with 0.
        for metric, values in (
            (catalog.failovers, FailureStage),
            (catalog.resumed_streams, _RESUMED),
            (catalog.config_reloads, _RELOAD_RESULTS),
            (catalog.state_errors, _BACKENDS),
            (catalog.resets, ResetCause),
        ):
            for value in values:
                self._counter(metric, str(value))

    def on_settled(self, settlement: Settlement) -> None:
        """See ``Observer``."""
        c, s, count, time = self._catalog, settlement, self._counter, self._histogram
        if s.warming:
            # No client waited for it, and its prompt was expected not to be cached.
            count(c.warm_requests, s.model, "ok" if _answered(s) else "failed").inc()
            return
        tenant = s.caller.tenant.label
        count(c.requests, s.model, tenant, str(s.endpoint), str(s.status)).inc()
        count(c.encodings, s.model, s.token_source).inc()
        self._named(c.request_seconds, s.model, str(s.endpoint)).observe(s.seconds, s.request_id)
        for stage, seconds in s.stages:
            if stage != _WAITING:  # waiting for replicas is no overhead; see ``on_queued``
                time(c.overhead_seconds, stage).observe(seconds)
        for stage in s.failures:
            count(c.failovers, str(stage)).inc()
        if s.resumed:
            count(c.resumed_streams, _RESUMED[s.ending is not Ending.COMPLETE]).inc()
        if s.parity is not None:
            count(c.token_parity, s.model, "equal" if s.parity else "different").inc()
        if s.decision is None:
            return
        if s.ttft_seconds is not None:
            self._named(c.ttft_seconds, s.model, s.decision.kind).observe(s.ttft_seconds, s.request_id)
        if not _computed(s):
            return
        count(c.prompt_tokens, s.model, tenant).inc(s.prompt_tokens)
        count(c.cached_tokens, s.model, tenant, "predicted").inc(s.predicted_tokens)
        if s.cached_tokens is None:
            return
        count(c.cached_tokens, s.model, tenant, "confirmed").inc(s.cached_tokens)
        count(c.saved_prefill_seconds, s.model).inc(s.saved_prefill_seconds)
        error = s.cached_tokens - s.predicted_tokens
        if error:
            count(c.prediction_error_tokens, s.decision.replica, "under" if error > 0 else "over").inc(abs(error))

    def on_kv_events(self, replica: ReplicaId, kind: str, count: int) -> None:
        """See ``EventObserver``."""
        self._counter(self._catalog.kv_events, replica, kind).inc(count)

    def on_kv_gap(self, replica: ReplicaId) -> None:
        """See ``EventObserver``."""
        self._counter(self._catalog.kv_event_gaps, replica).inc()

    def on_refused(self, refusal: Refusal) -> None:
        """See ``Observer``. The model is unchecked client input, so it is not used as a label value."""
        tenant = refusal.caller.tenant.label if refusal.caller else _UNKNOWN
        labels = (_UNKNOWN, tenant, str(refusal.endpoint), str(refusal.status))
        self._counter(self._catalog.requests, *labels).inc()

    def on_space_end(self, end: SpaceEnd) -> None:
        """See ``SpaceObserver``."""
        self._counter(self._catalog.resets, str(end.cause)).inc()

    def on_missed(self, model: str, tenant: str, reason: Reason, tokens: int) -> None:
        """See ``ExplainObserver``."""
        self._counter(self._catalog.missed_tokens, model, tenant, str(reason)).inc(tokens)

    def on_explain_skipped(self, count: int) -> None:
        """See ``ExplainObserver``."""
        self._counter(self._catalog.explain_skipped).inc(count)

    def on_canonical(self, rule: str, mode: RuleMode, edits: int, saved: int, lost: int) -> None:
        """See ``ExplainObserver``. Edits of ``all`` are not counted: they are the sum of those of each rule."""
        c = self._catalog
        for metric, figure in (
            (c.canonical_edits, 0 if rule == ALL_RULES else edits),
            (c.canonical_saved_tokens, saved),
            (c.canonical_lost_tokens, lost),
        ):
            if figure:
                self._counter(metric, rule, mode.value).inc(figure)

    def on_personal_data(
        self,
        request: ChatRequest,
        space: str,  # noqa: ARG002
        finding: PersonalFinding,
        *,
        shared: bool,
        new: bool,  # noqa: ARG002
    ) -> None:
        """See ``PersonalDataObserver``."""
        labels = (request.caller.tenant.label, finding.kind, "true" if shared else "false")
        self._counter(self._catalog.personal_data_findings, *labels).inc()

    def on_personal_data_skipped(self, tenant: Tenant) -> None:
        """See ``PersonalDataObserver``."""
        self._counter(self._catalog.personal_data_skipped, tenant.label).inc()

    def on_queue_length(self, model: ModelId, requests: int) -> None:
        """See ``QueueObserver``."""
        self._catalog.queue_requests.labels(model).set(requests)

    def on_queued(self, model: ModelId, seconds: float) -> None:
        """See ``QueueObserver``."""
        self._histogram(self._catalog.queue_seconds, model).observe(seconds)

    def on_shed(self, model: ModelId, tenant: Tenant, reason: str) -> None:
        """See ``QueueObserver``."""
        self._counter(self._catalog.shed, model, tenant.label, reason).inc()

    def on_reload(self, *, taken: bool) -> None:
        """Count a reload of the configuration."""
        self._counter(self._catalog.config_reloads, "taken" if taken else "refused").inc()
        self._catalog.config_last_reload_successful.set(taken)

    def follow_discovery(self, model: ModelId, source: str) -> None:
        """Initialize the error counter of a model's discovery with 0."""
        self._counter(self._catalog.discovery_errors, model, source)

    def on_discovery_error(self, model: ModelId, source: str) -> None:
        """Count a failure of a source of replicas."""
        self._counter(self._catalog.discovery_errors, model, source).inc()

    def forget_replica(self, replica: ReplicaId) -> None:
        """Remove all series of a replica that has left."""
        for metric in vars(self._catalog).values():
            if isinstance(metric, MetricWrapperBase) and "replica" in metric._labelnames:
                metric.remove_by_labels({"replica": replica})
        self._counter.cache_clear()
        self._histogram.cache_clear()

    def on_state_error(self, backend: str) -> None:
        """Count a failure to write or read state (``audit``, ``spaces_file``). Thread-safe."""
        self._counter(self._catalog.state_errors, backend).inc()

    def on_peers(self, peers: int) -> None:
        """Set the number of connected peers."""
        self._catalog.peers.set(peers)


def _answered(settlement: Settlement) -> bool:
    return settlement.ending is Ending.COMPLETE and settlement.status == 200


def _computed(settlement: Settlement) -> bool:
    """Whether a replica has computed the prompt, even if the client disconnected during the answer."""
    return settlement.status == 200 and (_answered(settlement) or settlement.ttft_seconds is not None)


def _counter_child(metric: Counter, *labels: str) -> Counter:
    return metric.labels(*labels) if labels else metric


def _histogram_child(metric: Histogram, *labels: str) -> Histogram:
    return metric.labels(*labels)


def _exemplar_child(metric: Histogram, *labels: str) -> ExemplarHistogram:
    return ExemplarHistogram(metric.labels(*labels), REQUEST_SECONDS)


def set_replica_gauges(catalog: MetricCatalog, states: Iterable[ReplicaGauges]) -> None:
    """Update the replica gauges; called at each scrape.

    Also initializes counters of replicas and their models with 0, so that the first increase is visible.
    """
    for gauge in (catalog.replica_up, catalog.replica_state, catalog.replica_inflight, catalog.index_blocks):
        gauge.clear()
    for state in states:
        catalog.replica_up.labels(state.model, state.replica).set(state.up)
        for each in ReplicaState:
            catalog.replica_state.labels(state.model, state.replica, each).set(each is state.state)
        catalog.replica_inflight.labels(state.replica).set(state.requests)
        catalog.index_blocks.labels(state.replica, str(state.index_source)).set(state.index_blocks)
        catalog.kv_event_gaps.labels(state.replica)
        catalog.queue_requests.labels(state.model)
        for direction in _DIRECTIONS:
            catalog.prediction_error_tokens.labels(state.replica, direction)
        for result in _PARITY_RESULTS:
            catalog.token_parity.labels(state.model, result)
