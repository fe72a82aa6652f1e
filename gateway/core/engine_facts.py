"""Facts about an engine, from its metrics, and the flags that it should run with."""

from dataclasses import dataclass
from enum import StrEnum


class EngineKind(StrEnum):
    """Which engine a replica runs."""

    VLLM = "vllm"
    SGLANG = "sglang"


@dataclass(frozen=True, slots=True)
class Advice:
    """Changes of the engine's command line, each a half sentence for the end of a message.

    Attributes:
        prefix_caching: Enables prefix caching.
        usage_details: Enables cached token counts in answers.
        metrics: Enables metrics: engine kind, load, cache size.
        events: Enables KV events and their replay. The replay port is far from the other because the data-parallel rank
            is added to both.
    """

    prefix_caching: str
    usage_details: str
    metrics: str
    events: str


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One data-parallel rank of an engine, as its metrics show it. None: the engine does not say.

    Attributes:
        rank: The rank's number, as the engine counts.
        blocks: KV-cache blocks it can use for requests.
        running: Requests being computed.
        waiting: Requests queued in the engine.
        cache_use: Share of the KV cache in use by running requests, 0 to 1. Idle cached blocks count as free, so
            this does not measure warmth.
    """

    rank: int
    blocks: int | None = None
    running: int | None = None
    waiting: int | None = None
    cache_use: float | None = None


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One scrape of an engine's metrics. None: the engine does not say.

    Attributes:
        kind: Which engine it is; None for one that is not known.
        block_size: Tokens per KV-cache block.
        prefix_caching: Whether the engine reuses prefixes at all.
        started_at: Unix time of the engine process's start; another value than before means an empty cache.
        ranks: Its data-parallel ranks in their order; one for an engine without data parallelism, none when unknown.
    """

    kind: EngineKind | None = None
    block_size: int | None = None
    prefix_caching: bool | None = None
    started_at: float | None = None
    ranks: tuple[RankFacts, ...] = ()

    @property
    def blocks(self) -> int | None:
        """Usable blocks over all ranks."""
        return _total([rank.blocks for rank in self.ranks])

    @property
    def running(self) -> int | None:
        """Requests being computed, over all ranks."""
        return _total([rank.running for rank in self.ranks])

    @property
    def waiting(self) -> int | None:
        """Requests queued, over all ranks."""
        return _total([rank.waiting for rank in self.ranks])

    @property
    def cache_use(self) -> float | None:
        """Mean share of the KV cache in use."""
        known = [rank.cache_use for rank in self.ranks if rank.cache_use is not None]
        return sum(known) / len(known) if known else None


def _total(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
