"""The cheap checks of a gateway that has just started: those that compute nothing at the engines.

Runs in the background once the gateway is ready, and logs each finding. Replicas that do not answer yet are looked at
again a few times, as engines may need minutes to load their model.
"""

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from gateway.config.settings import Settings
from gateway.evaluation.doctor.doctor_finding import DoctorFinding, Severity
from gateway.evaluation.doctor.engine_probe import EngineProbe
from gateway.evaluation.doctor.examination import ExaminationOptions, examine
from gateway.tokenize.local import LocalEncoder

_AGAIN_SECONDS = (15.0, 60.0, 300.0)
"""Pauses before replicas that did not answer are looked at again."""

_log = structlog.get_logger("gateway.doctor")


async def examine_at_start(
    settings: Settings,
    encoders: Mapping[str, LocalEncoder | None],
    pauses: Sequence[float] = _AGAIN_SECONDS,
) -> None:
    """Run the cheap checks, and log each finding once (``doctor_finding``). Never raises but when it is cancelled.

    Args:
        settings: The configuration.
        encoders: The gateway's tokenizers; models without one are compared between replicas only.
        pauses: Seconds before each further look at the replicas that did not answer.
    """
    options = ExaminationOptions(generates=False, own_ports=False, encoders=encoders)
    logged: set[tuple[str, str]] = set()
    silent: set[str] | None = None
    try:
        for pause in (0.0, *pauses):
            await asyncio.sleep(pause)
            waited_for = silent
            diagnosis, probes = await examine(
                settings,
                options,
                lambda replica: waited_for is None or replica in waited_for,  # noqa: B023
            )
            for finding in diagnosis.ordered():
                if (finding.name, finding.where) not in logged:
                    logged.add((finding.name, finding.where))
                    _say(finding)
            if silent is None:
                _log.info("doctor_examined", replicas=diagnosis.replicas, findings=len(diagnosis.findings))
            silent = _silent(probes)
            if not silent:
                return
    except Exception:  # noqa: BLE001 - an aid that fails must not end the gateway
        _log.exception("doctor_failed")


def _silent(probes: Sequence[EngineProbe]) -> set[str]:
    return {probe.replica.settings.id for probe in probes if not probe.reached}


def _say(finding: DoctorFinding) -> None:
    log = _log.error if finding.severity is Severity.ERROR else _log.warning
    log("doctor_finding", name=finding.name, where=finding.where, said=finding.said, fix=finding.fix)
