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


class CostSettings(BaseModel):
    """Prices of tokens, for `prefix-gateway report`. Their currency is `explain.currency`."""

    model_config = _STRICT

    prompt_per_million: float | None = Field(default=None, ge=0)
    """Price of a million prompt tokens that were computed. Null: no price."""

    cached_per_million: float | None = Field(default=None, ge=0)
    """Price of a million prompt tokens that came from the cache. Null: they cost nothing."""

    completion_per_million: float | None = Field(default=None, ge=0)
    """Price of a million generated tokens. Null: they cost nothing."""
