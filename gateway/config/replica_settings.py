"""Settings of one replica, from the file or from discovery."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator

from gateway.core.api_keys import looks_like_key
from gateway.http_client.client import TlsFiles, changed_at, tls_context

_VISIBLE_ASCII = re.compile(r"[!-~]+")
_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)
_HIGHEST_PORT = 65535
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class TlsSettings(BaseModel):
    """Files of the connections to https replicas. They are read again when they change; relative paths start at the
    working directory."""

    model_config = _STRICT

    ca_file: Path | None = None
    """Certificates (PEM) of the authorities that vouch for an https replica, in place of the system's. Null: the
    system's, or those in the environment variable `SSL_CERT_FILE`."""

    cert_file: Path | None = None
    """Certificate (PEM) for https replicas that ask for one (vLLM's `--ssl-cert-reqs 2`). Null: none."""

    key_file: Path | None = Field(default=None, validate_default=True)
    """Key (PEM, not encrypted) of `cert_file`. Null: it is in `cert_file`."""

    @field_validator("ca_file", "cert_file", "key_file")
    @classmethod
    def _is_usable(cls, file: Path | None, info: ValidationInfo) -> Path | None:
        cert, is_key = info.data.get("cert_file"), info.field_name == "key_file"
        if file is not None and not file.is_file():
            raise ValueError(f"no such file: {file.absolute()}")
        if is_key and file is not None and cert is None:
            raise ValueError("only used beside a valid cert_file")
        files = (None, cert, file) if is_key else (file, None, None)
        try:
            tls_context(files, changed_at(files))
        except OSError as error:
            wanted = "unencrypted key of cert_file" if is_key else "certificate"
            raise ValueError(f"no {wanted} in PEM form: {file or cert} ({error})") from None
        return file

    @property
    def tls_files(self) -> TlsFiles:
        """Of an https connection."""
        return self.ca_file, self.cert_file, self.key_file


class ReplicaSettings(TlsSettings):
    """One engine process that serves the model. A plain URL is short for a replica with only a `url`."""

    url: str
    """Where the engine listens: an http or https URL, such as `http://vllm-0:8000`. A path prefix is allowed, a query
    is not; leave the API's own `/v1` off. Each URL may stand in the file once."""

    id: str = Field(default=None, validate_default=True)
    """Name of the replica in headers, logs and metrics, unique in the file. Default: `host:port` of the URL. Set it
    when the address changes while the replica stays the same."""

    api_key: SecretStr | None = Field(default=None, min_length=1)
    """Secret sent to this replica as `authorization: Bearer`, as vLLM's `--api-key` requires it. Null: no such
    header."""

    region: str = ""
    """Where the replica is, for tenants that are pinned to `regions`: letters, digits and `.`, `_`, `:`, `-`. Empty: in
    none, so that no pinned tenant's request ever goes there."""

    endpoints: tuple[str, ...] | None = Field(default=None, min_length=1, max_length=100)
    """The only paths that the replica serves, such as `[/v1/embeddings]` where other replicas of the model generate.
    `/v1/chat/completions` stands for everything that generates. Null: all that `docs/endpoints.md` lists. Can be
    changed while the gateway runs. Too few: requests to what no replica serves are answered with 404."""

    drain: bool = False
    """Send the replica no more requests; those that it has end as they began. Can be changed while the gateway runs. An
    operator can order the same at the admin port (`POST /admin/api/replicas/drain`); a replica drains as long as one of
    the two says so."""

    events: str = "auto"
    """Where the engine publishes its KV events, from which the gateway learns what its cache holds. `auto` asks the
    engine (`GET /kv_event_sources` of vLLM, `GET /server_info` of SGLang), and connects to TCP ports of the host in
    `url` only; an address such as `tcp://vllm-0:5557` is for engines that do not report theirs, or that publish on
    another host; `off` predicts the cache from what was sent. With data parallelism, give the address of rank 0: rank r
    publishes on the port plus r."""

    replay: str | None = None
    """Where past KV events can be asked for, such as `tcp://vllm-0:5657`. Only beside an address in `events`; with
    `auto` the engine reports it. Without it, what the engine stored before the gateway came, or while the connection
    was broken, is not known."""

    @model_validator(mode="before")
    @classmethod
    def _from_plain_url(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value

    @field_validator("url")
    @classmethod
    def _is_a_base_url(cls, url: str, info: ValidationInfo) -> str:
        parts = _split_url(url)
        if parts is None or parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("expected an http or https URL, such as http://vllm-0:8000")
        if parts.scheme == "http" and any(info.data.get(name) for name in TlsSettings.model_fields):
            raise ValueError("ca_file, cert_file and key_file are only used with https")
        if parts.username is not None:
            raise ValueError("a URL with user or password is not used (give the credential as api_key)")
        if "?" in url or "#" in url:
            raise ValueError("a query or fragment cannot be kept (leave it off)")
        path = parts.path.rstrip("/")
        if path.endswith("/v1"):
            raise ValueError("/v1 is added by the gateway (leave it off)")
        return f"{parts.scheme}://{parts.netloc.lower()}{path}"

    @field_validator("id", mode="before")
    @classmethod
    def _named_by_address(cls, name: Any, info: ValidationInfo) -> Any:
        if name is not None:
            return name
        # A URL that was refused is not in ``data``; the replica is refused with it, so any name will do.
        return address_of(info.data["url"]) if "url" in info.data else "unnamed"

    @field_validator("id")
    @classmethod
    def _fits_a_header(cls, name: str) -> str:
        if not _VISIBLE_ASCII.fullmatch(name):
            raise ValueError("the name travels in a header: expected visible ASCII characters, without spaces")
        return name

    @field_validator("region")
    @classmethod
    def _is_a_region(cls, region: str) -> str:
        return region_name(region) if region else region

    @field_validator("api_key")
    @classmethod
    def _secret_fits_a_header(cls, key: SecretStr | None) -> SecretStr | None:
        return header_secret(key)

    @field_validator("events")
    @classmethod
    def _is_an_event_source(cls, events: str) -> str:
        return event_source(events)

    @field_validator("replay")
    @classmethod
    def _belongs_to_events(cls, replay: str | None, info: ValidationInfo) -> str | None:
        return None if replay is None else replay_source(replay, info.data.get("events"))


class AddedReplica(ReplicaSettings):
    """A replica that an operator adds at the admin port, to the model of this id."""

    model: str


def region_name(region: str) -> str:
    """The region itself.

    Raises:
        ValueError: it is no name.
    """
    if not _NAME.fullmatch(region) or looks_like_key(region):
        raise ValueError("expected a name of 1 to 64 characters out of A-Z a-z 0-9 . _ : -")
    return region


def header_secret(key: SecretStr | None) -> SecretStr | None:
    """The secret itself.

    Raises:
        ValueError: it cannot travel in a header.
    """
    if key is not None and not _VISIBLE_ASCII.fullmatch(key.get_secret_value()):
        raise ValueError("a key travels in a header: expected visible ASCII characters, without spaces")
    return key


def event_source(events: str) -> str:
    """``auto``, ``off`` or a ZeroMQ address, as it is.

    Raises:
        ValueError: it is none of these.
    """
    return events if events in ("auto", "off") else _event_address(events, "auto, off, or ")


def replay_source(replay: str, events: str | None) -> str:
    """A ZeroMQ address, as it is.

    Raises:
        ValueError: it is none, or ``events`` beside it is no address.
    """
    if events in ("auto", "off"):
        raise ValueError("only used beside an address in events (with auto the engine tells where to ask)")
    return _event_address(replay, "")


def _split_url(url: str) -> SplitResult | None:
    """The URL's parts, or None if it is none. ``urlsplit`` removes tabs and line ends in silence, so look before."""
    if not _VISIBLE_ASCII.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        valid = parts.port != 0
    except ValueError:
        return None
    return parts if valid and not parts.netloc.endswith(":") else None


def _event_address(address: str, instead: str) -> str:
    """A ZeroMQ address to connect to."""
    if address.startswith("ipc://") and len(address) > len("ipc://"):
        return address
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if (
        not address.startswith("tcp://")
        or not _VISIBLE_ASCII.fullmatch(address)
        or not host
        or "/" in host
        or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= _HIGHEST_PORT)
    ):
        raise ValueError(f"expected {instead}an address such as tcp://vllm-0:5557")
    if host in ("*", "0.0.0.0", "[::]"):  # noqa: S104 - refused, not bound
        raise ValueError("expected the engine's host name (* is for the engine's own side)")
    return address


def address_of(url: str) -> str:
    """``host:port`` of a valid URL, the scheme's own port included."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    return f"{host}:{port}"
