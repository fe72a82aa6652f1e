"""All metrics of the gateway. Tests compare ``docs/reference/metrics.md`` with it."""

from prometheus_client import Gauge

from gateway.telemetry.collectors import Counter, Histogram, MetricRegistry

REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Bucket bounds of histograms of whole requests."""
_STAGE_SECONDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)


class MetricCatalog:
    """The metrics, on a registry of their own. Label values are bounded: configured names and closed sets only."""

    def __init__(self) -> None:
        registry = self.registry = MetricRegistry()
        self.requests = Counter(
            "gateway_requests",
            "Requests answered, by the status sent to the client (499: the client disconnected first).",
            ("model", "tenant", "endpoint", "status"),
            registry=registry,
        )
        self.translated_requests = Counter(
            "gateway_translated_requests",
            "Requests that are translated to chat requests, by the API called and the status sent to the client.",
            ("model", "dialect", "status"),
            registry=registry,
        )
        self.application_requests = Counter(
            "gateway_application_requests",
            "Requests that name an application, by the status sent to the client. (other): applications that are not"
            " registered.",
            ("prompt", "status"),
            registry=registry,
        )
        self.application_tokens = Counter(
            "gateway_application_tokens",
            "Prompt tokens of requests that name an application, as counted by the engine: all of them (prompt), and"
            " those of them that it reported as cached (cached).",
            ("prompt", "part"),
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "gateway_prompt_tokens",
            "Prompt tokens processed by replicas, as counted by the engine.",
            ("model", "tenant"),
            registry=registry,
        )
        self.cached_tokens = Counter(
            "gateway_cached_tokens",
            "Prompt tokens served from a replica's cache. confirmed: reported by the engine; predicted: expected by the"
            " index.",
            ("model", "tenant", "evidence"),
            registry=registry,
        )
        self.missed_tokens = Counter(
            "gateway_missed_tokens",
            "Prompt tokens that had to be computed, by reason. Their sum with the reused tokens follows"
            " gateway_prompt_tokens_total with a short delay.",
            ("model", "tenant", "reason"),
            registry=registry,
        )
        self.explain_skipped = Counter(
            "gateway_explain_skipped",
            "Requests counted without analysis of their text: the explain process was overloaded or down, or had used "
            "its share of the CPU time.",
            registry=registry,
        )
        self.canonical_edits = Counter(
            "gateway_canonical_edits",
            "Edits of prompts that canonicalization rules made (mode apply) or would have made (observe).",
            ("rule", "mode"),
            registry=registry,
        )
        self.canonical_saved_tokens = Counter(
            "gateway_canonical_saved_tokens",
            "Prompt tokens reused because of a rule (apply), or that would be reused with it (observe). all: with all"
            " observed rules together.",
            ("rule", "mode"),
            registry=registry,
        )
        self.canonical_lost_tokens = Counter(
            "gateway_canonical_lost_tokens",
            "Prompt tokens computed again because of a rule (apply), or that would be with it (observe).",
            ("rule", "mode"),
            registry=registry,
        )
        self.ttft_seconds = Histogram(
            "gateway_ttft_seconds",
            "Seconds from a streaming request's arrival to the first byte of its answer, by decision.",
            ("model", "decision"),
            bounds=REQUEST_SECONDS,
            registry=registry,
        )
        self.request_seconds = Histogram(
            "gateway_request_seconds",
            "Seconds from a request's arrival to the end of its answer, by decision (none: no replica could take it).",
            ("model", "endpoint", "decision"),
            bounds=REQUEST_SECONDS,
            registry=registry,
        )
        self.overhead_seconds = Histogram(
            "gateway_overhead_seconds",
            "Seconds a request spent in each stage of the gateway; settle is after the answer.",
            ("stage",),
            bounds=_STAGE_SECONDS,
            registry=registry,
        )
        self.queue_requests = Gauge(
            "gateway_queue_requests",
            "Requests queued in the gateway because all replicas are at capacity.",
            ("model",),
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "gateway_queue_seconds",
            "Seconds that queued requests waited in the gateway.",
            ("model",),
            bounds=REQUEST_SECONDS,
            registry=registry,
        )
        self.shed = Counter(
            "gateway_shed",
            "Requests answered with 429 because all replicas were at capacity: full (the queue was full), too_long (it"
            " waited too long).",
            ("model", "tenant", "reason"),
            registry=registry,
        )
        self.replica_up = Gauge(
            "gateway_replica_up",
            "1 while a replica's health checks pass, else 0.",
            ("model", "replica"),
            registry=registry,
        )
        self.replica_state = Gauge(
            "gateway_replica_state",
            "1 for a replica's state, 0 for others: starting, ready, suspect, stuck, ejected, sleeping, draining.",
            ("model", "replica", "state"),
            registry=registry,
        )
        self.replica_inflight = Gauge(
            "gateway_replica_inflight",
            "Requests in flight at a replica.",
            ("replica",),
            registry=registry,
        )
        self.index_blocks = Gauge(
            "gateway_index_blocks",
            "KV-cache blocks that a replica holds according to the index, by source: events (KV events of the engine),"
            " predicted (from requests sent), blind (predicted, without confirmation).",
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
            "Gaps in the sequence of a replica's KV events.",
            ("replica",),
            registry=registry,
        )
        self.kv_unmatched_blocks = Counter(
            "gateway_kv_unmatched_blocks",
            "KV-cache blocks in a replica's events that match nothing: unfit (stored, and no blocks of this cache);"
            " where all blocks should be known, unplaced (stored behind an unknown one) and removed (unknown).",
            ("replica", "kind"),
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
            "Answers by whether the prompt token count reported by the engine equals the gateway's (equal) or not"
            " (different).",
            ("model", "result"),
            registry=registry,
        )
        self.encodings = Counter(
            "gateway_encodings",
            "Prompts by source of their token ids: local, engine_render, engine_tokenize, or text (no token ids:"
            " routed by text).",
            ("model", "source"),
            registry=registry,
        )
        self.failovers = Counter(
            "gateway_failovers",
            "Failed attempts at a replica, by stage: connect (no connection), first_byte and stream (disconnect,"
            " timeout or failure before or after the first content), status (502, 503, 504), busy (429), refused (the"
            " gateway's key or path, a redirect, a model that is not loaded). All stages but stream are retried at"
            " another replica, within relay.retries; stream with relay.resume.",
            ("stage",),
            registry=registry,
        )
        self.resumed_streams = Counter(
            "gateway_resumed_streams",
            "Streams resumed after a failure of their replica, by result: whole, or broken (ended by an error event).",
            ("result",),
            registry=registry,
        )
        self.saved_prefill_seconds = Counter(
            "gateway_saved_prefill_seconds",
            "Prefill seconds saved by cached tokens, by the replicas' learned rates.",
            ("model",),
            registry=registry,
        )
        self.resets = Counter(
            "gateway_resets",
            "Ended epochs of prefix spaces, by cause.",
            ("cause",),
            registry=registry,
        )
        self.peers = Gauge(
            "gateway_peers",
            "Connected gateways with the same shared state.",
            registry=registry,
        )
        self.state_errors = Counter(
            "gateway_state_errors",
            "Failures to write, read or send state: audit (the audit log), spaces_file (the file of prefix spaces),"
            " tracing (traces for the collector), redis (state shared by gateways).",
            ("backend",),
            registry=registry,
        )
        self.discovery_errors = Counter(
            "gateway_discovery_errors",
            "Failures of a source of replicas (dns, kubernetes, file): no answer or an invalid one. The replicas do not"
            " change.",
            ("model", "source"),
            registry=registry,
        )
        self.worker_restarts = Counter(
            "gateway_worker_restarts",
            "Restarts of crashed worker processes (serve --workers).",
            registry=registry,
        )
        self.config_reloads = Counter(
            "gateway_config_reloads",
            "Reloads of the configuration. taken: applied, except for settings that need a restart; refused: invalid,"
            " the previous one stays in force.",
            ("result",),
            registry=registry,
        )
        self.config_last_reload_successful = Gauge(
            "gateway_config_last_reload_successful",
            "1 if the last reload of the configuration was applied, 0 if it was refused.",
            registry=registry,
        )
        self.personal_data_skipped = Counter(
            "gateway_personal_data_skipped",
            "Answered requests not searched for personal data, or not completely: the queue was full, their text too"
            " long, or the detector gave no answer.",
            ("tenant",),
            registry=registry,
        )
        self.detector_failures = Counter(
            "gateway_personal_data_detector_failures",
            "Requests to be masked or blocked for which the detector gave no valid answer, or was not asked after"
            " failures. refused: 503; patterns_only: sent with what the patterns found.",
            ("tenant", "result"),
            registry=registry,
        )
        self.personal_data_findings = Counter(
            "gateway_personal_data_findings",
            "Findings of personal data in requests; shared: in a prefix that several conversations share.",
            ("tenant", "kind", "shared"),
            registry=registry,
        )
        self.warm_requests = Counter(
            "gateway_warm_requests",
            "Warm-up requests with declared prefixes: ok or failed. No other metric counts them.",
            ("model", "result"),
            registry=registry,
        )
        self.warm_prefill_tokens = Counter(
            "gateway_warm_prefill_tokens",
            "Prompt tokens that warm-up requests have computed, by what caused them.",
            ("model", "cause"),
            registry=registry,
        )
        self.warm_gpu_seconds = Counter(
            "gateway_warm_gpu_seconds",
            "GPU seconds that warm-up requests have taken, by the learned prefill rates.",
            ("model", "cause"),
            registry=registry,
        )
        self.warm_saved_tokens = Counter(
            "gateway_warm_saved_tokens",
            "Prompt tokens that clients' requests found cached by warm-up: the first use of each computed block.",
            ("model", "cause"),
            registry=registry,
        )
        self.warm_saved_gpu_seconds = Counter(
            "gateway_warm_saved_gpu_seconds",
            "GPU seconds that computing these tokens would have taken, by the learned prefill rates.",
            ("model", "cause"),
            registry=registry,
        )
        self.warm_left_out = Counter(
            "gateway_warm_left_out",
            "Requests of repeated warm-up that were not sent: busy, budget or gone.",
            ("model", "reason"),
            registry=registry,
        )
