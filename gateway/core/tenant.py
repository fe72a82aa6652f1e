"""Tenants, and the callers of requests."""

from dataclasses import dataclass
from enum import StrEnum

from gateway.core.canonical import RuleMode, RuleName
from gateway.core.ids import TenantId


class PersonalDataMode(StrEnum):
    """The action on personal data found in the leading messages of a tenant's requests."""

    OFF = "off"
    """It is not looked for."""
    REPORT = "report"
    """It is counted and shown, by kind and position; the request is sent unchanged."""
    MASK = "mask"
    """As ``report``, and findings are masked before the request is sent."""
    BLOCK = "block"
    """As ``report``, and the request is refused."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A customer, team or application, which shares cached prefixes only with itself or its group.

    Attributes:
        id: Its name.
        group: Tenants that trust each other have the same one; empty for none.
        label: Value of the metrics' ``tenant`` label: the id, or one common value for all tenants that are not
            configured, so that their number stays bounded.
        regions: Regions its requests may be sent to; empty for all.
        personal_data: Action on personal data in its leading messages.
        idle_ttl_seconds: Unused for so long, its prefix spaces end; None for the common value.
        max_age_seconds: At this age its prefix spaces end in any case; None for the common value.
        canon: Modes of canonicalization rules, where it has any of its own.
        priority: Whether its requests may carry ``priority`` where prefixes are kept apart.
        share: Its weight against others when requests have to wait.
    """

    id: TenantId
    group: str = ""
    label: str = "default"
    regions: frozenset[str] = frozenset()
    personal_data: PersonalDataMode = PersonalDataMode.REPORT
    idle_ttl_seconds: float | None = None
    max_age_seconds: float | None = None
    canon: tuple[tuple[RuleName, RuleMode], ...] = ()
    share: float = 1.0
    priority: bool = False


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated sender of a request, and its permissions.

    Attributes:
        tenant: The tenant.
        key_id: Which of the tenant's keys it carried: a name that gives nothing of the key away. Empty without a key
            (open mode, a trusted proxy).
        scope: Which of the tenant's scopes (role, language, environment) it is for; empty for none.
        models: Models it may use; None for all.
    """

    tenant: Tenant
    key_id: str = ""
    scope: str = ""
    models: frozenset[str] | None = None

    def may_use(self, model: str) -> bool:
        """Whether it may use a model."""
        return self.models is None or model in self.models


EVERYBODY = Caller(Tenant(TenantId("default")))
"""The caller of every request in open mode."""
