"""Settings of discovery: where the replicas of a model are found that the configuration does not name."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator, model_validator

from gateway.config.replica_settings import TlsSettings, event_source, header_secret, region_name, replay_source

ZONE = "zone"
"""Value of ``template.region``: the zone that Kubernetes reports for each replica."""

HOST = "{host}"
"""Placeholder for the replica's host in ``template.events`` and ``template.replay``."""

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)
_HIGHEST_PORT = 65535


class DnsSettings(BaseModel):
    """Names that are looked up again and again. Give either `name` and `port`, or `srv`."""

    model_config = _STRICT

    name: str = ""
    """A name with one address for each replica (A and AAAA records), such as that of a headless service:
    `vllm.default.svc`. A name without a dot at its end is also tried with the search domains of `/etc/resolv.conf`."""

    port: int | None = Field(default=None, ge=1, le=_HIGHEST_PORT)
    """Port of the engines. Only with `name`; SRV records contain the port."""

    srv: str = ""
    """A name with one SRV record for each replica, such as `_http._tcp.vllm.default.svc`; it contains host and port."""

    scheme: Literal["http", "https"] = "http"
    """How the engines are spoken to. With `https` and `name`, their certificates have to be good for the address."""

    interval_seconds: float = Field(default=10, gt=0)
    """Longest time in seconds between two looks; records that may be kept for a shorter time are looked up sooner, but
    not more often than once a second. Too large: new replicas stay idle, and those that left are tried for longer."""

    server: str = ""
    """Address of the name server, `10.0.0.2` or `10.0.0.2:8600`. Empty: those in `/etc/resolv.conf`."""

    @field_validator("server")
    @classmethod
    def _is_an_address(cls, server: str) -> str:
        if server:
            name_server(server)
        return server

    @model_validator(mode="after")
    def _is_one_question(self) -> Self:
        if bool(self.name) is bool(self.srv):
            raise ValueError("expected either name (with port) or srv")
        if self.name and self.port is None:
            raise ValueError("port is required beside name: address records do not tell it")
        if self.srv and self.port is not None:
            raise ValueError("port is not used with srv: its records tell it (remove it)")
        return self


def name_server(server: str) -> tuple[str, int]:
    """Address and port of a name server, as the configuration gives it.

    Raises:
        ValueError: it is none.
    """
    import ipaddress

    host, port = server, 53
    if server.startswith("[") or server.count(":") == 1:
        try:
            parts = urlsplit(f"//{server}")
            host, port = parts.hostname or "", parts.port or 53
        except ValueError:
            host = ""
    try:
        return str(ipaddress.ip_address(host)), port
    except ValueError:
        raise ValueError("expected an IP address, with a port or without: 10.0.0.2 or 10.0.0.2:8600") from None


def _as_text(port: Any) -> Any:
    return str(port) if type(port) is int else port


class KubernetesSettings(BaseModel):
    """The endpoints of a Kubernetes service, watched as they change. The gateway's service account needs `get`, `list`
    and `watch` for `endpointslices` (`discovery.k8s.io`) in the namespace."""

    model_config = _STRICT

    service: str = Field(min_length=1)
    """Name of the service whose pods are the replicas. A pod's name becomes the replica's id (`vllm-0`), with the
    namespace behind it if that is given (`vllm-0.ml`)."""

    namespace: str | None = Field(default=None, min_length=1)
    """Where the service is. Null: in the namespace that the gateway runs in. Give it where the services of several
    models are in namespaces of their own: their pods may have the same names."""

    port: Annotated[str, BeforeValidator(_as_text)] = ""
    """Name or number of the service's port at which the engines listen. Empty: the only one that it has."""

    scheme: Literal["http", "https"] = "http"
    """How the engines are spoken to. With `https`, their certificates have to be good for the pods' addresses."""

    api_url: str | None = None
    """The Kubernetes API, such as `https://10.96.0.1`. Null: that of the cluster the gateway runs in."""

    token_file: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
    """Token of the service account; read again for every connection. A file that is not there: none is sent."""

    ca_file: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
    """Certificate of the authority that vouches for the API. A file that is not there: the system's are trusted."""

    @field_validator("service", "namespace")
    @classmethod
    def _fits_a_path(cls, name: str | None) -> str | None:
        if name is not None and not name.replace("-", "").replace(".", "").isalnum():
            raise ValueError("expected a name as Kubernetes knows it: letters, digits, - and .")
        return name

    @field_validator("api_url")
    @classmethod
    def _is_a_url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise ValueError("expected an http or https URL, such as https://10.96.0.1")
        return url.rstrip("/")


class FileSettings(BaseModel):
    """A file with a list of replicas, read again when it changes."""

    model_config = _STRICT

    path: Path
    """The file: YAML with a list as in `replicas`, variables and secret files included. Write a new file beside it
    and move it there, so that it is never read half-written. A relative path starts at the working directory."""


class TemplateSettings(TlsSettings):
    """Settings of all replicas that DNS or Kubernetes lists. The replicas of a file have their own."""

    api_key: SecretStr | None = Field(default=None, min_length=1)
    """As in `replicas`."""

    region: str = ""
    """As in `replicas`; `zone` is replaced by the zone of the pod's node in Kubernetes."""

    events: str = "auto"
    """As in `replicas`; in an address, `{host}` is replaced by the replica's: `tcp://{host}:5557`."""

    replay: str | None = None
    """As in `replicas`; in an address, `{host}` is replaced by the replica's."""

    @field_validator("api_key")
    @classmethod
    def _secret_fits_a_header(cls, key: SecretStr | None) -> SecretStr | None:
        return header_secret(key)

    @field_validator("region")
    @classmethod
    def _is_a_region(cls, region: str) -> str:
        return region_name(region) if region else region

    @field_validator("events")
    @classmethod
    def _is_an_event_source(cls, events: str) -> str:
        event_source(events.replace(HOST, "host"))
        return events

    @model_validator(mode="after")
    def _replay_belongs_to_events(self) -> Self:
        if self.replay is not None:
            replay_source(self.replay.replace(HOST, "host"), self.events)
        return self


class DiscoverSettings(BaseModel):
    """Where replicas are found: exactly one of `dns`, `kubernetes` and `file`. A source that fails leaves the replicas
    as they are."""

    model_config = _STRICT

    dns: DnsSettings | None = None
    """In DNS. Null: not there."""

    kubernetes: KubernetesSettings | None = None
    """In Kubernetes. Null: not there."""

    file: FileSettings | None = None
    """In a file. Null: not there."""

    template: TemplateSettings = TemplateSettings()
    """Settings of all replicas that DNS or Kubernetes lists."""

    empty_after_seconds: float = Field(default=30, ge=0)
    """How long a source has to say that there is no replica (any more) until that is believed. Too small: a name server
    or a service that is being set up again removes all replicas; too large: requests to replicas that are all gone fail
    one by one and not at once."""

    @property
    def source(self) -> str:
        """Which it is: ``dns``, ``kubernetes`` or ``file``."""
        return next(name for name in ("dns", "kubernetes", "file") if getattr(self, name) is not None)

    @model_validator(mode="after")
    def _is_one_source(self) -> Self:
        if sum(each is not None for each in (self.dns, self.kubernetes, self.file)) != 1:
            raise ValueError("expected exactly one of dns, kubernetes and file")
        if self.file is not None and self.template != TemplateSettings():
            raise ValueError("template is not used with file (its replicas bring their own keys)")
        if self.dns is not None and self.template.region == ZONE:
            raise ValueError("template.region: zone is only known in kubernetes")
        return self
