"""Settings of traces, and whether the OpenTelemetry packages are installed."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from gateway.config.yaml_tree import FILE_PREFIX

_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")


def is_installed() -> bool:
    """Whether the packages of the extra ``tracing`` are installed."""
    try:
        return all(find_spec(name) is not None for name in _NEEDED)
    except ModuleNotFoundError:  # not even the package that the module would be in
        return False


_VISIBLE_ASCII = re.compile(r"[!-~]+")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")


class TracingSettings(BaseModel):
    """OpenTelemetry traces: a span per request, and one per stage below it; sent by OTLP over HTTP. Without any text of
    prompts, and without keys. Requests never wait for it: what cannot be sent is left out and counted. Needs the extra
    `tracing`."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    enabled: bool = False
    """Whether requests are traced. False: the client's `traceparent` and `tracestate` go to the engine as they came."""

    endpoint: str = "http://localhost:4318"
    """Base URL of the collector's OTLP receiver over HTTP; `/v1/traces` is added if it is not there."""

    sample_ratio: float = Field(default=0.01, ge=0, le=1)
    """Share of the requests that are traced, of those whose client sends no `traceparent`; with one, the client's own
    flag decides. Too large: at 1 every request costs the gateway noticeably more; too small: rare problems are not
    seen."""

    service_name: str = Field(default="prefix-gateway", min_length=1)
    """The gateway's name in traces (`service.name`)."""

    headers: dict[str, SecretStr] = {}
    """Sent to the collector with every batch, each value a secret: the credential of a hosted one, say."""

    @field_validator("enabled")
    @classmethod
    def _can_be(cls, enabled: bool) -> bool:
        if enabled and not is_installed():
            raise ValueError("OpenTelemetry is not installed (run: pip install 'prefix-gateway[tracing]')")
        return enabled

    @field_validator("endpoint")
    @classmethod
    def _is_a_url(cls, endpoint: str) -> str:
        try:
            parts = urlsplit(endpoint) if _VISIBLE_ASCII.fullmatch(endpoint) else None
            valid = parts is not None and parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        except ValueError:
            valid = False
        if not valid or parts is None:
            raise ValueError("expected an http or https URL, such as http://localhost:4318")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("expected a URL without user, query and fragment (give credentials in headers)")
        return endpoint.rstrip("/")

    @field_validator("headers", mode="before")
    @classmethod
    def _are_secrets(cls, headers: Any) -> Any:
        if not isinstance(headers, dict):
            # In words of its own: pydantic's would quote what may be a secret.
            raise ValueError("expected a mapping (`name: value`)")
        return {name: _header_value(name, value) for name, value in headers.items()}


def _header_value(name: str, value: Any) -> SecretStr:
    """The value, or the content of the file that it names. Errors do not quote it."""
    if isinstance(value, SecretStr):
        return value
    if not isinstance(value, str):
        raise ValueError(f"expected text for {name} (put it in quotes)")
    if value.startswith(FILE_PREFIX):
        path = Path(value.removeprefix(FILE_PREFIX))
        try:
            value = path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ValueError(f"secret file {path} cannot be read: {reason}") from None
    if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
        raise ValueError(f"{name} and its value have to fit an HTTP header: ASCII, one line, and not empty")
    return SecretStr(value)
