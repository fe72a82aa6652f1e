"""What rooms go by that does not stand in the configuration just so."""

from collections.abc import Sequence
from pathlib import Path

from gateway.config.logging_settings import AuditSettings
from gateway.config.server_settings import AdminTokenSettings
from gateway.config.settings import Settings
from gateway.core.canonical import RuleModes
from gateway.core.tenant import PersonalDataMode
from gateway.core.worker_place import WorkerPlace
from gateway.spaces import EpochFile, SpaceRules


def space_rules(settings: Settings) -> SpaceRules:
    """Who shares prefixes with whom, and for how long."""
    spaces = settings.spaces
    return SpaceRules(
        isolation=settings.isolation,
        secret=spaces.secret.get_secret_value().encode() if spaces.secret else b"",
        idle_ttl_seconds=spaces.idle_ttl_seconds,
        max_age_seconds=spaces.max_age_seconds,
        max_spaces=spaces.max_spaces,
    )


def admin_tokens(settings: Settings) -> tuple[str | None, Sequence[AdminTokenSettings]]:
    """Who may ask at the admin port: the one token, and those with roles."""
    server = settings.server
    return server.admin_token.get_secret_value() if server.admin_token else None, server.admin_tokens


def audit_settings(settings: Settings, place: WorkerPlace | None) -> AuditSettings:
    """Where this process writes the audit log."""
    file = settings.audit.file
    if place is None or file is None or file == "stdout":
        return settings.audit
    return settings.audit.model_copy(update={"file": str(place.own(Path(file)))})


def spaces_file(settings: Settings, place: WorkerPlace | None) -> EpochFile | None:
    """Where this process keeps the lives of spaces; None for nowhere."""
    file = settings.spaces.file
    if place is not None:
        # Without a file, a reset still has to hold for the process that replaces one that was lost.
        file = place.own(file) if file else place.spaces_file
    return EpochFile(file) if file else None


def canon_modes(settings: Settings) -> dict[str, RuleModes]:
    """Modes of canonicalization rules by model, where it has any of its own."""
    return {model.id: model.canon for model in settings.models if model.canon}


def personal_data_mode(settings: Settings) -> PersonalDataMode:
    """What is done about personal data for tenants that say nothing of their own."""
    return PersonalDataMode(settings.personal_data.mode)
