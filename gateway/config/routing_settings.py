"""Settings of placement: which replica gets a request."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class PlacementSettings(BaseModel):
    """The policy, its weights, and the start values of what is learned from each replica's answers."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    policy: Literal["expected_ttft", "round_robin", "least_load", "session"] = "expected_ttft"
    """`expected_ttft`: least queueing plus computing, which is mostly the replica that holds the prefix. The others are
    for comparison: `round_robin` takes turns, `least_load` counts running requests, `session` keeps each `x-session-id`
    on one replica."""

    miss_weight: float = Field(default=2.0, ge=0)
    """How much a token that must be computed again costs beyond the time of the request itself: it holds up those
    behind it and evicts other prefixes. 2.0 gave the best TTFT in replays of a conversation trace. 0 looks at the
    request alone. Too small: prefixes spread thin over the fleet; too large: warm replicas are overloaded."""

    tie_margin: float = Field(default=0.05, ge=0, le=1)
    """Replicas whose cost is within this share of the least count as equal; a hash of the prefix then decides, so that
    several gateways agree. Learned rates are never exact; 0.05 keeps their noise from deciding. Too small: noise
    scatters new prefixes; too large: clearly slower replicas are chosen."""

    prefill_tokens_per_second: float = Field(default=4000, gt=0)
    """Start value: prompt tokens a replica computes per second, until its own answers tell. 4000 is careful for an 8B
    model on one GPU. Wrong by a lot: the first requests weigh queueing against computing wrongly."""

    base_ttft_seconds: float = Field(default=0.02, ge=0)
    """Start value: seconds to the first token that even a fully cached prompt takes, until a replica's own answers
    tell."""

    decode_seconds_per_token: float = Field(default=0.02, ge=0)
    """Start value: seconds per generated token, until a replica's own answers tell. It estimates how long a slot stays
    taken once all of a replica's slots are."""

    slots: int = Field(default=256, ge=1)
    """Sequences that one replica runs at once (vLLM's `--max-num-seqs`); further ones wait for a slot. Too small: a
    replica looks full that is not, and warm prefixes are computed elsewhere; too large: waiting is not foreseen."""
