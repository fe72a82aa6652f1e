"""Derives component options from the settings."""

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
    """Isolation and lifetime of prefix spaces."""
    spaces = settings.spaces
    return SpaceRules(
        isolation=settings.isolation,
        secret=spaces.secret.get_secret_value().encode() if spaces.secret else b"",
        idle_ttl_seconds=spaces.idle_ttl_seconds,
        max_age_seconds=spaces.max_age_seconds,
        max_spaces=spaces.max_spaces,
    )


def admin_tokens(settings: Settings) -> tuple[str | None, Sequence[AdminTokenSettings]]:
    """Credentials of the admin port: ``server.admin_token``, and the tokens with roles."""
    server = settings.server
    return server.admin_token.get_secret_value() if server.admin_token else None, server.admin_tokens


def audit_settings(settings: Settings, place: WorkerPlace | None) -> AuditSettings:
    """Audit settings with the file of this process: each worker writes its own."""
    file = settings.audit.file
    if place is None or file is None or file == "stdout":
        return settings.audit
    return settings.audit.model_copy(update={"file": str(place.own(Path(file)))})


def spaces_file(settings: Settings, place: WorkerPlace | None) -> EpochFile | None:
    """The file in which this process keeps the epochs of spaces; None: they are not kept."""
    file = settings.spaces.file
    if place is not None:
        # Without a configured file, a reset still has to survive the restart of a worker.
        file = place.own(file) if file else place.spaces_file
    return EpochFile(file) if file else None


def canon_modes(settings: Settings) -> dict[str, RuleModes]:
    """Modes of canonicalization rules, by model that overrides them."""
    return {model.id: model.canon for model in settings.models if model.canon}


def personal_data_mode(settings: Settings) -> PersonalDataMode:
    """The personal data mode of tenants without a mode of their own."""
    return PersonalDataMode(settings.personal_data.mode)
