"""Checks request fields that need a permission of the caller. Pure."""

from collections.abc import Mapping
from typing import Any

from gateway.core.errors import BadRequest
from gateway.core.tenant import Caller
from gateway.engines import acts_on_engine, names_adapter, names_cached


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
