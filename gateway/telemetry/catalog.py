"""Every metric of the gateway, in one place. ``docs/reference/metrics.md`` is tested against it."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Bounds of the histograms of whole requests."""
_STAGE_SECONDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)


class MetricCatalog:
    """The metrics, on a registry of their own. Label values are bounded: configured names and closed sets only."""

    def __init__(self) -> None:
        # One more series per counter that no dashboard reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "gateway_requests",
            "Requests answered, by the status the client got (499: the client left first).",
            ("model", "tenant", "endpoint", "status"),
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "gateway_prompt_tokens",
            "Prompt tokens that replicas took in, as the engine counts them.",
            ("model", "tenant"),
            registry=registry,
        )
        self.cached_tokens = Counter(
            "gateway_cached_tokens",
            "Prompt tokens served from a replica's cache. confirmed: the engine reported them; predicted: the index"
            " expected them.",
            ("model", "tenant", "evidence"),
            registry=registry,
        )
        self.missed_tokens = Counter(
            "gateway_missed_tokens",
            "Prompt tokens that had to be computed, by reason. Together with those reused they are"
            " gateway_prompt_tokens_total, a moment later.",
            ("model", "tenant", "reason"),
            registry=registry,
        )
        self.explain_skipped = Counter(
            "gateway_explain_skipped",
            "Requests counted without looking at their text, because the explanation was behind or not there.",
            registry=registry,
        )
        self.canonical_edits = Counter(
            "gateway_canonical_edits",
            "Places in prompts that rules of canonicalization changed (mode apply) or would have changed (observe).",
            ("rule", "mode"),
            registry=registry,
        )
        self.canonical_saved_tokens = Counter(
            "gateway_canonical_saved_tokens",
            "Prompt tokens reused because of a rule (apply), or that would have been with it (observe). all: with all"
            " observed rules together.",
            ("rule", "mode"),
            registry=registry,
        )
        self.canonical_lost_tokens = Counter(
            "gateway_canonical_lost_tokens",
            "Prompt tokens computed again because of a rule (apply), or that would have been with it (observe).",
            ("rule", "mode"),
            registry=registry,
        )
        self.ttft_seconds = Histogram(
            "gateway_ttft_seconds",
            "Seconds from a streaming request's arrival to the first byte of its answer, by decision.",
            ("model", "decision"),
            buckets=REQUEST_SECONDS,
            registry=registry,
        )
        self.request_seconds = Histogram(
            "gateway_request_seconds",
            "Seconds from a request's arrival to the end of its answer.",
            ("model", "endpoint"),
            buckets=REQUEST_SECONDS,
            registry=registry,
        )
        self.overhead_seconds = Histogram(
            "gateway_overhead_seconds",
            "Seconds a request spent in each room of the gateway; settle is after the answer.",
            ("stage",),
            buckets=_STAGE_SECONDS,
            registry=registry,
        )
        self.queue_requests = Gauge(
            "gateway_queue_requests",
            "Requests that wait in the gateway because no replica has time for them.",
            ("model",),
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "gateway_queue_seconds",
            "Seconds that requests waited in the gateway, of those that had to.",
            ("model",),
            buckets=REQUEST_SECONDS,
            registry=registry,
        )
        self.shed = Counter(
            "gateway_shed",
            "Requests answered with 429 because no replica had time for them: full (too many waited), too_long (it"
            " waited too long).",
            ("model", "tenant", "reason"),
            registry=registry,
        )
        self.replica_up = Gauge(
            "gateway_replica_up", "1 while a replica's checks pass, else 0.", ("model", "replica"), registry=registry
        )
        self.replica_state = Gauge(
            "gateway_replica_state",
            "1 for the state a replica is in, 0 for the others: starting, ready, suspect, ejected, draining.",
            ("model", "replica", "state"),
            registry=registry,
        )
        self.replica_inflight = Gauge(
            "gateway_replica_inflight",
            "Requests sent to a replica and not yet answered in full.",
            ("replica",),
            registry=registry,
        )
        self.index_blocks = Gauge(
            "gateway_index_blocks",
            "KV-cache blocks a replica is believed to hold, by where that belief comes from: events (the engine tells),"
            " predicted (from what was sent), blind (predicted, and nothing confirms it).",
            ("replica", "source"),
            registry=registry,
        )
        self.kv_events = Counter(
            "gateway_kv_events",
            "KV events from a replica: stored, removed, cleared, or unknown (skipped).",
            ("replica", "type"),
            registry=registry,
        )
        self.kv_event_gaps = Counter(
            "gateway_kv_event_gaps",
            "Times that batches of a replica's KV events were missing.",
            ("replica",),
            registry=registry,
        )
        self.prediction_error_tokens = Counter(
            "gateway_prediction_error_tokens",
            "Prompt tokens by which the prediction differed from the engine's report. over: predicted and not reused;"
            " under: reused and not predicted.",
            ("replica", "direction"),
            registry=registry,
        )
        self.token_parity = Counter(
            "gateway_token_parity",
            "Answers whose prompt token count, as the engine reports it, equals the gateway's (equal) or not"
            " (different).",
            ("model", "result"),
            registry=registry,
        )
        self.encodings = Counter(
            "gateway_encodings",
            "Prompts by where their token ids came from: local, engine_render, engine_tokenize, or text (no tokens:"
            " routed by the text).",
            ("model", "source"),
            registry=registry,
        )
        self.failovers = Counter(
            "gateway_failovers",
            "Requests that a replica failed, by when: connect (no connection), first_byte and stream (it broke off,"
            " fell silent or went down before or after its answer began), status (502, 503, 504), busy (429). All but"
            " those of stream are sent to another replica, as far as there is one and relay.retries goes; those of"
            " stream with relay.resume.",
            ("stage",),
            registry=registry,
        )
        self.resumed_streams = Counter(
            "gateway_resumed_streams",
            "Streams that went on after their replica had failed, by how they ended: whole, or broken (with an error"
            " event after all).",
            ("result",),
            registry=registry,
        )
        self.saved_prefill_seconds = Counter(
            "gateway_saved_prefill_seconds",
            "Prefill seconds that cached tokens made unnecessary, by the replicas' learned rates.",
            ("model",),
            registry=registry,
        )
        self.resets = Counter(
            "gateway_resets",
            "Lives of prefix spaces that ended, by cause.",
            ("cause",),
            registry=registry,
        )
        self.peers = Gauge(
            "gateway_peers",
            "Other gateways with the same shared state that are heard at present.",
            registry=registry,
        )
        self.state_errors = Counter(
            "gateway_state_errors",
            "Times that something the gateway keeps or sends could not be written or read: audit (the audit log),"
            " spaces_file (the file of prefix spaces), tracing (traces for the collector), redis (what gateways"
            " share).",
            ("backend",),
            registry=registry,
        )
        self.discovery_errors = Counter(
            "gateway_discovery_errors",
            "Times that a source of replicas (dns, kubernetes, file) did not answer, or not so that it could be"
            " understood. The replicas stay as they are.",
            ("model", "source"),
            registry=registry,
        )
        self.worker_restarts = Counter(
            "gateway_worker_restarts",
            "Times that a worker of several (serve --workers) was lost and had to be started again.",
            registry=registry,
        )
        self.config_reloads = Counter(
            "gateway_config_reloads",
            "Times the configuration was read again. taken: it is in force, but for what needs a restart; refused: a"
            " mistake, the one before stays in force.",
            ("result",),
            registry=registry,
        )
        self.config_last_reload_successful = Gauge(
            "gateway_config_last_reload_successful",
            "1 while the configuration in force is the one that was read last, 0 while that one was refused.",
            registry=registry,
        )
        self.personal_data_skipped = Counter(
            "gateway_personal_data_skipped",
            "Requests not searched for personal data after they were answered: too many were waiting, or their text was"
            " too long.",
            ("tenant",),
            registry=registry,
        )
        self.personal_data_findings = Counter(
            "gateway_personal_data_findings",
            "Pieces of personal data found in the leading messages of requests; shared: in a part that several"
            " conversations have in common.",
            ("tenant", "kind", "shared"),
            registry=registry,
        )
        self.warm_requests = Counter(
            "gateway_warm_requests",
            "Declared prefixes sent to fill a replica's cache: ok or failed. They count nowhere else.",
            ("model", "result"),
            registry=registry,
        )
