"""Checks of one engine: reachable, the right model, metrics, prefix caching, usage details, clock. Pure."""

from collections.abc import Iterator

from gateway.engines import advice
from gateway.evaluation.doctor.doctor_finding import DoctorFinding, Severity
from gateway.evaluation.doctor.engine_probe import EngineProbe
from gateway.fleet.start_times import SEVERAL_FIX

_CLOCK_SECONDS = 2.0
"""A difference below it does no harm: the gateway compares an engine's times with each other."""

_MOST_NAMED = 5


def engine_findings(probe: EngineProbe) -> Iterator[DoctorFinding]:
    """What is wrong with one engine, as far as it says so itself."""
    replica = probe.replica
    if probe.refusal is not None:
        yield probe.refusal
        return
    if not probe.reached:
        yield DoctorFinding(
            "replica-unreachable",
            Severity.ERROR,
            replica.where,
            f"{replica.settings.url} does not answer ({probe.problem}), so it gets no requests.",
            f"start the engine, or correct {replica.path}.url",
        )
        return
    yield from _model_findings(probe)
    if probe.asleep:
        yield DoctorFinding(
            "engine-sleeping",
            Severity.ERROR,
            replica.where,
            "The engine is in sleep mode: it answers /health, and requests to it wait or fail.",
            "wake it up (POST /wake_up), or drain the replica as long as it sleeps",
        )
    if probe.external:
        yield DoctorFinding(
            "external-cache",
            Severity.WARNING,
            replica.where,
            f"It also caches outside of its GPU ({probe.external}), where the gateway sees only what events name, "
            "and where that cache decides whether salts keep tenants apart.",
            "read docs/external-caches.md, then accept it with --ignore external-cache",
        )
    if probe.metrics_problem:
        yield DoctorFinding(
            "metrics-missing",
            Severity.WARNING,
            replica.where,
            f"{probe.metrics_problem}, so its load, block size and cache size are not known.",
            advice(None).metrics,
        )
    if probe.engines > 1:
        yield DoctorFinding(
            "several-engines",
            Severity.ERROR,
            replica.where,
            f"{probe.engines} engines or more answer at {replica.settings.url}: their start times differ. Which "
            "of them gets a request, and what it has cached, cannot be known.",
            SEVERAL_FIX,
        )
    flags = advice(probe.facts.kind)
    if probe.facts.prefix_caching is False:
        yield DoctorFinding(
            "prefix-caching-off",
            Severity.ERROR,
            replica.where,
            "The engine runs without prefix caching, so it computes every prompt from its first token on.",
            flags.prefix_caching,
        )
    if probe.server is not None and probe.server.usage_details is False:
        yield usage_details_off(probe)
    yield from _clock_findings(probe)


def usage_details_off(probe: EngineProbe) -> DoctorFinding:
    """The finding about an engine whose answers do not report cached tokens."""
    return DoctorFinding(
        "usage-details-off",
        Severity.WARNING,
        probe.replica.where,
        "Its answers do not say how many prompt tokens were cached, so hit rates are predictions that nothing "
        "confirms.",
        advice(probe.facts.kind).usage_details,
    )


def _model_findings(probe: EngineProbe) -> Iterator[DoctorFinding]:
    replica = probe.replica
    if probe.served is None or replica.model.id in probe.served:
        return
    named = ", ".join(probe.served[:_MOST_NAMED]) or "none"
    yield DoctorFinding(
        "wrong-model",
        Severity.ERROR,
        replica.where,
        f"It serves {named}, and not {replica.model.id}: it refuses the requests that it gets.",
        f"set {replica.model_path}.id to what the engine serves, or start the engine with "
        f"--served-model-name {replica.model.id}",
    )


def _clock_findings(probe: EngineProbe) -> Iterator[DoctorFinding]:
    ahead = probe.clock_seconds
    if ahead is None or abs(ahead) <= _CLOCK_SECONDS:
        return
    direction = "ahead of" if ahead > 0 else "behind"
    yield DoctorFinding(
        "clock-differs",
        Severity.WARNING,
        probe.replica.where,
        f"The engine's clock is {abs(ahead):.0f} seconds {direction} this machine's, so its logs and start time do not "
        "fit those of the gateway, and dates that the chat template prints differ.",
        "synchronize both machines (timedatectl set-ntp true, or chrony)",
    )
