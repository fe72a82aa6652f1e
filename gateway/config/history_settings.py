"""Settings of what outlives a restart, and prices of tokens."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class HistorySettings(BaseModel):
    """Where hourly totals of seven days, daily totals of 400 days, and the markers of the trend are kept."""

    model_config = _STRICT

    file: Path | None = None
    """File of this gateway, written every minute and at the end; it holds counts and names, and no text. Null: in Redis
    with `state`, else only in memory, until the gateway ends. Several gateways need a file each, or `state`."""

    @field_validator("file")
    @classmethod
    def _has_a_folder(cls, file: Path | None) -> Path | None:
        if file is not None and not file.absolute().parent.is_dir():
            raise ValueError(f"its folder does not exist: {file.absolute().parent}")
        return file


class ResponsesSettings(BaseModel):
    """Responses that are kept for `previous_response_id`, `conversation` and `GET /v1/responses/{id}`: in Redis with
    `state`, where each gateway counts what it has written, else in memory."""

    model_config = _STRICT

    ttl_seconds: float = Field(default=86_400, ge=1)
    """Seconds that a response is kept after its last use. Too short: clients that continue by id get 404; too long: the
    store gets full."""

    max_mib: int = Field(default=256, ge=1)
    """Memory of all of them. Full: further ones are answered and not stored, and what needs the store gets 503."""

    max_tenant_mib: int = Field(default=64, ge=1)
    """The same for one tenant. In open mode, where all requests are of one tenant, `max_mib` alone holds."""

    max_background: int = Field(default=64, ge=0)
    """Background responses that run at a time; further ones are answered with 429. 0: there are none."""

    max_background_tenant: int = Field(default=16, ge=0)
    """The same for one tenant. In open mode `max_background` alone holds."""


class CostSettings(BaseModel):
    """Prices of tokens, for `prefix-gateway report`. Their currency is `explain.currency`."""

    model_config = _STRICT

    prompt_per_million: float | None = Field(default=None, ge=0)
    """Price of a million prompt tokens that were computed. Null: no price."""

    cached_per_million: float | None = Field(default=None, ge=0)
    """Price of a million prompt tokens that came from the cache. Null: they cost nothing."""

    completion_per_million: float | None = Field(default=None, ge=0)
    """Price of a million generated tokens. Null: they cost nothing."""
