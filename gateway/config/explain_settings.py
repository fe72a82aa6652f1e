"""Settings of explanations: why prompt tokens were computed again."""

from pydantic import BaseModel, ConfigDict, Field


class ExplainSettings(BaseModel):
    """Why prompt tokens had to be computed again; computed by the explain worker, a process beside the gateway."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    enabled: bool = True
    """Whether requests are explained. False: no such process is started, the admin port's questions about reasons are
    answered with 404, and the metrics have no reasons."""

    max_waiting_mib: int = Field(default=64, ge=1, le=4096)
    """MiB of answered requests that may wait for their explanation. Above half of it they are handed over without text
    and tokens (what only those would tell is then `unclassified`), and above all of it they are only added up. Too
    small: bursts of long prompts are left out; too large: so much memory when the explanation is behind."""

    journal_requests: int = Field(default=5000, ge=1, le=1_000_000)
    """Latest requests whose details are kept for `/admin/api/requests`, about 3 KB each."""

    journal_ttl_seconds: float = Field(default=3600, gt=0)
    """Seconds after which a request's details are forgotten."""

    reference_mib: int = Field(default=128, ge=1, le=65_536)
    """MiB of earlier prompts, text and token ids, that later ones are compared with. They are in the memory of the
    explain worker only. Too small: conversations whose turns are far apart find nothing to be compared with, and
    their changes are not reported."""

    reference_ttl_seconds: float = Field(default=3600, gt=0)
    """Seconds after which an earlier prompt is forgotten, text and tokens."""

    seen_blocks: int = Field(default=1_000_000, ge=1000, le=100_000_000)
    """Cache blocks remembered as computed before, so that evicted or lost blocks can be distinguished from new ones; 48
    to 96 bytes each. Too small: tokens that were evicted long ago count as new."""

    gpu_hour_price: float | None = Field(default=None, ge=0)
    """What one GPU costs an hour, for the money that reuse saves and misses cost. None: no money is shown. How many
    GPUs a replica has is said by `models[].gpus_per_replica`."""

    currency: str = Field(default="USD", pattern="^[A-Z]{3}$")
    """Currency of the price, in three letters. It is only shown."""
