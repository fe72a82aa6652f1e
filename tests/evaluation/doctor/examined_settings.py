"""Settings of a small deployment, and its examination."""

from typing import Any

from gateway.config.settings import Settings
from gateway.evaluation.doctor.doctor_finding import Diagnosis, DoctorFinding
from gateway.evaluation.doctor.examination import ExaminationOptions, examine


def settings_for(*engines: Any, model: dict[str, Any] | None = None, **sections: Any) -> Settings:
    """One model, ``demo``, on these engines or URLs, which are called r0, r1 and so on."""
    replicas = [
        {"url": engine if isinstance(engine, str) else engine.url, "id": f"r{number}"}
        for number, engine in enumerate(engines)
    ]
    served = {"id": "demo", "tokenizer": "builtin:demo", "replicas": replicas} | (model or {})
    ports = {"port": 0, "admin_port": 0} | sections.pop("server", {})
    return Settings.model_validate({"server": ports, "models": [served], **sections})


async def examined(settings: Settings, **options: Any) -> Diagnosis:
    """The result of an examination whose limits are generous for a busy machine."""
    diagnosis, _ = await examine(settings, ExaminationOptions(**{"timeout_seconds": 20.0} | options))
    return diagnosis


def names(diagnosis: Diagnosis) -> list[str]:
    return [finding.name for finding in diagnosis.ordered()]


def only(diagnosis: Diagnosis) -> DoctorFinding:
    """The one finding there is."""
    assert len(diagnosis.findings) == 1, names(diagnosis)
    return diagnosis.findings[0]
