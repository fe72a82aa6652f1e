"""The configured tenants and their keys, as requests need them."""

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.config.names import ANYBODY, DEFAULT_TENANT
from gateway.config.tenants_settings import KeySettings, TenantSettings
from gateway.core.api_keys import KeyRing
from gateway.core.ids import TenantId
from gateway.core.tenant import Caller, PersonalDataMode, Tenant

OTHER = "other"
"""Metrics label of all tenants without an entry of their own."""


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """What a valid key stands for.

    Attributes:
        caller: Its tenant, with the scope of requests that name none.
        scopes: What requests may name as their scope; ``*`` among them stands for any.
        expires_at: Unix seconds from which on the key is not valid; None for never.
        expires: The same as the configuration has it, for the error's message.
    """

    caller: Caller
    scopes: frozenset[str]
    expires_at: float | None
    expires: str | None

    def may_use(self, scope: str) -> bool:
        """Whether its requests may name a scope."""
        return scope in self.scopes or ANYBODY in self.scopes


class TenantKeys:
    """All tenants. Immutable.

    Args:
        tenants: The configuration's.
        personal_data: Mode of tenants that choose none.
    """

    def __init__(self, tenants: Iterable[TenantSettings], personal_data: PersonalDataMode) -> None:
        entries = {entry.id: entry for entry in tenants}
        self._personal_data = personal_data
        self._unlisted = entries.pop(ANYBODY, None)
        self._listed = {entry.id: self._caller(entry, entry.id, entry.id) for entry in entries.values()}
        default = TenantSettings(id=DEFAULT_TENANT)
        self.everybody = self._listed.get(DEFAULT_TENANT) or self._caller(default, DEFAULT_TENANT, DEFAULT_TENANT)
        """The caller in open mode."""
        self.keys = KeyRing(
            {key.digest: _holder(key, self._listed[entry.id]) for entry in entries.values() for key in entry.keys}
        )
        """The tenants' keys."""

    def named(self, name: str) -> Caller | None:
        """The caller that a trusted proxy names; None if no entry stands for it. ``name`` must be a name."""
        listed = self._listed.get(name)
        if listed is not None or self._unlisted is None:
            return listed
        return self._caller(self._unlisted, name, OTHER)

    def _caller(self, entry: TenantSettings, name: str, label: str) -> Caller:
        mode = self._personal_data if entry.personal_data is None else PersonalDataMode(entry.personal_data)
        tenant = Tenant(
            id=TenantId(name),
            group=entry.group,
            label=label,
            regions=frozenset(entry.regions or ()),
            personal_data=mode,
            idle_ttl_seconds=entry.idle_ttl_seconds,
            max_age_seconds=entry.max_age_seconds,
            canon=tuple(sorted(entry.canon.items())),
            share=entry.share,
            priority=entry.priority,
        )
        return Caller(tenant, models=_models(entry.models))


def _holder(key: KeySettings, tenant: Caller) -> KeyHolder:
    models = _models(key.models)
    if models is not None and tenant.models is not None:
        models &= tenant.models
    caller = Caller(tenant.tenant, key.id, key.scope, tenant.models if models is None else models)
    return KeyHolder(caller, frozenset((key.scope, *key.scopes)), key.expires_at, key.expires)


def _models(names: tuple[str, ...] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)
