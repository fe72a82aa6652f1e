"""Settings of warm-up: declared prefixes that are sent to replicas before clients need them."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

SLOWEST = 0.001
"""Minimum requests per second: one in about a quarter of an hour."""


WarmWhen = Literal["reset", "expiry", "restart", "idle"]
"""Events after which prefixes are sent again."""


class WarmAgainSettings(BaseModel):
    """Keeps prefixes in the replicas' caches: those of `warm.file`, and the hottest ones of the traffic.

    They are sent again after what made them unreachable, within a budget, and only to replicas that have nothing else
    to do. With `tokens_per_hour: 0` nothing is sent again by itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    tokens_per_hour: int = Field(default=0, ge=0)
    """Prompt tokens that replicas may compute for it within an hour, of all models together; what a replica still has
    cached costs nothing. 0: off. Each gateway, and each of its workers, has this budget. Too small: what does not fit
    is left out (`gateway_warm_left_out_total{reason="budget"}`); too large: GPU time for prefixes that no client asks
    for."""

    requests_per_hour: int = Field(default=600, ge=1, le=100_000)
    """Requests within an hour, each for one prefix at one replica. Too small: prefixes are left out."""

    hottest: int = Field(default=16, ge=0, le=64)
    """How many of the prefixes that most prompt tokens begin with are sent again, to the replicas that served them,
    besides the declared ones. Their token ids (4 bytes a token) are held in memory; the models need a tokenizer, of
    the gateway or the engine. 0: only declared ones. Too large: the budget goes to prefixes that few requests have."""

    when: tuple[WarmWhen, ...] = ("reset", "expiry", "restart", "idle")
    """After what: `reset` (of their prefix space), `expiry` (of it), `restart` (of a replica: the hottest; the declared
    ones are sent before it takes requests, without this budget), `idle` (in the last third of their space's idle time,
    which keeps a space alive until its maximum age: leave it out where the idle time is there to forget)."""

    every_seconds: float | None = Field(default=None, ge=60)
    """Sends all of them at this interval, too, so that engines do not evict them. Null: not by time."""


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

    again: WarmAgainSettings = WarmAgainSettings()
    """Which prefixes are sent again, and when."""

    @model_validator(mode="after")
    def _has_something_to_send(self) -> Self:
        if self.again.tokens_per_hour and self.file is None and not self.again.hottest:
            raise ValueError("again has nothing to send (name a file of prefixes, or set again.hottest above 0)")
        return self

    @field_validator("file")
    @classmethod
    def _is_a_file(cls, file: Path | None) -> Path | None:
        if file is not None and not file.is_file():
            raise ValueError(f"no such file: {file.absolute()}")
        return file
