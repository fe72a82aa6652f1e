"""Who asks: by a key, by a trusted proxy's word, or, where there are neither, whoever comes.

What a request's headers say of who asks.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from gateway.admission.tenant_keys import KeyHolder, TenantKeys
from gateway.config.names import DEFAULT_TENANT, is_name, shown
from gateway.config.tenants_settings import AdmissionSettings, TenantSettings, is_open
from gateway.config.trusted_proxies import TrustedProxies
from gateway.core.api_keys import bearer
from gateway.core.errors import BadRequest, Forbidden, GatewayError, Unauthorized
from gateway.core.tenant import Caller, PersonalDataMode, Tenant

AUTHORIZATION = b"authorization"
SCOPE = b"x-cache-scope"


class Credentials(NamedTuple):
    """Header values without the blanks around them; None for a header that is not there.

    Attributes:
        authorization: Holds the key.
        tenant: Only a trusted proxy may send it.
        scope: Which of the key's scopes; an empty header says as little as none.
    """

    authorization: bytes | None
    tenant: bytes | None
    scope: bytes | None


def read_claims(headers: Sequence[tuple[bytes, bytes]], tenant_header: bytes) -> Credentials:
    """The claims.

    Raises:
        BadRequest: One of the headers stands there twice with different values. A client that puts its own in front of
            the one its proxy adds wants one of the two servers to read the wrong one.
    """
    authorization = tenant = scope = None
    for name, value in headers:
        if name == AUTHORIZATION:
            authorization = _only(name, authorization, value)
        elif name == SCOPE:
            scope = _only(name, scope, value)
        elif name == tenant_header:
            tenant = _only(name, tenant, value)
    return Credentials(authorization, tenant, scope or None)


def _only(name: bytes, earlier: bytes | None, value: bytes) -> bytes:
    value = value.strip(b" \t")
    if earlier is not None and earlier != value:
        raise BadRequest(
            f"The header {name.decode('ascii')} is given more than once, with different values. Send it once.",
            code="duplicate_header",
        )
    return value


E = TypeVar("E", bound=GatewayError)

_CHALLENGE = (("www-authenticate", "Bearer"),)
_LONGEST_ADDRESS = 64
_NAME_FORM = "1 to 64 characters out of A-Z a-z 0-9 . _ : -"


class Callers:
    """Finds out who asks, by one state of the configuration. Immutable.

    Args:
        tenants: Whom the configuration knows.
        admission: Whom it trusts.
        personal_data: Mode of tenants that choose none.
    """

    def __init__(
        self, tenants: Sequence[TenantSettings], admission: AdmissionSettings, personal_data: PersonalDataMode
    ) -> None:
        self._tenants = TenantKeys(tenants, personal_data)
        self._proxies = TrustedProxies(admission.trusted_proxies)
        self._tenant_header = admission.tenant_header.encode("ascii")
        self._open = is_open(tenants, admission)

    def identify(self, headers: Sequence[tuple[bytes, bytes]], peer: str, wall: float) -> Caller:
        """As ``ports.Gate.identify``."""
        claims = read_claims(headers, self._tenant_header)
        if claims.tenant is not None:
            if not self._proxies.include(peer):
                raise self._not_trusted(peer)
            return _in_scope(self._named(claims.tenant), claims.scope)
        if self._open:
            return _in_scope(self._tenants.everybody, claims.scope)
        holder = self._holder(claims, peer)
        if holder.expires_at is not None and wall >= holder.expires_at:
            expired = f"The API key has expired ({holder.expires}). Ask the gateway's operator for a new one."
            raise _of(holder.caller, _unauthorized(expired))
        caller = _in_scope(holder.caller, claims.scope)
        if claims.scope is not None and not holder.may_use(caller.scope):
            refusal = Forbidden(
                f"This API key may not use the scope {shown(caller.scope)} (header x-cache-scope). Use one of the "
                "key's scopes, or leave the header out.",
                code="scope_not_allowed",
            )
            raise _of(holder.caller, refusal)
        return caller

    def tenant(self, name: str) -> Tenant | None:
        """As ``ports.Gate.tenant``."""
        if self._open:
            return self._tenants.everybody.tenant if name == DEFAULT_TENANT else None
        caller = self._tenants.named(name) if is_name(name) else None
        return None if caller is None else caller.tenant

    def _named(self, value: bytes) -> Caller:
        header, name = self._tenant_header.decode("ascii"), value.decode("latin-1")
        if not is_name(name):
            raise BadRequest(
                f"The header {header} holds {shown(name)}; expected a tenant's name, {_NAME_FORM}.",
                code="invalid_tenant",
            )
        caller = self._tenants.named(name)
        if caller is None:
            raise Forbidden(
                f"There is no tenant {shown(name)} (header {header}). The gateway's operator has to add it to tenants, "
                "or an entry `*` for all that have none of their own.",
                code="unknown_tenant",
            )
        return caller

    def _holder(self, claims: Credentials, peer: str) -> KeyHolder:
        key = bearer(claims.authorization)
        if key is not None:
            holder = self._tenants.keys.find(key)
            if holder is None:
                raise _unauthorized(
                    "The API key is not valid. Check it for missing characters, or ask the gateway's operator."
                )
            return holder
        if claims.authorization is not None:
            raise _unauthorized("There is no API key in the header authorization. Send `authorization: Bearer <key>`.")
        if self._proxies.include(peer):
            header = self._tenant_header.decode("ascii")
            raise _unauthorized(f"The proxy named no tenant in {header}, and there is no API key.")
        if not self._tenants.keys:
            raise _unauthorized(
                "There is no API key, and none would be valid: requests have to come through the proxy."
            )
        raise _unauthorized("There is no API key. Send it as `authorization: Bearer <key>`.")

    def _not_trusted(self, peer: str) -> Forbidden:
        header, who = self._tenant_header.decode("ascii"), peer[:_LONGEST_ADDRESS] or "this connection"
        return Forbidden(
            f"The header {header} is taken from trusted proxies only, and {who} is none. Leave it out; or the "
            "gateway's operator adds the address to admission.trusted_proxies.",
            code="tenant_header_not_trusted",
        )


def _in_scope(caller: Caller, value: bytes | None) -> Caller:
    """The caller with the scope that its request names."""
    if value is None:
        return caller
    scope = value.decode("latin-1")
    if not is_name(scope):
        refusal = BadRequest(
            f"The header x-cache-scope holds {shown(scope)}; expected a scope's name, {_NAME_FORM}.",
            code="invalid_scope",
        )
        raise _of(caller, refusal)
    return replace(caller, scope=scope)


def _unauthorized(message: str) -> Unauthorized:
    return Unauthorized(message, code="invalid_api_key", headers=_CHALLENGE)


def _of(caller: Caller, error: E) -> E:
    """The error, with whose request it was."""
    error.caller = caller
    return error
