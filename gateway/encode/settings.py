"""Settings of encoding: from a request's text to token ids."""

from pydantic import BaseModel, ConfigDict, Field


class EncodeSettings(BaseModel):
    """How prompts are turned into tokens. Which tokenizer is used is set for each model."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    threads: int = Field(default=2, ge=1, le=64)
    """Threads that encode long texts beside the event loop. Two keep one huge prompt from holding up the next. Too
    small: long prompts queue for each other; more than the machine's cores gains nothing."""

    inline_bytes: int = Field(default=32768, ge=0)
    """Texts up to this many characters are encoded on the event loop, because a thread's hand-over costs more than they
    do. 32768 characters are some 8,000 tokens, more than most prompts have. Too small: short prompts pay the hand-over;
    too large: every other request waits while one is encoded."""

    segment_cache_mib: int = Field(default=64, ge=1)
    """Memory for the tokens of text seen before (messages, system prompts), in MiB. A token takes four bytes, so 64
    hold the text of thousands of conversations. Too small: long conversations are encoded anew on every turn, which
    costs CPU and never correctness. Not used where tenants are kept apart (`spaces.isolation`): the time that a prompt
    takes would tell that another tenant had sent the same text."""

    engine_timeout_seconds: float = Field(default=2.0, gt=0)
    """Seconds to wait for the engine's own tokens where there is no local tokenizer. The client's request waits that
    long, so it is short. Too small: a busy engine's requests are routed by their text instead of their tokens."""

    load_timeout_seconds: float = Field(default=20, gt=0)
    """How long start-up waits for a model's tokenizer. A folder takes a few seconds; a hub that does not answer takes
    minutes. Serving begins afterwards in any case, and the engine is asked for tokens until the tokenizer is there. Too
    small: the first requests are routed with the engine's help although the tokenizer is almost loaded."""
