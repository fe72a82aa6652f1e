"""Settings of tenants and admission: keys, limits, trusted proxies."""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gateway.config.trusted_proxies import check_network
from gateway.core.api_keys import hash_key, parse_expiry, parse_hash, short_id
from gateway.core.canonical import RuleModes, read_modes
from gateway.core.tenant import ANYBODY, check_name, check_name_or_any

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_TAKEN_HEADERS = frozenset(
    "authorization connection content-encoding content-length content-type cookie expect host transfer-encoding "
    "user-agent x-cache-scope x-forwarded-for x-request-id x-session-id".split()
)
_PLAIN_WORD = re.compile(r"[A-Za-z_-]{1,20}")


class KeySettings(BaseModel):
    """One API key of a tenant: its hash, and what it may do. Plain text is short for a key with only a `hash`."""

    model_config = _STRICT

    hash: SecretStr
    """Hash of the key, `sha256:` and 64 hex digits, as `prefix-gateway key` prints it beside the key. The configuration
    never holds the key itself, so reading the file gives no access. Required; each hash may stand in the
    file once."""

    id: str = Field(default=None, validate_default=True)
    """Name of the key in the audit log, 1 to 64 characters out of `A-Z a-z 0-9 . _ : -`. Default: `sha256:` and the
    first eight digits of its hash. Set it to see at a glance whose key it is."""

    expires: str | None = None
    """When the key stops being valid: a date (`2027-01-31`, the last day on which it is valid, in UTC) or a time
    (`2027-01-31T12:00:00Z`, in UTC if it names no zone). Null: never. Too near: clients are refused before they have
    the next key; too far or never: a lost key stays valid for its finder."""

    models: tuple[str, ...] | None = None
    """Ids of the models that requests with this key may use, out of those the tenant may use. Null: all of those."""

    scope: str = ""
    """Scope (a role, a language, an environment) of requests that do not name one with `x-cache-scope`. Requests of
    different scopes share no cached prefix. Empty: none."""

    scopes: tuple[Annotated[str, AfterValidator(check_name_or_any)], ...] = ()
    """Further scopes that requests may ask for with `x-cache-scope`; `*` is any. Empty: only `scope`."""

    @model_validator(mode="before")
    @classmethod
    def _from_plain_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"hash": value}
        if isinstance(value, dict):
            # A key that was pasted in front of a colon would be shown as an unknown setting.
            if any(not _PLAIN_WORD.fullmatch(str(name)) for name in value):
                raise ValueError(f"unknown key, not shown here; expected {', '.join(cls.model_fields)}")
            return value
        if isinstance(value, cls):
            return value
        # Not left to the type check, whose message shows what it got: it may be the key itself, all digits.
        return {"hash": None}

    @field_validator("hash", mode="before")
    @classmethod
    def _is_a_hash(cls, value: Any) -> Any:
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        parse_hash(text if isinstance(text, str) else "")
        return value

    @field_validator("id", mode="before")
    @classmethod
    def _named_by_hash(cls, name: Any, info: ValidationInfo) -> Any:
        if name is not None:
            return name
        # A hash that was refused is not in ``data``; the key is refused with it, so any name will do.
        return short_id(parse_hash(info.data["hash"].get_secret_value())) if "hash" in info.data else "unnamed"

    @field_validator("id")
    @classmethod
    def _is_a_name_and_not_the_key(cls, name: str, info: ValidationInfo) -> str:
        if "hash" in info.data and hash_key(name) == info.data["hash"].get_secret_value().lower():
            raise ValueError("the key itself, which would stand in every log (give it a name)")
        return check_name(name)

    @field_validator("expires")
    @classmethod
    def _is_a_time(cls, expires: str | None) -> str | None:
        if expires is not None:
            parse_expiry(expires)
        return expires

    @field_validator("models")
    @classmethod
    def _names_models(cls, models: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return _not_empty(models, "model")

    @field_validator("scope")
    @classmethod
    def _is_a_scope(cls, scope: str) -> str:
        return check_name(scope) if scope else scope

    @property
    def digest(self) -> bytes:
        """The hash's 32 bytes."""
        return parse_hash(self.hash.get_secret_value())

    @property
    def expires_at(self) -> float | None:
        """Unix seconds from which on the key is not valid; None for never."""
        return None if self.expires is None else parse_expiry(self.expires)


class TenantSettings(BaseModel):
    """A customer, team or application, which shares cached prefixes only with itself or its group, and has limits of
    its own."""

    model_config = _STRICT

    id: str
    """Name of the tenant in logs, metrics and the admin API, 1 to 64 characters out of `A-Z a-z 0-9 . _ : -`. Each may
    stand in the file once. `default` is the tenant of every request where no keys and no trusted proxies are
    configured; `*` is every tenant that a trusted proxy names and that has no entry of its own, with limits
    for each of them; without that entry they are refused."""

    group: str = ""
    """Tenants that trust each other have the same group, and with `spaces.isolation: group` they share cached prefixes.
    Empty: it shares with no other tenant. Tenants that share can detect by timing what the others sent."""

    keys: tuple[KeySettings, ...] = ()
    """The tenant's API keys: a list of hashes or of mappings. Several, so that a key can be replaced without a moment
    in which none is valid. Empty: only a trusted proxy can name the tenant."""

    models: tuple[str, ...] | None = None
    """Ids of the models that the tenant may use. For it, others do not exist. Null: all."""

    regions: tuple[str, ...] | None = None
    """Regions to which its requests may go (`region` of a replica), also when all replicas there fail: then the answer
    is 503. Null: everywhere."""

    requests_per_second: float | None = Field(default=None, ge=0.0001, le=100_000)
    """Most requests admitted in any second; more are answered with 429. Fractions are whole requests in another time:
    0.5 is one in two seconds, 2.5 are two in 0.8 seconds. Null: no limit. Too small: bursts of well-behaved clients are
    refused; too large: one tenant's flood is felt by all."""

    concurrent: int | None = Field(default=None, ge=1)
    """Most requests of the tenant that may run at once; more are answered with 429. Null: no limit. Too small: clients
    that work in parallel are refused; too large: one tenant's long answers take every place in the engines."""

    prompt_tokens_per_minute: int | None = Field(default=None, ge=1)
    """Most prompt tokens in any minute, cached ones included; more are answered with 429. Null: no limit. A prompt that
    is longer than this is never taken, so too small: long prompts are refused for good; too large: a few very long
    prompts delay all others."""

    share: float = Field(default=1, ge=0.001, le=1000)
    """Its weight when requests have to wait for replicas (see `queue`): a tenant with 2 has twice as many prompt tokens
    computed in the same time as one with 1, as long as both wait. While no request waits it has no effect. Too large:
    the others wait; too small: it does."""

    priority: bool = False
    """Whether its requests may carry `priority`, by which engines that schedule by priority put them in front of all
    others, for any `share`. Without it such requests are refused, unless `spaces.isolation` is `none`. True only
    for tenants that may delay everyone else."""

    personal_data: Literal["off", "report", "mask", "block"] | None = None
    """The action on personal data found in its requests. Null: `personal_data.mode`."""

    canon: Annotated[RuleModes, BeforeValidator(read_modes)] = {}
    """Modes of canonicalization rules for its requests; they go before those of `canon` and of the model. A rule that
    is not named is as there."""

    idle_ttl_seconds: float | None = Field(default=None, gt=0)
    """Seconds without a request after which its prefix spaces end, and what is cached for them cannot be reached any
    more. Null: `spaces.idle_ttl_seconds`. Too small: every pause of the tenant makes its next prompt cold."""

    max_age_seconds: float | None = Field(default=None, gt=0)
    """Seconds after which its prefix spaces end in any case. Null: `spaces.max_age_seconds`. Too small: prompts turn
    cold again and again."""

    @field_validator("id")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        return check_name_or_any(name)

    @field_validator("group")
    @classmethod
    def _is_a_group(cls, group: str) -> str:
        return check_name(group) if group else group

    @field_validator("keys", mode="before")
    @classmethod
    def _is_a_list_of_keys(cls, keys: Any, info: ValidationInfo) -> Any:
        # Not left to the type check, whose message shows what it got: it may be a key.
        if not isinstance(keys, list | tuple):
            raise ValueError("expected a list (`- ` before each hash; make one with `prefix-gateway key`)")
        if keys and info.data.get("id") == ANYBODY:
            raise ValueError("`*` stands for tenants that a trusted proxy names (keys belong to a tenant with a name)")
        return keys

    @field_validator("models")
    @classmethod
    def _names_models(cls, models: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return _not_empty(models, "model")

    @field_validator("regions")
    @classmethod
    def _names_regions(cls, regions: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return _not_empty(regions, "region")


class AdmissionSettings(BaseModel):
    """Authentication of clients. Without keys and trusted proxies, all requests belong to tenant `default`."""

    model_config = _STRICT

    open: bool = False
    """Whether the gateway serves all clients on an address that other machines may reach (`server.host`) although no
    tenant has keys. False: it does not start there without keys or trusted proxies, so that it is not opened to the
    network by accident. On loopback it is not needed; beside keys it is refused, because it would not hold."""

    tenant_header: str = "x-tenant-id"
    """Request header by which a trusted proxy names the tenant. A request that carries it and comes from another
    address is refused, in every mode, because its client would wrongly expect isolation."""

    trusted_proxies: tuple[Annotated[str, AfterValidator(check_network)], ...] = ()
    """Addresses or networks (`10.0.0.7`, `10.0.0.0/8`, `fd00::/8`) of proxies that have checked who asks and say so in
    `tenant_header`, and for which scope in `x-cache-scope`. They have to remove both headers from what their own
    clients send. The address of the connection counts, never `x-forwarded-for`. Empty: none. Too wide: any client
    with an address in it can act as any tenant."""

    @field_validator("tenant_header")
    @classmethod
    def _is_a_header_of_its_own(cls, name: str) -> str:
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError("expected the name of a header, such as x-tenant-id")
        if name.lower() in _TAKEN_HEADERS:
            raise ValueError("a header with a meaning of its own (choose another, such as x-tenant-id)")
        return name.lower()


def is_open(tenants: Iterable[TenantSettings], admission: AdmissionSettings) -> bool:
    """Whether clients need not authenticate: there is no key, and no trusted proxy."""
    return not admission.trusted_proxies and not any(tenant.keys for tenant in tenants)


def _not_empty(names: tuple[str, ...] | None, what: str) -> tuple[str, ...] | None:
    if names is not None and not names:
        raise ValueError(f"expected at least one {what} (leave the setting out for all)")
    return names
