"""Settings of tokens and blocks: tokenization (``encode``), KV events (``ingest``), the prefix index (``index``)."""

from pydantic import BaseModel, ConfigDict, Field


class EncodeSettings(BaseModel):
    """How prompts are turned into tokens. Which tokenizer is used is set for each model."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

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

    segment_cache_mib: int = Field(default=32, ge=1)
    """Memory for the tokens of text seen before (messages, system prompts), in MiB. Half of it is for conversations
    without tools and media, of which it holds four million tokens; the other half is for everything else, and holds
    more than a million. Too small: long conversations are encoded again on every turn, which costs CPU (about 20
    microseconds per thousand tokens) and never correctness. Not used where tenants are kept apart
    (`spaces.isolation`): the time that a prompt takes would reveal that another tenant had sent the same text."""

    engine_timeout_seconds: float = Field(default=2.0, gt=0)
    """Seconds that one call for the engine's own tokens may take, where there is no local tokenizer. The client's
    request waits for twice as long at most, so it is short. A request with more than 16 prompts asks
    only for all at once (`.../render`); where the engine does not offer that, it is routed by its text. Too small: a
    busy engine's requests are routed by their text instead of their tokens."""

    load_timeout_seconds: float = Field(default=20, gt=0)
    """How long start-up waits for a model's tokenizer. A folder takes a few seconds; a hub that does not answer takes
    minutes. Serving begins afterwards in any case, and the engine is asked for tokens until the tokenizer is there. Too
    small: the first requests are routed with the engine's help although the tokenizer is almost loaded."""


class IngestSettings(BaseModel):
    """How the engines' KV events are followed."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    silent_after_seconds: float = Field(default=5, gt=0)
    """Seconds after which a replica whose events should come and do not (no connection to its event socket, or requests
    computed and no events) is reported and its cache is predicted instead. Too small: an engine that is busy with a
    very long prompt is reported; too large: wrong predictions go unnoticed."""

    replay_timeout_seconds: float = Field(default=3, gt=0)
    """Seconds without a message after which a replay of past events counts as failed. Engines answer from a buffer in
    milliseconds. Too small: a busy engine's history is given up, and its holdings have to be learned again."""

    probe_seconds: float = Field(default=5, gt=0)
    """Seconds without events after which the engine is asked whether any were missed (one small message, where it has a
    replay socket). Too small: needless work for idle engines; too large: events lost at the end of a burst are noticed
    late."""

    unmatched_replay_seconds: float = Field(default=300, gt=0)
    """Least seconds between two replays that are asked for because events name blocks that are not known although all
    should be. Such a replica's cache is predicted until its events match again. Too small: an engine whose events
    cannot be matched is asked for all of them again and again; too large: what one replay would have put right stays
    predicted for longer."""

    max_batch_mib: int = Field(default=16, ge=1, le=1024)
    """Largest event batch that is taken from a replica, in MiB. A scheduler step of an engine makes some KiB, and a few
    MiB where it evicts a lot. A larger batch breaks the connection, and the blocks known from the replica's events are
    learned again. Too small: replicas with huge steps are never followed; too large: a broken engine can fill the
    memory."""


class IndexSettings(BaseModel):
    """How prefixes are remembered for each replica."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

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
    could have been fetched; too large: fetching counts as free."""

    disk_worth: float = Field(default=0.4, ge=0, le=1)
    """The same for tokens on disk or in a store outside of the machine."""
