"""The cheap checks of a gateway that has just started: those that compute nothing at the engines.

Runs in the background once the gateway is ready, and logs each finding. As long as a replica does
not answer, all are looked at again a few times: engines may need minutes to load their model.
"""

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from gateway.config.settings import Settings
from gateway.evaluation.doctor.doctor_finding import DoctorFinding, Severity
from gateway.evaluation.doctor.examination import ExaminationOptions, examine
from gateway.tokenize.local import LocalEncoder

_AGAIN_SECONDS = (15.0, 60.0, 300.0)
"""Pauses before the replicas are looked at again, as long as one of them has not answered."""

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
        pauses: Seconds before each further look, as long as a replica has not answered.
    """
    options = ExaminationOptions(generates=False, own_ports=False, encoders=encoders)
    logged: set[tuple[str, str]] = set()
    try:
        for number, pause in enumerate((0.0, *pauses)):
            await asyncio.sleep(pause)
            # All of them: one that comes late may differ from the others.
            diagnosis, probes = await examine(settings, options)
            for finding in diagnosis.ordered():
                if (finding.name, finding.where) not in logged:
                    logged.add((finding.name, finding.where))
                    _say(finding)
            if not number:
                _log.info("doctor_examined", replicas=diagnosis.replicas, findings=len(diagnosis.findings))
            if all(probe.reached for probe in probes):
                return
    except Exception:  # noqa: BLE001 - an aid that fails must not end the gateway
        _log.exception("doctor_failed")


def _say(finding: DoctorFinding) -> None:
    log = _log.error if finding.severity is Severity.ERROR else _log.warning
    log("doctor_finding", name=finding.name, where=finding.where, said=finding.said, fix=finding.fix)
