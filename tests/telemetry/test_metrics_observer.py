"""What is counted under which labels."""

import weakref

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from records import ACME, refusal, request, settlement, space_end

from gateway.core.canonical import PersonalFinding, RuleMode
from gateway.core.decision import Decision, DecisionKind
from gateway.core.ids import ReplicaId, Target, TenantId
from gateway.core.outcome import Ending
from gateway.core.space import ResetCause
from gateway.core.tenant import Caller, Tenant
from gateway.telemetry import MetricCatalog, MetricsObserver

_AT_THE_START = {"gateway_config_last_reload_successful"}


class Counted:
    def __init__(self) -> None:
        self.catalog = MetricCatalog()
        self.observer = MetricsObserver(self.catalog)

    def value(self, name: str, **labels: str) -> float | None:
        return self.catalog.registry.get_sample_value(name, labels)

    def samples(self) -> dict[str, float]:
        """Every sample that is not 0, as the page shows it."""
        page = generate_latest(self.catalog.registry).decode()
        lines = [line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines if float(value)}

    def counts(self) -> dict[str, float]:
        """The same, without what is so from the start."""
        return {name: value for name, value in self.samples().items() if name not in _AT_THE_START}


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_tokens_and_requests_count_for_their_tenant(counted):
    counted.observer.on_settled(settlement())
    tenant = {"model": "m", "tenant": "acme"}
    chat = {"endpoint": "/v1/chat/completions", "status": "200"}
    assert counted.value("gateway_requests_total", **tenant, **chat) == 1
    assert counted.value("gateway_prompt_tokens_total", **tenant) == 100
    assert counted.value("gateway_cached_tokens_total", **tenant, evidence="confirmed") == 80
    assert counted.value("gateway_cached_tokens_total", **tenant, evidence="predicted") == 64


def test_tenants_that_stand_nowhere_share_a_label_value(counted):
    for name in ("one", "two"):
        counted.observer.on_settled(settlement(caller=Caller(Tenant(TenantId(name), label="other"))))
    assert counted.value("gateway_prompt_tokens_total", model="m", tenant="other") == 200
    assert not any('"one"' in sample or '"two"' in sample for sample in counted.samples())


def test_what_rules_bring_counts_by_rule_and_mode(counted):
    counted.observer.on_canonical("whitespace", RuleMode.OBSERVE, 3, 160, 0)
    counted.observer.on_canonical("whitespace", RuleMode.APPLY, 2, 0, 16)
    counted.observer.on_canonical("all", RuleMode.OBSERVE, 5, 320, 0)
    assert counted.counts() == {
        'gateway_canonical_edits_total{mode="observe",rule="whitespace"}': 3,
        'gateway_canonical_edits_total{mode="apply",rule="whitespace"}': 2,
        'gateway_canonical_saved_tokens_total{mode="observe",rule="whitespace"}': 160,
        'gateway_canonical_saved_tokens_total{mode="observe",rule="all"}': 320,
        'gateway_canonical_lost_tokens_total{mode="apply",rule="whitespace"}': 16,
    }


def test_refusals_count_for_their_tenant_if_it_is_known(counted):
    counted.observer.on_refused(refusal(429, "rate_limit_exceeded", ACME))
    counted.observer.on_refused(refusal(401, "invalid_api_key"))
    labels = {"model": "unknown", "endpoint": "/v1/chat/completions"}
    assert counted.value("gateway_requests_total", **labels, tenant="acme", status="429") == 1
    assert counted.value("gateway_requests_total", **labels, tenant="unknown", status="401") == 1


@pytest.mark.parametrize(
    ("status", "ending", "result"),
    [
        (200, Ending.COMPLETE, "ok"),
        (400, Ending.COMPLETE, "failed"),
        (200, Ending.BROKEN, "failed"),
        (503, None, "failed"),
    ],
)
def test_warming_counts_nowhere_else(counted, status, ending, result):
    decision = Decision(Target(ReplicaId("r0")), DecisionKind.COLD, 0, "expected_ttft", ()) if ending else None
    counted.observer.on_settled(
        settlement(warming=True, status=status, ending=ending, decision=decision, failed_attempts=2, parity=False)
    )
    assert counted.counts() == {f'gateway_warm_requests_total{{model="m",result="{result}"}}': 1}


def test_costs_and_savings_of_warm_up(counted):
    counted.observer.on_warmed("m", "reset", 1000, 0.5)
    counted.observer.on_warmth_used("m", "reset", 960, 0.4)
    counted.observer.on_warm_left_out("m", "budget")
    labels = {"model": "m", "cause": "reset"}
    assert counted.value("gateway_warm_prefill_tokens_total", **labels) == 1000
    assert counted.value("gateway_warm_gpu_seconds_total", **labels) == 0.5
    assert counted.value("gateway_warm_saved_tokens_total", **labels) == 960
    assert counted.value("gateway_warm_saved_gpu_seconds_total", **labels) == 0.4
    assert counted.value("gateway_warm_left_out_total", model="m", reason="budget") == 1


def test_ended_spaces_count_by_cause(counted):
    for cause in (ResetCause.MANUAL, ResetCause.IDLE_TTL, ResetCause.IDLE_TTL):
        counted.observer.on_space_end(space_end(cause))
    assert counted.value("gateway_resets_total", cause="manual") == 1
    assert counted.value("gateway_resets_total", cause="idle_ttl") == 2


def test_personal_data_counts_in_every_request_that_has_it(counted):
    finding = PersonalFinding("iban", "messages[0].content", 0, 22)
    for new in (True, False):
        counted.observer.on_personal_data(request(), "k3v9", finding, shared=True, new=new)
    counted.observer.on_personal_data(request(), "k3v9", finding, shared=False, new=True)
    labels = {"tenant": "acme", "kind": "iban"}
    assert counted.value("gateway_personal_data_findings_total", **labels, shared="true") == 2
    assert counted.value("gateway_personal_data_findings_total", **labels, shared="false") == 1


def test_blocks_of_events_that_match_nothing_count_by_replica_and_kind(counted):
    for blocks in (3, 4):
        counted.observer.on_kv_unmatched("r0", "removed", blocks)
    assert counted.value("gateway_kv_unmatched_blocks_total", replica="r0", kind="removed") == 7


def test_reloads_count_by_their_result(counted):
    for taken in (True, False, False):
        counted.observer.on_reload(taken=taken)
    assert counted.value("gateway_config_reloads_total", result="taken") == 1
    assert counted.value("gateway_config_reloads_total", result="refused") == 2


def test_whether_the_newest_configuration_is_in_force_is_reported(counted):
    reported = []
    for taken in (None, True, False, True):
        if taken is not None:
            counted.observer.on_reload(taken=taken)
        reported.append(counted.value("gateway_config_last_reload_successful"))
    assert reported == [1, 1, 0, 1]


CHAT = {"model": "m", "endpoint": "/v1/chat/completions", "decision": "warm"}


def exemplars(counted: Counted, family: str) -> dict[str, str]:
    """The request that each bucket of a histogram names, by the bucket's bound."""
    return {
        sample.labels["le"]: sample.exemplar.labels["request_id"]
        for metric in counted.catalog.registry.collect()
        if metric.name == family
        for sample in metric.samples
        if sample.exemplar
    }


def test_every_bucket_names_a_request_of_its_own(counted):
    for number, seconds in enumerate((0.004, 0.2, 0.2, 400.0)):
        counted.observer.on_settled(settlement(request_id=f"req-{number}", seconds=seconds, ttft_seconds=seconds))
    named = {"0.005": "req-0", "0.25": "req-1", "+Inf": "req-3"}
    assert exemplars(counted, "gateway_request_seconds") == exemplars(counted, "gateway_ttft_seconds") == named
    assert counted.value("gateway_request_seconds_count", **CHAT) == 4


def test_a_value_on_a_bound_shares_its_bucket_with_those_below(counted):
    counted.observer.on_settled(settlement(request_id="on-the-bound", seconds=0.25))
    counted.observer.on_settled(settlement(request_id="below", seconds=0.2))
    assert exemplars(counted, "gateway_request_seconds") == {"0.25": "on-the-bound"}


def test_a_bucket_names_a_newer_request_after_a_while(counted):
    for request_id, later in (("first", 0.0), ("too-soon", 0.5), ("newer", 60.0), ("too-soon-again", 60.5)):
        counted.observer.on_settled(settlement(request_id=request_id, seconds=0.2, ended_at=1000.0 + later))
    assert exemplars(counted, "gateway_request_seconds") == {"0.25": "newer"}


def test_an_exemplar_has_the_time_at_which_its_request_ended(counted, monkeypatch):
    monkeypatch.setattr("gateway.telemetry.collectors.time.monotonic", lambda: 1030.0)
    monkeypatch.setattr("gateway.telemetry.collectors.time.time", lambda: 5030.0)
    counted.observer.on_settled(settlement(ended_at=1000.0))
    page = openmetrics(counted.catalog.registry).decode()
    assert '# {request_id="req-1"} 0.2 5000.0' in page


def test_every_request_is_counted_at_once_however_many_there_are(counted):
    for number in range(1, 301):
        counted.observer.on_settled(settlement())
        if number in (1, 2, 15, 16, 17, 300):
            assert counted.value("gateway_request_seconds_count", **CHAT) == number
            assert counted.value("gateway_overhead_seconds_count", stage="encode") == number
            assert counted.value("gateway_prompt_tokens_total", model="m", tenant="acme") == 100 * number


def test_what_is_not_yet_read_of_requests_is_bounded(counted):
    class Seconds(float):
        """Can be referred to weakly."""

    kept = []
    for _ in range(300):
        seconds = Seconds(0.2)
        kept.append(weakref.ref(seconds))
        counted.observer.on_settled(settlement(seconds=seconds))
    assert sum(each() is not None for each in kept) < 30


def test_what_a_replica_served_before_it_left_does_not_return(counted):
    counted.observer.on_settled(settlement(predicted_tokens=64, cached_tokens=80))
    counted.observer.forget_replica(ReplicaId("r0"))
    assert counted.value("gateway_prediction_error_tokens_total", replica="r0", direction="under") is None


def test_an_id_too_long_for_an_exemplar_is_counted_without_it(counted):
    counted.observer.on_settled(settlement(request_id="y" * 119, seconds=0.2))
    assert exemplars(counted, "gateway_request_seconds") == {}
    assert counted.value("gateway_request_seconds_count", **CHAT) == 1
    counted.observer.on_settled(settlement(request_id="x" * 118, seconds=0.2))
    assert exemplars(counted, "gateway_request_seconds") == {"0.25": "x" * 118}


def test_skipped_searches_count_by_tenant(counted):
    counted.observer.on_personal_data_skipped(ACME.tenant)
    assert counted.value("gateway_personal_data_skipped_total", tenant="acme") == 1


def test_failures_of_the_detector_count_by_tenant_and_what_follows(counted):
    for refused in (True, False, True):
        counted.observer.on_detector_failed(ACME.tenant, refused=refused)
    metric = "gateway_personal_data_detector_failures_total"
    assert counted.value(metric, tenant="acme", result="refused") == 2
    assert counted.value(metric, tenant="acme", result="patterns_only") == 1


def test_errors_count_by_what_could_not_be_kept(counted):
    counted.observer.on_state_error("audit")
    counted.observer.on_state_error("spaces_file")
    assert counted.value("gateway_state_errors_total", backend="audit") == 1
