"""Checks of an engine's KV events: published, at an address that can be reached, and with replays."""

import asyncio
from collections.abc import Sequence

from gateway.core.kv_events import EventSource
from gateway.engines import advice
from gateway.evaluation.doctor.doctor_finding import DoctorFinding, Severity
from gateway.evaluation.doctor.engine_probe import EngineProbe
from gateway.kv_events.source_trial import SourceTrial, try_source

_MOST_TRIED = 8
"""Ranks of a replica whose sockets are tried; the others have neighbouring ports."""


async def event_findings(probe: EngineProbe, timeout_seconds: float) -> Sequence[DoctorFinding]:
    """What is wrong with the events of one engine. Connects to its event sockets.

    Args:
        probe: What the engine says of itself.
        timeout_seconds: Limit for each connection.
    """
    replica = probe.replica
    if not probe.reached or probe.sources_problem:
        return []
    if replica.settings.events == "off":
        return [
            _events_off(probe, "The configuration turns its KV events off", f"remove `events: off` ({replica.path})")
        ]
    if not probe.sources:
        return [_events_off(probe, "It publishes no KV events", advice(probe.facts.kind).events)]
    if standing := [source for source in probe.sources if source.problem]:
        # One finding for all ranks: they are configured by one address.
        return [_wrong_address(probe, standing[0])]
    tried = probe.sources[:_MOST_TRIED]
    trials = await asyncio.gather(*(try_source(source, timeout_seconds) for source in tried))
    for source, trial in zip(tried, trials, strict=True):
        if found := _tried(probe, source, trial):
            return [found]
    return []


def _events_off(probe: EngineProbe, said: str, fix: str) -> DoctorFinding:
    return DoctorFinding(
        "events-off",
        Severity.WARNING,
        probe.replica.where,
        f"{said}, so the content of its cache is predicted: evictions and requests of other clients go unseen.",
        fix,
    )


def _wrong_address(probe: EngineProbe, source: EventSource) -> DoctorFinding:
    problem, _, fix = (source.problem or "").partition(": set ")
    return DoctorFinding(
        "events-address",
        Severity.ERROR,
        probe.replica.where,
        f"The engine's event address cannot be used: {problem}. The gateway gets no events.",
        f"set {fix}" if fix else _address_fix(probe),
    )


def _tried(probe: EngineProbe, source: EventSource, trial: SourceTrial) -> DoctorFinding | None:
    where = probe.replica.where
    if not trial.connected:
        reason = trial.problem or "no subscription was accepted in time"
        return DoctorFinding(
            "events-unreachable",
            Severity.ERROR,
            where,
            f"Nothing publishes events at {source.events} as seen from here ({reason}): the port is closed, "
            "filtered or "
            "bound to another address such as 127.0.0.1.",
            _address_fix(probe),
        )
    if trial.replays is None:
        return DoctorFinding(
            "events-without-replay",
            Severity.WARNING,
            where,
            "Past events cannot be asked for: what the engine cached before the gateway started, or while the "
            "connection "
            "was broken, is not known.",
            _replay_fix(probe),
        )
    if not trial.replays:
        return DoctorFinding(
            "replay-unreachable",
            Severity.WARNING,
            where,
            f"{source.replay} does not answer, so events that were missed cannot be asked for again.",
            _replay_fix(probe),
        )
    return None


def _address_fix(probe: EngineProbe) -> str:
    replica = probe.replica
    if replica.settings.events == "auto":
        return f"{advice(probe.facts.kind).events}, and open that port to the gateway"
    return f"correct {replica.path}.events, which is {replica.settings.events}"


def _replay_fix(probe: EngineProbe) -> str:
    replica = probe.replica
    if replica.settings.events == "auto":
        return advice(probe.facts.kind).events
    return f"set {replica.path}.replay to the engine's replay_endpoint, such as tcp://{replica.host}:5657"
