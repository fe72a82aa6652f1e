"""What is known of an engine replica."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One scrape of an engine's metrics. None: the engine does not say.

    Attributes:
        block_size: Tokens per KV-cache block.
        blocks: Blocks the engine can use for requests.
        prefix_caching: Whether the engine reuses prefixes at all.
        running: Requests being computed.
        waiting: Requests the engine has queued.
        started_at: Unix time of the engine process's start; another value than before means an empty cache.
    """

    block_size: int | None = None
    blocks: int | None = None
    prefix_caching: bool | None = None
    running: int | None = None
    waiting: int | None = None
    started_at: float | None = None
