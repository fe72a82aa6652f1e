"""Settings of what the gateway reports: logs (``log``), traces (``tracing``), explanations (``explain``)."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from gateway.config.yaml_tree import FILE_PREFIX


class LogSettings(BaseModel):
    """What the gateway logs and how. Prompt text is never logged, at no level."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    format: Literal["auto", "json", "console"] = "auto"
    """`json`: one object a line, for log collectors. `console`: coloured text for people. `auto`: `console` on a
    terminal, `json` everywhere else."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is written. `info` shows start-up, replicas that come and go, and requests; above it, the
    lines about requests are left out as well."""

    requests: bool = True
    """One line for every request, with its decision and its token counts. False saves log volume at high rates; the
    metrics still count every request."""


class AuditSettings(BaseModel):
    """The audit log: who did what and when, in which prefix space, what was reset, and who was refused. JSON lines,
    apart from the log; without any text of prompts, and without keys. Requests never wait for it: while it cannot be
    written (the disk is full), lines wait in memory, and those beyond 20,000 are counted in an `audit_gap` line."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    file: str | None = Field(default=None, min_length=1)
    """File that the lines are appended to, or `stdout`. Every gateway needs a file of its own. Its folder has to be
    there and to be writable, so that the file can be renamed when it is full. What operators do and the gateway's own
    start, stop and reloads are also in `FILE.operators`, which clients cannot fill. Null: no audit log."""

    max_bytes: int = Field(default=100 * 1024 * 1024, ge=64 * 1024)
    """Size, in bytes, at which the file is renamed to `FILE.1` (and that one to `FILE.2`, and so on) and a new one is
    begun. Too small: `keep` files reach back only a short time; too large: files that no tool opens. Not used for
    `stdout`."""

    keep: int = Field(default=10, ge=0, le=1000)
    """How many renamed files are kept besides the one being written; the oldest is overwritten. With the defaults the
    audit log takes 1.1 GB at most, about three million requests; `FILE.operators` counts apart. Too small: what
    happened cannot be looked up any more; 0: a full file is deleted. Lowering it deletes nothing that is there."""

    requests: bool = True
    """One line for every admitted request. False leaves only what is rare: refused requests, resets, findings of
    personal data, and what operators do."""

    @field_validator("file")
    @classmethod
    def _has_a_folder(cls, file: str | None) -> str | None:
        if file is not None and file != "stdout" and not Path(file).absolute().parent.is_dir():
            raise ValueError(f"no such folder: {Path(file).absolute().parent} (make it, or name another file)")
        return file


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

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

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


class ExplainSettings(BaseModel):
    """Why prompt tokens had to be computed again; computed by the explain worker, a process beside the gateway."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    enabled: bool = True
    """Whether requests are explained. False: no such process is started, the admin port's questions about reasons are
    answered with 404, and the metrics have no reasons."""

    max_waiting_mib: int = Field(default=64, ge=1, le=4096)
    """MiB of answered requests that may wait for their explanation. Above half of it they are passed on without text
    and tokens (what would need those is then `unclassified`), and above all of it only their totals are counted. Too
    small: bursts of long prompts are left out; too large: so much memory when the explanation is behind."""

    max_cpu_share: float | None = Field(default=0.25, gt=0)
    """CPU time that explaining aims at over ten seconds, as a share of the gateway's own. Beyond it whole conversations
    are left out, chosen by a hash: their requests are counted with their hits, and what would need their text is
    `unclassified`. A fifth of one core may always be used, for each worker process. None: no limit."""

    observed_share: float = Field(default=0.125, ge=0, le=1)
    """Share of conversations, chosen by a hash, that are tried with the [rules](../canonicalization.md) to tell what
    those would save. Requests that miss tokens for an avoidable reason, or that a rule has changed, are always tried;
    the figures of the others are scaled up. 1 tries all requests: the figures are exact, and explaining costs up to
    a fifth more."""

    journal_requests: int = Field(default=5000, ge=1, le=1_000_000)
    """Latest requests whose details are kept for `/admin/api/requests`, about 3 KB each."""

    journal_ttl_seconds: float = Field(default=3600, gt=0)
    """Seconds after which a request's details are forgotten."""

    reference_mib: int = Field(default=80, ge=1, le=65_536)
    """MiB of earlier prompts, text and token ids, that later ones are compared with. They are in the memory of the
    explain worker only. Too small: conversations whose turns are far apart find nothing to be compared with, and
    their changes are not reported."""

    reference_ttl_seconds: float = Field(default=3600, gt=0)
    """Seconds after which an earlier prompt is forgotten, text and tokens."""

    seen_blocks: int = Field(default=1_000_000, ge=1000, le=100_000_000)
    """Cache blocks remembered as computed before, so that evicted or lost blocks can be distinguished from new ones; 48
    bytes each. The memory suffices for so many if a request brings about 500 new tokens; for more if it brings more.
    Too small: tokens that were evicted long ago count as new."""

    gpu_hour_price: float | None = Field(default=None, ge=0)
    """What one GPU costs an hour, for the money that reuse saves and misses cost. None: no money is shown. How many
    GPUs a replica has: `models[].gpus_per_replica`."""

    currency: str = Field(default="USD", pattern="^[A-Z]{3}$")
    """Currency of the price, in three letters. It is only shown."""
