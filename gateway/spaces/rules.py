"""Rules of spaces: a request's key, its permitted fields, selections of spaces, and template versions. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.core.application import prompt_id
from gateway.core.errors import BadRequest
from gateway.core.space import ModelVersion, PrefixSpace, ResetCause, SpaceSelection
from gateway.core.tenant import Caller, Tenant
from gateway.engines import acts_on_engine, names_adapter, names_cached
from gateway.spaces.space_epoch import SpaceEpoch, SpaceEpochKey


def check_permitted(caller: Caller, fields: Mapping[str, Any], *, isolated: bool) -> None:
    """Reject fields that affect other tenants.

    Args:
        caller: On whose behalf the request comes.
        fields: Its body, parsed.
        isolated: Whether tenants are isolated.

    Raises:
        BadRequest: the request has such a field; ``param`` names it.
    """
    if caller.models is not None and (field := names_adapter(fields)) is not None:
        raise BadRequest(
            f"`{field}` names an adapter, but this key may use certain models only. Leave it out, and name one of them"
            " as `model`.",
            param=field,
            code="adapter_not_allowed",
        )
    if isolated:
        _check_isolated(caller, fields)


def _check_isolated(caller: Caller, fields: Mapping[str, Any]) -> None:
    if (field := names_cached(fields)) is not None:
        raise BadRequest(
            f"`{field}` names cached data, which may belong to others, so it is not accepted where prefixes are kept"
            " apart. Leave it out.",
            param=field,
            code="names_cached",
        )
    if (field := acts_on_engine(fields)) is not None:
        raise BadRequest(
            f"`{field}` acts on the engine itself and so on the requests of others; it is not accepted where prefixes"
            " are kept apart. Leave it out.",
            param=field,
            code="acts_on_engine",
        )
    if fields.get("priority") not in (None, 0) and not caller.tenant.priority:
        raise BadRequest(
            "`priority` would put this request in front of those of other tenants. Leave it out, or have"
            " `tenants[].priority` set for this tenant.",
            param="priority",
            code="priority_not_allowed",
        )


def matches(selection: SpaceSelection, owner: str | None, space: PrefixSpace) -> bool:
    """Whether a selection includes a space; ``owner`` owns the spaces of ``selection.tenant``."""
    return (
        (selection.model is None or selection.model == space.model_id)
        and (selection.tenant is None or owner == space.tenant)
        and (selection.scope is None or selection.scope == space.scope)
        and (selection.prompt is None or selection.prompt in (space.prompt, prompt_id(space.prompt)))
        and (
            selection.template_version is None
            or selection.template_version in (space.template_version, label_of(space.template_version))
        )
    )


def outdated(space: PrefixSpace, model: ModelVersion) -> ResetCause | None:
    """Why a space belongs to another version of its model; None if it does not."""
    if (space.tokenizer_id, space.template_version) != (model.tokenizer_id, model.template_version):
        return ResetCause.TEMPLATE_CHANGED
    if (space.adapter, space.context_limit) != (model.adapter, model.context_limit):
        return ResetCause.MODEL_UPDATE
    return None


def template_version(label: str, template_hash: str) -> str:
    """The version of a template: ``label+hash``, or the one of them that is not empty."""
    return f"{label}+{template_hash}" if label and template_hash else label or template_hash


def label_of(version: str) -> str:
    """The operator's label in a ``template_version``."""
    return version.rpartition("+")[0] or version


@dataclass(frozen=True, slots=True)
class SpaceRules:
    """The configuration of spaces.

    Attributes:
        isolation: ``tenant``, ``group`` or ``none``.
        secret: Key of the salts; empty only without isolation.
        idle_ttl_seconds: Idle time at which epochs end, for tenants without a value of their own; None for never.
        max_age_seconds: Age at which epochs end, for tenants without a value of their own; None for never.
        max_spaces: Most epochs alive.
        prompts_expire: Whether a registered prompt has an idle time or a maximum age.
        isolated: Whether tenants or groups are isolated.
        numbered: Whether every epoch gets a number that was never used before: with isolation, and where epochs expire.
    """

    isolation: str
    secret: bytes
    idle_ttl_seconds: float | None
    max_age_seconds: float | None
    max_spaces: int
    prompts_expire: bool = False
    isolated: bool = field(init=False)
    numbered: bool = field(init=False)

    def __post_init__(self) -> None:
        isolated = self.isolation != "none"
        expires = self.idle_ttl_seconds is not None or self.max_age_seconds is not None or self.prompts_expire
        object.__setattr__(self, "isolated", isolated)
        object.__setattr__(self, "numbered", isolated or expires)

    def key(self, caller: Caller, model: ModelVersion) -> SpaceEpochKey:
        """The key of a request's space."""
        tenant = caller.tenant
        return (
            model.model_id,
            model.tokenizer_id,
            model.template_version,
            self.owner(tenant) if self.isolated else "",
            caller.scope,
            model.adapter,
            model.context_limit,
            ",".join(sorted(tenant.regions)) if tenant.regions else "",
            caller.application.space if caller.application is not None else "",
        )

    def owner(self, tenant: Tenant) -> str:
        """The owner of a tenant's spaces; empty if all tenants share them."""
        if not self.isolated:
            return ""
        if self.isolation == "group" and tenant.group:
            return f"group:{tenant.group}"
        return f"tenant:{tenant.id}"

    def set_times(self, space_epoch: SpaceEpoch, caller: Caller) -> None:
        """Set the TTLs of an epoch: the tenant's, which are the application's where these are shorter, or the common
        ones.

        Without isolation tenants share their epochs, so only the configuration of an application changes TTLs, and no
        caller.
        """
        own = caller.tenant if self.isolated else caller.application
        space_epoch.idle_ttl_seconds = (own and own.idle_ttl_seconds) or self.idle_ttl_seconds
        space_epoch.max_age_seconds = (own and own.max_age_seconds) or self.max_age_seconds
