"""Admits requests: authenticates the caller, and counts the request against the tenant's limits.

A caller is known by its API key, by the tenant header of a trusted proxy, or, in open mode, by nothing. ``TenantKeys``
looks up callers by API key or tenant name, ``Callers`` applies the rules of the settings, ``Authenticator`` admits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import msgspec

from gateway.admission.replicated_limits import ReplicatedLimits
from gateway.admission.tenant_limits import AllLimits, Limits, TenantLimits, TokenShare
from gateway.config.tenants_settings import AdmissionSettings, KeySettings, TenantSettings, is_open
from gateway.config.trusted_proxies import TrustedProxies
from gateway.core.api_keys import KeyRing, bearer
from gateway.core.errors import BadRequest, Forbidden, GatewayError, RateLimited, Unauthorized
from gateway.core.ids import TenantId
from gateway.core.tenant import ANYBODY, DEFAULT_TENANT, Caller, PersonalDataMode, Tenant, is_name, shown

OTHER = "other"
"""Metrics label of all tenants without an entry of their own."""


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The holder of a valid key.

    Attributes:
        caller: Its tenant, with the key's default scope.
        scopes: Scopes that requests may use; ``*`` allows any.
        expires_at: Expiry of the key in Unix seconds; None: never.
        expires: The expiry as written in the configuration, for error messages.
    """

    caller: Caller
    scopes: frozenset[str]
    expires_at: float | None
    expires: str | None

    def may_use(self, scope: str) -> bool:
        """Whether the key may use a scope."""
        return scope in self.scopes or ANYBODY in self.scopes


class TenantKeys:
    """All tenants. Immutable.

    Args:
        tenants: Settings of the tenants.
        personal_data: Default mode of tenants.
    """

    def __init__(self, tenants: Iterable[TenantSettings], personal_data: PersonalDataMode) -> None:
        entries = {entry.id: entry for entry in tenants}
        self._personal_data = personal_data
        self._unlisted = entries.pop(ANYBODY, None)
        self._listed = {entry.id: self._caller(entry, entry.id, entry.id) for entry in entries.values()}
        default = TenantSettings(id=DEFAULT_TENANT)
        self.default_caller = self._listed.get(DEFAULT_TENANT) or self._caller(default, DEFAULT_TENANT, DEFAULT_TENANT)
        """The caller in open mode."""
        self.keys = KeyRing(
            {key.digest: _holder(key, self._listed[entry.id]) for entry in entries.values() for key in entry.keys}
        )
        """The tenants' keys."""

    def named(self, name: str) -> Caller | None:
        """The caller of a tenant named by a trusted proxy; None without a matching entry. ``name`` must be valid."""
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


AUTHORIZATION = b"authorization"
API_KEY = b"x-api-key"
SCOPE = b"x-cache-scope"


class Credentials(NamedTuple):
    """Stripped header values; None for a missing header.

    Attributes:
        authorization: The header with the key.
        api_key: The header in which clients of Anthropic's API send it; ``authorization`` counts where both are given.
        tenant: The tenant's name, accepted only from a trusted proxy.
        scope: The requested cache scope; an empty header counts as missing.
    """

    authorization: bytes | None
    api_key: bytes | None
    tenant: bytes | None
    scope: bytes | None


def read_credentials(headers: Sequence[tuple[bytes, bytes]], tenant_header: bytes) -> Credentials:
    """Read the credentials from a request's headers.

    Raises:
        BadRequest: a header occurs twice with different values, which could be an attempt to smuggle a header past a
            proxy.
    """
    authorization = api_key = tenant = scope = None
    for name, value in headers:
        if name == AUTHORIZATION:
            authorization = _single_value(name, authorization, value)
        elif name == SCOPE:
            scope = _single_value(name, scope, value)
        elif name == tenant_header:
            tenant = _single_value(name, tenant, value)
        elif name == API_KEY:
            api_key = _single_value(name, api_key, value)
    return Credentials(authorization, api_key or None, tenant, scope or None)


def _single_value(name: bytes, earlier: bytes | None, value: bytes) -> bytes:
    value = value.strip(b" \t")
    if earlier is not None and earlier != value:
        raise BadRequest(
            f"The header {name.decode('ascii')} is given more than once, with different values. Send it once.",
            code="duplicate_header",
        )
    return value


E = TypeVar("E", bound=GatewayError)

_CHALLENGE = (("www-authenticate", "Bearer"),)
_MAX_ADDRESS_CHARS = 64
_NAME_FORM = "1 to 64 characters out of A-Z a-z 0-9 . _ : -"


class Callers:
    """Identifies callers by one version of the configuration. Immutable.

    Args:
        tenants: Settings of the tenants.
        admission: Settings of trusted proxies.
        personal_data: Default mode of tenants.
    """

    def __init__(
        self, tenants: Sequence[TenantSettings], admission: AdmissionSettings, personal_data: PersonalDataMode
    ) -> None:
        self._tenants = TenantKeys(tenants, personal_data)
        self._proxies = TrustedProxies(admission.trusted_proxies)
        self._tenant_header = admission.tenant_header.encode("ascii")
        self._open = is_open(tenants, admission)

    def identify(
        self, headers: Sequence[tuple[bytes, bytes]], named: Mapping[bytes, bytes], peer: str, wall: float
    ) -> Caller:
        """See ``Authenticator.admit``."""
        # SDKs send a key also where none is asked for.
        once = AUTHORIZATION not in named or len(named) == len(headers)
        if self._open and once and SCOPE not in named and self._tenant_header not in named:
            return self._tenants.default_caller
        credentials = read_credentials(headers, self._tenant_header)
        if credentials.tenant is not None:
            if not self._proxies.include(peer):
                raise self._not_trusted(peer)
            return _in_scope(self._named(credentials.tenant), credentials.scope)
        if self._open:
            return _in_scope(self._tenants.default_caller, credentials.scope)
        holder = self._holder(credentials, peer)
        if holder.expires_at is not None and wall >= holder.expires_at:
            expired = f"The API key has expired ({holder.expires}). Ask the gateway's operator for a new one."
            raise _with_caller(holder.caller, _unauthorized(expired))
        caller = _in_scope(holder.caller, credentials.scope)
        if credentials.scope is not None and not holder.may_use(caller.scope):
            refusal = Forbidden(
                f"This API key may not use the scope {shown(caller.scope)} (header x-cache-scope). Use one of the "
                "key's scopes, or leave the header out.",
                code="scope_not_allowed",
            )
            raise _with_caller(holder.caller, refusal)
        return caller

    def tenant(self, name: str) -> Tenant | None:
        """See ``Authenticator.tenant``."""
        if self._open:
            return self._tenants.default_caller.tenant if name == DEFAULT_TENANT else None
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

    def _holder(self, credentials: Credentials, peer: str) -> KeyHolder:
        key, other = bearer(credentials.authorization), credentials.api_key
        if not credentials.authorization and other is not None:
            key, other = other.decode("latin-1"), None
        if key is not None:
            holder = self._tenants.keys.find(key)
            if holder is None:
                which = " in authorization, which counts where x-api-key is sent as well," * (other is not None)
                raise _unauthorized(
                    f"The API key{which} is not valid. Check it for missing characters, or ask the gateway's operator."
                )
            return holder
        if credentials.authorization is not None:
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
        header, who = self._tenant_header.decode("ascii"), peer[:_MAX_ADDRESS_CHARS] or "this connection"
        return Forbidden(
            f"The header {header} is taken from trusted proxies only, and {who} is none. Leave it out; or the "
            "gateway's operator adds the address to admission.trusted_proxies.",
            code="tenant_header_not_trusted",
        )


def _in_scope(caller: Caller, value: bytes | None) -> Caller:
    """The caller with the requested scope."""
    if value is None:
        return caller
    scope = value.decode("latin-1")
    if not is_name(scope):
        refusal = BadRequest(
            f"The header x-cache-scope holds {shown(scope)}; expected a scope's name, {_NAME_FORM}.",
            code="invalid_scope",
        )
        raise _with_caller(caller, refusal)
    return replace(caller, scope=scope)


def _unauthorized(message: str) -> Unauthorized:
    return Unauthorized(message, code="invalid_api_key", headers=_CHALLENGE)


def _with_caller(caller: Caller, error: E) -> E:
    """The error with its caller set."""
    error.caller = caller
    return error


class Admission(msgspec.Struct, eq=False):
    """A request admitted under the limits of its tenant or of its application; a ``ports.Grant``."""

    caller: Caller
    counts_tokens: bool
    _name: str
    _all: AllLimits
    _state: TenantLimits
    _admitted: float | None
    _share: TokenShare | None = None
    _released: bool = False

    def charge(self, prompt_tokens: int, now: float) -> None:
        """See ``ports.Grant.charge``. A refused request counts in the window of refusals instead of its own."""
        if self._share is None and not self._state.counts_tokens:
            return
        before, self._share = self._share, None
        if before is not None:
            before.correct(0)
        try:
            self._share = self._state.charge(prompt_tokens, self._admitted, now)
        except RateLimited:
            self._admitted = None
            raise

    def correct(self, prompt_tokens: int) -> None:
        """See ``ports.Grant.correct``."""
        if self._share is not None:
            self._share.correct(prompt_tokens)

    def refuse(self, now: float) -> None:
        """See ``ports.Grant.refuse``."""
        self.correct(0)
        if not self._state.counts_requests:
            self.withdraw(now)

    def withdraw(self, refused: float | None) -> None:
        """Another limit refuses the request: it counts only as refused at this time; None: not even so."""
        self.correct(0)
        admitted, self._admitted = self._admitted, None
        if admitted is not None:
            self._state.take_back(admitted, refused)

    def headers(self, now: float) -> Sequence[tuple[bytes, bytes]]:
        """See ``ports.Grant.headers``."""
        return self._state.headers(now) if self._state.limited else ()

    def release(self) -> None:
        """See ``ports.Grant.release``."""
        if not self._released:
            self._released = True
            self._all.release(self._name, self._state)


class Authenticator:
    """Authenticates clients and enforces their limits. Synchronous, without I/O.

    Args:
        tenants: Settings of the tenants.
        admission: Settings of trusted proxies.
        personal_data: Default mode of tenants.
    """

    def __init__(
        self,
        tenants: Sequence[TenantSettings],
        admission: AdmissionSettings,
        *,
        personal_data: PersonalDataMode = PersonalDataMode.REPORT,
    ) -> None:
        self._callers = Callers(tenants, admission, personal_data)
        self._limits = AllLimits(*_limits(tenants, admission))
        self.shared = ReplicatedLimits(self._limits)
        """Replicates the usage to and from other gateways."""

    def replace(
        self,
        tenants: Sequence[TenantSettings],
        admission: AdmissionSettings,
        *,
        personal_data: PersonalDataMode = PersonalDataMode.REPORT,
    ) -> None:
        """Replace the settings for the next requests. Remaining tenants keep their usage.

        Requests that are already admitted are not affected.
        """
        self._callers = Callers(tenants, admission, personal_data)
        self._limits.replace(*_limits(tenants, admission))

    def identify(self, headers: Sequence[tuple[bytes, bytes]], peer: str, wall: float) -> Caller:
        """Authenticate a request without counting it against a limit.

        Args:
            headers: The request's, names in lower case.
            peer: Address that the connection comes from; empty if unknown.
            wall: Unix seconds.

        Raises:
            Unauthorized, Forbidden, BadRequest: the error to send to the client.
        """
        return self._callers.identify(headers, dict(headers), peer, wall)

    def admit(
        self, headers: Sequence[tuple[bytes, bytes]], named: Mapping[bytes, bytes], peer: str, wall: float, now: float
    ) -> Admission:
        """Authenticate a request and count it against the tenant's limits.

        Args:
            headers: The request's, names in lower case.
            named: The last header of each name.
            peer: Address that the connection comes from; empty if unknown.
            wall: Unix seconds.
            now: Monotonic seconds.

        Raises:
            Unauthorized, Forbidden, BadRequest: the error to send to the client.
            RateLimited: the tenant has no request left.
        """
        caller = self._callers.identify(headers, named, peer, wall)
        try:
            state = self._limits.admit(caller.tenant.id, now)
        except RateLimited as refusal:
            refusal.caller = caller
            raise
        return Admission(caller, state.counts_tokens, caller.tenant.id, self._limits, state, now)

    def tenant(self, tenant: str) -> Tenant | None:
        """The tenant with this id; None if there is none."""
        return self._callers.tenant(tenant)


def _limits(tenants: Sequence[TenantSettings], admission: AdmissionSettings) -> tuple[dict[str, Limits], Limits | None]:
    """Limits of each tenant with an entry, and of the others."""
    listed = {entry.id: Limits.of(entry) for entry in tenants}
    unlisted = listed.pop(ANYBODY, None)
    if is_open(tenants, admission):
        listed.setdefault(DEFAULT_TENANT, Limits())
    return listed, unlisted
