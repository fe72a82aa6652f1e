"""Settings of the HTTP server: where the gateway listens, and the limits of requests."""

import ipaddress
import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator

from gateway.core.api_keys import hash_key, parse_expiry, parse_hash
from gateway.core.json_portions import JsonLimits
from gateway.core.numbers import MAX_SEQUENCES

_MAX_CONTAINERS = 100_000
"""Objects and lists in a body. A long conversation with tools has some thousands; 16 MiB could hold millions."""

ANY_ORIGIN = "*"
"""The entry of ``server.cors_origins`` for every origin."""

_TOKEN_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_TAKEN_ID = "admin_token"
_LONGEST_TOKEN = 512
_PLAIN_WORD = re.compile(r"[A-Za-z_-]{1,20}")
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_VISIBLE_ASCII = re.compile(r"[!-~]+")
_ORIGIN = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]{0,31})://([A-Za-z0-9._*-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?([/?#].*)?"
)
_PREFIX = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)+")
_NEVER_PASSED = re.compile(
    "abort|adapter|admin|cache|chat|collective|completion|config|debug|docs|drain|dump|elastic|exit|expert|flush|freeze"
    "|generat(?!ive_sc)|health|inference|internal|invocation|kill|kv_|load|logging|lora|memory|messages|metrics|model"
    "|openapi|pause|/ping|profil|readyz|redoc|render|reset|responses|restart|resume|rpc|scal(?:e|ing)|server_info"
    "|session|shutdown|simulator|sleep|slow_down|start|stop|terminate|trace|transfer|update|version|wake|weight"
)
"""Words in paths that manage engines, show their state, or generate past the prefix spaces."""
_OWN_PORTS = {"http": "80", "https": "443"}
_EXAMPLE_ORIGIN = "https://app.example.com"
_SHOWN_ORIGIN = 100


class AdminTokenSettings(BaseModel):
    """One token of the admin port: its hash, and what it may do."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    id: str
    """Name of the token in the audit log, 1 to 64 characters out of `A-Z a-z 0-9 . _ : -`; each may stand here once."""

    hash: SecretStr
    """Hash of the token, `sha256:` and 64 hex digits, as `prefix-gateway key --admin` prints it beside the token. The
    configuration never holds the token itself, so reading the file gives no access."""

    role: Literal["read", "operate"] = "read"
    """What it may do. `read`: look at everything (metrics, replicas, spaces, configuration), as a dashboard needs;
    `operate`: also reset spaces and warm caches."""

    expires: str | None = None
    """When the token stops being valid: a date (`2027-01-31`, the last day on which it is valid, in UTC) or a time
    (`2027-01-31T12:00:00Z`, in UTC if it names no zone). Null: never. Too near: dashboards go dark before they have the
    next token; too far or never: a lost token stays valid for its finder."""

    @model_validator(mode="before")
    @classmethod
    def _is_a_mapping(cls, value: Any) -> Any:
        # Not left to the type check, whose message shows what it got: it may be the token itself.
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict) or any(not _PLAIN_WORD.fullmatch(str(name)) for name in value):
            raise ValueError(
                "expected a mapping with id, hash, role and expires (make one with `prefix-gateway key --admin`)"
            )
        return value

    @field_validator("id")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not _TOKEN_ID.fullmatch(name):
            raise ValueError("expected a name of 1 to 64 characters out of A-Z a-z 0-9 . _ : -")
        if name == _TAKEN_ID:
            raise ValueError(f"{_TAKEN_ID} is the name of server.admin_token in the audit log (take another)")
        return name

    @field_validator("hash", mode="before")
    @classmethod
    def _is_a_hash(cls, value: Any, info: ValidationInfo) -> Any:
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        digest = parse_hash(text if isinstance(text, str) else "")
        if parse_hash(hash_key(info.data.get("id", ""))) == digest:
            raise ValueError("hash of its id, which would stand in the audit log (give the token a name of its own)")
        return value

    @field_validator("expires")
    @classmethod
    def _is_a_time(cls, expires: str | None) -> str | None:
        if expires is not None:
            parse_expiry(expires)
        return expires

    @property
    def digest(self) -> bytes:
        """The hash's 32 bytes."""
        return parse_hash(self.hash.get_secret_value())

    @property
    def expires_at(self) -> float | None:
        """Unix seconds from which on the token is not valid; None for never."""
        return None if self.expires is None else parse_expiry(self.expires)


class ServerSettings(BaseModel):
    """The two ports of the gateway: the public one for clients, the admin one for operators."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    host: str = "127.0.0.1"
    """Address the public port listens on: an IP address or a host name, without scheme and port. Loopback by default,
    so that nothing is exposed by accident; `0.0.0.0` listens on every IPv4 address, as a container needs."""

    port: int = Field(default=8080, ge=0, le=65535)
    """TCP port clients connect to. 0 takes any free port, which the log then names."""

    root_path: str = ""
    """Prefix of the paths of the public port, such as `/llm` where an ingress passes `/llm/v1/models` on as it is.
    It is taken off before anything else looks at the path. Paths without it are served as well, as probes use them.
    Empty: none, for ingresses that take their prefix off themselves."""

    admin_host: str = "127.0.0.1"
    """Address of the admin port (metrics, admin API). On anything but loopback `admin_token` or one of `admin_tokens`
    is required."""

    admin_port: int = Field(default=8081, ge=0, le=65535, validate_default=True)
    """TCP port of the admin side, different from `port`. 0 takes any free port, which the log then names."""

    admin_tokens: tuple[AdminTokenSettings, ...] = ()
    """Further tokens of the admin port, each with a name, a role and, if you like, an end. With `admin_token` or any of
    these, callers have to send one as `authorization: Bearer`."""

    admin_token: SecretStr | None = Field(default=None, min_length=1, validate_default=True)
    """Secret that callers of the admin port send as `authorization: Bearer`; it may do everything, and never ends.
    Null, and no `admin_tokens`: no token is asked for, which is accepted on loopback only, because the admin port shows
    what every client does."""

    cors_origins: tuple[str, ...] = Field(default=(), max_length=100)
    """Origins of web pages that may use the public port from a browser: exact ones such as `https://app.example.com`
    (scheme, host, and the port if it is not the scheme's own), or `*` alone for every page. Empty: none; browsers then
    block such requests, and other clients notice nothing. Pages authenticate with a key that they send themselves:
    cookies are never allowed. Where no keys are configured, every page of a listed origin, and with `*` every page that
    is opened on this network, can use the models."""

    passthrough_paths: tuple[str, ...] = Field(default=(), max_length=100)
    """Further paths of the engines that clients may call with GET and POST, such as `[/v1/classify, /pooling]`:
    exactly these, at a replica of the request's model. Paths that manage an engine, show its state or generate are
    refused here. Empty: none. Can be changed while the gateway runs."""

    max_body_bytes: int = Field(default=16 * 1024 * 1024, ge=1, le=1024**3)
    """Largest request body, in bytes; a larger one is answered with 413. 16 MiB holds a prompt of a million tokens, and
    bounds what one client can make the gateway hold. Too small: long prompts and inline images are refused."""

    max_header_bytes: int = Field(default=65536, ge=1024)
    """Largest head of a request (request line and headers), in bytes; a larger one is answered with 431. 64 KiB is
    above what browsers, proxies and tracing send together. Too small: requests with long cookies or traces are
    refused; too large: clients without a key can make the gateway hold that much each."""

    max_json_depth: int = Field(default=64, ge=1, le=512)
    """Deepest nesting of a request body, in levels; a deeper one is answered with 400. Real requests stay below 20,
    tool schemas included. Too small: requests with nested tool schemas are refused."""

    max_sequences: int = Field(default=MAX_SEQUENCES, ge=1, le=MAX_SEQUENCES)
    """Sequences that one request may ask for: its choices (`n`, `best_of`) times its prompts; more are answered with
    400. 16384 is vLLM's own limit of `n`. An engine computes each of them as a request of its own, in front of those
    that come later. Too small: batches of prompts and large `n` are refused; too large: one request can hold up a
    replica for everyone else."""

    max_json_members: int = Field(default=200_000, ge=100, le=1_000_000)
    """Most members of all objects in a request body, those in the arguments of tool calls included; more are answered
    with 400. The largest tool schemas have some thousands. Too small: requests with many tools are refused; too large:
    one body takes seconds of CPU and hundreds of MiB."""

    max_json_values: int = Field(default=1_250_000, ge=1000, le=10_000_000)
    """Most values in a request body: items of lists and members of objects, those in the arguments of tool calls
    included; more are answered with 400. The default lets a prompt of a million token ids in. Too small: long prompts
    of token ids are refused; too large: one body takes seconds of CPU and hundreds of MiB."""

    max_held_mib: int = Field(default=1024, ge=1, le=1_048_576)
    """Memory that the bodies of all running requests of one process may take, in MiB: their bytes, from when they
    arrive, and what these become when they are parsed. What does not fit any more is answered with 503. Count on a
    third of the memory that the process has. Too small: requests are refused at peaks; too large: the process is killed
    for its memory."""

    max_held_tenant_mib: int = Field(default=512, ge=1, le=1_048_576)
    """The same for the requests of one tenant, answered with 429. Half of `max_held_mib` leaves the other tenants the
    other half. In open mode, where all requests are of one tenant, `max_held_mib` alone holds. Too small: requests with
    large bodies are refused; as large as `max_held_mib`: one tenant can have all others refused."""

    keep_alive_seconds: float = Field(default=75, gt=0)
    """Seconds an idle client connection stays open. 75 is above the 60 of common load balancers, so that the gateway is
    not the first to close. Too small: clients see resets on reused connections."""

    receive_seconds: float = Field(default=60, gt=0)
    """Seconds in which a request has to arrive, from its first byte to the last one of its body; a later one is
    answered with 408. A new connection on which nothing comes for so long is closed. 60 lets 16 MiB arrive at 2.3
    Mbit/s. Too small: large requests over slow lines are refused; too large: clients that send a byte now and then
    hold their connections for so long."""

    workers: int = Field(default=1, ge=1, le=64)
    """Processes that answer on the public port together, as several gateways would. One answers from a single CPU core;
    more need as many cores, and each holds the tokenizers and an index of its own. What they share by themselves and
    for what they need a Redis (`state`) stands in `docs/workers.md`. Needs Linux when there is more than one."""

    drain_seconds: float = Field(default=5, ge=0)
    """Seconds for which requests are still taken after SIGTERM, while `/readyz` already answers 503 and every answer
    ends its connection. Load balancers need that long to notice (in Kubernetes: until the pod's address is gone from
    every node). 0, or Ctrl-C: none. Too small: clients are refused during roll-outs; too large: these take longer."""

    shutdown_grace_seconds: float = Field(default=30, ge=0)
    """Seconds that running answers get to finish once no more are taken; what still runs then is ended with an error. A
    pod's `terminationGracePeriodSeconds` (30 in Kubernetes by default) has to be longer than this, `drain_seconds` and
    10 seconds together, or the pod is killed first. Too small: long answers are cut by every roll-out."""

    @property
    def json_limits(self) -> JsonLimits:
        """What a request body may hold."""
        return JsonLimits(self.max_json_depth, _MAX_CONTAINERS, self.max_json_members, self.max_json_values)

    @field_validator("host", "admin_host")
    @classmethod
    def _is_an_address(cls, host: str) -> str:
        if not _is_ip(host) and not _HOST_NAME.fullmatch(host):
            raise ValueError("expected an IP address or a host name, without scheme and port (such as 0.0.0.0)")
        return host

    @field_validator("root_path")
    @classmethod
    def _is_a_prefix(cls, prefix: str) -> str:
        prefix = prefix.rstrip("/")
        if prefix and (not _PREFIX.fullmatch(prefix) or f"{prefix}/".startswith("/v1/")):
            raise ValueError("expected a path such as /llm, of A-Z a-z 0-9 . _ ~ - and single slashes, and not /v1")
        return prefix

    @field_validator("passthrough_paths")
    @classmethod
    def _are_harmless_paths(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if not _PREFIX.fullmatch(path) or len(path) > 200:
                raise ValueError("expected paths such as /v1/classify, of A-Z a-z 0-9 . _ ~ - and single slashes")
            if found := _NEVER_PASSED.search(path.lower().replace("-", "_")):
                raise ValueError(f"{path} is never passed on, because of {found[0]!r} in it (leave it out)")
        return paths

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != ANY_ORIGIN:
                _check_origin(origin)
        if ANY_ORIGIN in origins and len(origins) > 1:
            raise ValueError("`*` stands for every origin (write it alone, or leave it out)")
        return origins

    @field_validator("admin_port")
    @classmethod
    def _is_a_port_of_its_own(cls, port: int, info: ValidationInfo) -> int:
        if port and port == info.data.get("port"):
            raise ValueError("the same as server.port, expected a port of its own (choose another number)")
        return port

    @field_validator("max_held_mib", "max_held_tenant_mib")
    @classmethod
    def _holds_one_body(cls, mib: int, info: ValidationInfo) -> int:
        if mib * 1024 * 1024 < info.data.get("max_body_bytes", 0):
            raise ValueError("less than server.max_body_bytes, so that no body of that size could be received")
        return mib

    @field_validator("admin_tokens", mode="before")
    @classmethod
    def _is_a_list_of_tokens(cls, tokens: Any) -> Any:
        # Not left to the type check, whose message shows what it got: it may be a token.
        if not isinstance(tokens, list | tuple):
            raise ValueError("expected a list (`- ` before each token's id, hash, role and expires)")
        return tokens

    @field_validator("admin_tokens")
    @classmethod
    def _are_different(cls, tokens: tuple[AdminTokenSettings, ...]) -> tuple[AdminTokenSettings, ...]:
        for number, token in enumerate(tokens):
            for earlier in tokens[:number]:
                if token.id == earlier.id:
                    raise ValueError(f"two of them are called {token.id} (give one of them another id)")
                if token.digest == earlier.digest:
                    raise ValueError(f"{earlier.id} and {token.id} have the same hash (make a token for each)")
        return tokens

    @field_validator("admin_token")
    @classmethod
    def _is_there_when_exposed(cls, token: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        # Either is missing if it was refused, which is reported by itself.
        host, others = info.data.get("admin_host"), info.data.get("admin_tokens")
        if token is None:
            if host is not None and others == () and not is_loopback(host):
                raise ValueError(
                    "required, because admin_host is an address that other machines may reach "
                    "(set a token here or in admin_tokens, or set admin_host to 127.0.0.1)"
                )
            return None
        plain = token.get_secret_value()
        if not _VISIBLE_ASCII.fullmatch(plain):
            raise ValueError("a token travels in a header: expected visible ASCII characters, without spaces")
        if len(plain) > _LONGEST_TOKEN:
            raise ValueError(f"expected at most {_LONGEST_TOKEN} characters")
        if any(parse_hash(hash_key(plain)) == other.digest for other in others or ()):
            raise ValueError("its hash stands in admin_tokens, too (remove one of them)")
        return token


def _check_origin(origin: str) -> None:
    """Accept an origin in the form in which browsers send it, so that comparing bytes is enough."""
    match = _ORIGIN.fullmatch(origin)
    if match is None:
        raise ValueError(f"{origin[:_SHOWN_ORIGIN]!r} is no origin, expected scheme and host such as {_EXAMPLE_ORIGIN}")
    scheme, host, port, rest = match[1].lower(), match[2].lower(), match[3], match[4]
    sent = f"{scheme}://{host}" + ("" if port is None or _OWN_PORTS.get(scheme) == port else f":{port}")
    if rest:
        raise ValueError(f"{origin[:_SHOWN_ORIGIN]!r} has a path, which an origin has not (write {sent})")
    if "*" in host:
        raise ValueError(f"{origin!r} is a pattern, expected exact origins (list each of them, or write `*` alone)")
    if origin != sent:
        raise ValueError(f"browsers send {origin!r} as {sent} (write that)")


def _is_ip(host: str) -> Literal[4, 6, False]:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    return ipaddress.ip_address(host).is_loopback if _is_ip(host) else host.rstrip(".").lower() == "localhost"
