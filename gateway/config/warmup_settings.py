"""Settings of warm-up: declared prefixes that are sent to replicas before clients need them."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

SLOWEST = 0.001
"""Minimum requests per second: one in about a quarter of an hour."""


class WarmSettings(BaseModel):
    """Which prefixes are put into a replica's cache before it takes requests, and how fast."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    file: Path | None = None
    """File with declared prefixes (YAML, JSON or JSON lines; `config/prefixes.yaml` shows the form). A replica that
    joins, returns, or starts again with an empty cache gets those of its model before it takes its share of the
    requests. Read at start and on reload. Null: nothing is sent without an order. A relative path starts at the working
    directory."""

    requests_per_second: float = Field(default=2, ge=SLOWEST)
    """Requests a second that filling a cache may take, on top of the clients' own; each is one prefill and one token,
    and a replica never has more than two of them at a time. An order to the admin API may name another rate. Too large:
    the clients of a busy replica wait behind it; too small: a replica that joins is held back for long."""

    max_seconds: float = Field(default=60, gt=0)
    """Longest time that a joining replica is held back while its cache is being filled; what was not sent by then is
    left out. Too small: it takes traffic with a cold cache; too large: replicas that were added because of a high load
    do not help for so long."""

    @field_validator("file")
    @classmethod
    def _is_a_file(cls, file: Path | None) -> Path | None:
        if file is not None and not file.is_file():
            raise ValueError(f"no such file: {file.absolute()}")
        return file
