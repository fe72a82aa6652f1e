"""Updates the metrics from settlements and events."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from gateway.core.canonical import ALL_RULES, PersonalFinding, RuleMode
from gateway.core.ids import ModelId, ReplicaId
from gateway.core.kv_events import IndexSource, Unmatched
from gateway.core.outcome import Ending, FailureStage
from gateway.core.reasons import Reason
from gateway.core.replica_state import ReplicaState
from gateway.core.request import ChatRequest
from gateway.core.settlement import Refusal, Settlement
from gateway.core.space import ResetCause, SpaceEnd
from gateway.core.tenant import Tenant
from gateway.telemetry.catalog import MetricCatalog
from gateway.telemetry.collectors import Counter, Labels, RequestValue

_BATCH = 16
"""Settlements that are counted together at most. More save little CPU, and delay the request that comes behind them."""

_UNKNOWN = "unknown"
_WAITING = "queue"
_UNPLACED = "none"
_RELOAD_RESULTS = ("taken", "refused")
_RESUMED = ("whole", "broken")
_BACKENDS = ("audit", "spaces_file", "history")
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
    ``QueueObserver`` that counts, also warm-up.

    Args:
        catalog: The metrics.
    """

    def __init__(self, catalog: MetricCatalog) -> None:
        self._catalog = catalog
        self._settled: list[Settlement] = []
        self._queue_requests = cache(catalog.queue_requests.labels)
        catalog.registry.count_waiting = self.count_settled
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
                metric.inc(value, by=0)

    def on_settled(self, settlement: Settlement) -> None:
        """See ``Observer``. It is counted with others: in a loop that costs half as much, and not in a request."""
        self._settled.append(settlement)
        if len(self._settled) >= _BATCH:
            self.count_settled()

    def count_settled(self) -> None:
        """Count what has settled since the last time."""
        c, settled, self._settled = self._catalog, self._settled, []
        requests, encodings, parity = c.requests.values, c.encodings.values, c.token_parity.values
        request_seconds: defaultdict[Labels, list[RequestValue]] = defaultdict(list)
        ttft_seconds: defaultdict[Labels, list[RequestValue]] = defaultdict(list)
        stages: defaultdict[str, list[float]] = defaultdict(list)
        for s in settled:
            if s.warming:
                # No client waited for it, and its prompt was expected not to be cached.
                c.warm_requests.inc(s.model, "ok" if s.ending is Ending.COMPLETE and s.status == 200 else "failed")
                continue
            model, decision, application = s.model, s.decision, s.caller.application
            requests[model, s.caller.tenant.label, s.endpoint, s.status] += 1
            if s.has_prompt:
                encodings[model, s.token_source] += 1
            kind = _UNPLACED if decision is None else decision.kind
            request_seconds[model, s.endpoint, kind].append((s.seconds, s.request_id, s.ended_at))
            for stage, seconds in s.stages:
                stages[stage].append(seconds)
            if s.dialect:
                c.translated_requests.inc(model, s.dialect, s.status)
            if application is not None:
                c.application_requests.inc(application.counted_as, s.status)
            if s.failures or s.resumed:
                self._count_failures(s)
            if s.parity is not None:
                parity[model, "equal" if s.parity else "different"] += 1
            if s.ttft_seconds is not None and decision is not None:
                ttft_seconds[model, kind].append((s.ttft_seconds, s.request_id, s.ended_at))
            # A replica has computed the prompt, even if the client disconnected during the answer.
            if s.status == 200 and (s.ending is Ending.COMPLETE or s.ttft_seconds is not None) and s.has_prompt:
                self._count_tokens(s)
        stages.pop(_WAITING, None)  # waiting for replicas is no overhead; see ``on_queued``
        for stage, values in stages.items():
            c.overhead_seconds.series[stage,].observe_all(values)
        for histogram, observed in ((c.request_seconds, request_seconds), (c.ttft_seconds, ttft_seconds)):
            for labels, of_requests in observed.items():
                histogram.series[labels].observe_requests(of_requests)

    def _count_failures(self, settlement: Settlement) -> None:
        for failed in settlement.failures:
            self._catalog.failovers.inc(failed)
        if settlement.resumed:
            self._catalog.resumed_streams.inc(_RESUMED[settlement.ending is not Ending.COMPLETE])

    def _count_tokens(self, settlement: Settlement) -> None:
        """Count the tokens of a prompt that a replica has computed."""
        c, s, application = self._catalog, settlement, settlement.caller.application
        tenant = s.caller.tenant.label
        if application is not None:
            c.application_tokens.inc(application.counted_as, "prompt", by=s.prompt_tokens)
            c.application_tokens.inc(application.counted_as, "cached", by=s.cached_tokens or 0)
        if s.decision is None:
            return
        c.prompt_tokens.values[s.model, tenant] += s.prompt_tokens
        c.cached_tokens.values[s.model, tenant, "predicted"] += s.predicted_tokens
        if s.cached_tokens is None:
            return
        c.cached_tokens.values[s.model, tenant, "confirmed"] += s.cached_tokens
        c.saved_prefill_seconds.values[s.model,] += s.saved_prefill_seconds
        error = s.cached_tokens - s.predicted_tokens
        if error:
            c.prediction_error_tokens.values[s.decision.target.replica, "under" if error > 0 else "over"] += abs(error)

    def on_warmed(self, model: ModelId, cause: str, tokens: int, gpu_seconds: float) -> None:
        """A warm-up request has computed so many prompt tokens in so many GPU seconds."""
        self._catalog.warm_prefill_tokens.inc(model, cause, by=tokens)
        self._catalog.warm_gpu_seconds.inc(model, cause, by=gpu_seconds)

    def on_warmth_used(self, model: ModelId, cause: str, tokens: int, gpu_seconds: float) -> None:
        """A client's request was the first to reuse so many tokens that a warm-up has computed."""
        self._catalog.warm_saved_tokens.inc(model, cause, by=tokens)
        self._catalog.warm_saved_gpu_seconds.inc(model, cause, by=gpu_seconds)

    def on_warm_left_out(self, model: ModelId, reason: str) -> None:
        """A warm-up request was not sent: ``busy``, ``budget`` or ``gone``."""
        self._catalog.warm_left_out.inc(model, reason)

    def on_kv_events(self, replica: ReplicaId, kind: str, count: int) -> None:
        """See ``EventObserver``."""
        self._catalog.kv_events.inc(replica, kind, by=count)

    def on_kv_gap(self, replica: ReplicaId) -> None:
        """See ``EventObserver``."""
        self._catalog.kv_event_gaps.inc(replica)

    def on_kv_unmatched(self, replica: ReplicaId, kind: str, blocks: int) -> None:
        """See ``EventObserver``."""
        self._catalog.kv_unmatched_blocks.inc(replica, kind, by=blocks)

    def on_refused(self, refusal: Refusal) -> None:
        """See ``Observer``. The model is unchecked client input, so it is not used as a label value."""
        tenant = refusal.caller.tenant.label if refusal.caller else _UNKNOWN
        labels = (_UNKNOWN, tenant, refusal.endpoint, refusal.status)
        self._catalog.requests.inc(*labels)
        if refusal.dialect:
            self._catalog.translated_requests.inc(_UNKNOWN, refusal.dialect, refusal.status)

    def on_space_end(self, end: SpaceEnd) -> None:
        """See ``SpaceObserver``."""
        self._catalog.resets.inc(end.cause)

    def on_missed(self, model: str, tenant: str, reason: Reason, tokens: int) -> None:
        """See ``ExplainObserver``."""
        self._catalog.missed_tokens.inc(model, tenant, reason, by=tokens)

    def on_explain_skipped(self, count: int) -> None:
        """See ``ExplainObserver``."""
        self._catalog.explain_skipped.inc(by=count)

    def on_canonical(self, rule: str, mode: RuleMode, edits: float, saved: float, lost: float) -> None:
        """See ``ExplainObserver``. Edits of ``all`` are not counted: they are the sum of those of each rule."""
        c = self._catalog
        for metric, figure in (
            (c.canonical_edits, 0 if rule == ALL_RULES else edits),
            (c.canonical_saved_tokens, saved),
            (c.canonical_lost_tokens, lost),
        ):
            if figure:
                metric.inc(rule, mode, by=figure)

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
        self._catalog.personal_data_findings.inc(*labels)

    def on_personal_data_skipped(self, tenant: Tenant) -> None:
        """See ``PersonalDataObserver``."""
        self._catalog.personal_data_skipped.inc(tenant.label)

    def on_detector_failed(self, tenant: Tenant, *, refused: bool) -> None:
        """See ``PersonalDataObserver``."""
        self._catalog.detector_failures.inc(tenant.label, "refused" if refused else "patterns_only")

    def on_queue_length(self, model: ModelId, requests: int) -> None:
        """See ``QueueObserver``."""
        self._queue_requests(model).set(requests)

    def on_queued(self, model: ModelId, seconds: float) -> None:
        """See ``QueueObserver``."""
        self._catalog.queue_seconds.series[model,].observe(seconds)

    def on_shed(self, model: ModelId, tenant: Tenant, reason: str) -> None:
        """See ``QueueObserver``."""
        self._catalog.shed.inc(model, tenant.label, reason)

    def on_reload(self, *, taken: bool) -> None:
        """Count a reload of the configuration."""
        self._catalog.config_reloads.inc("taken" if taken else "refused")
        self._catalog.config_last_reload_successful.set(taken)

    def follow_discovery(self, model: ModelId, source: str) -> None:
        """Initialize the error counter of a model's discovery with 0."""
        self._catalog.discovery_errors.inc(model, source, by=0)

    def on_discovery_error(self, model: ModelId, source: str) -> None:
        """Count a failure of a source of replicas."""
        self._catalog.discovery_errors.inc(model, source)

    def forget_replica(self, replica: ReplicaId) -> None:
        """Remove all series of a replica that has left."""
        self.count_settled()
        for metric in vars(self._catalog).values():
            if isinstance(metric, Counter) and "replica" in metric.label_names:
                metric.remove("replica", replica)

    def on_state_error(self, backend: str) -> None:
        """Count a failure to write or read state (``audit``, ``spaces_file``, ``history``). Thread-safe."""
        self._catalog.state_errors.inc(backend)

    def on_peers(self, peers: int) -> None:
        """Set the number of connected peers."""
        self._catalog.peers.set(peers)


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
        catalog.kv_event_gaps.inc(state.replica, by=0)
        for kind in Unmatched._fields:
            catalog.kv_unmatched_blocks.inc(state.replica, kind, by=0)
        catalog.queue_requests.labels(state.model)
        for direction in _DIRECTIONS:
            catalog.prediction_error_tokens.inc(state.replica, direction, by=0)
        for result in _PARITY_RESULTS:
            catalog.token_parity.inc(state.model, result, by=0)
