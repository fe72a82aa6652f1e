"""Settings of the prefix index: the expected content of the replicas' caches."""

from pydantic import BaseModel, ConfigDict, Field


class IndexSettings(BaseModel):
    """How prefixes are remembered for each replica."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    speculative_ttl_seconds: float = Field(default=30, gt=0)
    """Seconds that a prefix just sent to a replica counts as held there while its answer is pending. It keeps a burst
    of one new prefix together; 30 covers the prefill of a long prompt on a busy replica. Too small: such a burst
    spreads, and every replica computes the same prefix."""

    default_blocks: int = Field(default=16384, ge=1)
    """Cache capacity of a replica in blocks, until its metrics report the real one. 16384 blocks of 16 tokens take 32
    GiB with Llama 3.1 8B. Too small: prefixes are forgotten that the replica still holds; too large: warm answers are
    promised that do not come, until answers correct it."""

    default_block_size: int = Field(default=16, ge=1)
    """Tokens per cache block, until the replica's metrics report the real one. 16 is vLLM's default on GPUs. Too small
    or
    too large: the predicted cached tokens are off by up to a block."""

    max_reply_bytes: int = Field(default=262144, ge=0)
    """Bytes of each reply's text that are kept until the answer is out, to predict that the reply is cached as well and
    the conversation's next turn starts behind it. 256 KiB hold about 60,000 tokens. Too small: the next turn after a
    longer reply is predicted to be colder than it is. 0 keeps none."""

    cpu_worth: float = Field(default=0.8, ge=0, le=1)
    """Value of a cached token in the engine's CPU memory relative to one in the GPU's, if KV events report it: 1
    minus the time to fetch it, as a share of the time to compute it. Too small: prefixes are computed elsewhere that
    could have been fetched; too large: fetching is taken for nothing."""

    disk_worth: float = Field(default=0.4, ge=0, le=1)
    """The same for tokens on disk or in a store outside of the machine."""
