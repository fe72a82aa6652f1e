"""Settings of tokenization: how a request's text becomes token ids."""

from pydantic import BaseModel, ConfigDict, Field


class EncodeSettings(BaseModel):
    """How prompts are turned into tokens. Which tokenizer is used is set for each model."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    threads: int = Field(default=2, ge=1, le=64)
    """Threads for long texts beside the event loop: canonicalization, personal data, tokens. Tenants take turns, by the
    bytes they bring and their `share`, and texts of more than 256 KiB never use the last thread, so with two or more a
    short prompt never waits for a huge one. Too small: huge prompts wait for each other; more than the machine's cores
    gains nothing."""

    max_waiting_mib: int = Field(default=256, ge=1, le=65536)
    """Most text that waits for these threads, in MiB. Beyond it, the newest request of the tenant with most waiting,
    measured by its `share`, is answered with 429 and code `overloaded`. The text is held in memory. Too small: short
    peaks of long prompts are refused; too large: memory is held for clients that have stopped waiting."""

    inline_bytes: int = Field(default=32768, ge=0)
    """Texts up to this many characters are encoded on the event loop, because a thread's hand-over costs more than they
    do. 32768 characters are some 8,000 tokens, more than most prompts have. Too small: short prompts pay the hand-over;
    too large: every other request waits while one is encoded."""

    segment_cache_mib: int = Field(default=64, ge=1)
    """Memory for the tokens of text seen before (messages, system prompts), in MiB. A token takes four bytes, so 64
    hold the text of thousands of conversations. Too small: long conversations are encoded again on every turn, which
    costs CPU and never correctness. Not used where tenants are kept apart (`spaces.isolation`): the time that a prompt
    takes would tell that another tenant had sent the same text."""

    engine_timeout_seconds: float = Field(default=2.0, gt=0)
    """Seconds that one call for the engine's own tokens may take, where there is no local tokenizer. The client's
    request waits for twice as long at most, so it is short. A request with more than 16 prompts asks
    only for all at once (`.../render`); where the engine does not offer that, it is routed by its text. Too small: a
    busy engine's requests are routed by their text instead of their tokens."""

    load_timeout_seconds: float = Field(default=20, gt=0)
    """How long start-up waits for a model's tokenizer. A folder takes a few seconds; a hub that does not answer takes
    minutes. Serving begins afterwards in any case, and the engine is asked for tokens until the tokenizer is there. Too
    small: the first requests are routed with the engine's help although the tokenizer is almost loaded."""
