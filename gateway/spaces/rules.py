"""Who shares a space with whom, and for how long: the configuration of spaces, and what follows from it alone."""

from dataclasses import dataclass

from gateway.core.space import ModelVersion
from gateway.core.tenant import Caller, Tenant
from gateway.spaces.epoch_table import SpaceEpochKey
from gateway.spaces.space_epoch import SpaceEpoch


@dataclass(frozen=True, slots=True)
class SpaceRules:
    """The configuration of spaces.

    Attributes:
        isolation: ``tenant``, ``group`` or ``none``.
        secret: What salts are made with; empty only without isolation.
        idle_ttl_seconds: Of tenants without a value of their own.
        max_age_seconds: Of tenants without a value of their own.
        max_spaces: Lives at the same time.
    """

    isolation: str
    secret: bytes
    idle_ttl_seconds: float
    max_age_seconds: float
    max_spaces: int

    @property
    def isolated(self) -> bool:
        """Whether anybody is kept apart from anybody."""
        return self.isolation != "none"

    def key(self, caller: Caller, model: ModelVersion) -> SpaceEpochKey:
        """By which the space of a request is found."""
        tenant = caller.tenant
        return (
            model.model_id,
            model.tokenizer_id,
            model.template_version,
            self.owner(tenant),
            caller.scope,
            model.adapter,
            model.context_limit,
            ",".join(sorted(tenant.regions)) if tenant.regions else "",
        )

    def owner(self, tenant: Tenant) -> str:
        """Who shares a space; empty for everybody."""
        if not self.isolated:
            return ""
        if self.isolation == "group" and tenant.group:
            return f"group:{tenant.group}"
        return f"tenant:{tenant.id}"

    def set_times(self, life: SpaceEpoch, tenant: Tenant) -> None:
        """How long a life lasts."""
        if self.isolated:
            life.idle_ttl_seconds = tenant.idle_ttl_seconds or self.idle_ttl_seconds
            life.max_age_seconds = tenant.max_age_seconds or self.max_age_seconds
