"""KV events: an engine's changes to its cache, independent of engine and encoding."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Medium(StrEnum):
    """Where a cached block lies, fastest first."""

    GPU = "gpu"
    CPU = "cpu"
    DISK = "disk"
    """Disk, or a store outside of the machine."""


class BlockStored(NamedTuple):
    """A run of consecutive blocks can be reused from now on.

    Attributes:
        names: The engine's hash of each block as an unsigned 64-bit number. Opaque: it says which block is meant by a
            later event, and nothing else.
        parent: Name of the block before the first one; None at the beginning of a prompt.
        tokens: Token ids of the run, little-endian u32. More than ``names`` have room for when the engine keeps only
            some of them (sparse groups). Empty: the engine names blocks it has described before.
        block_size: Tokens per block; 0 when unknown (only with empty ``tokens``).
        medium: Where they lie.
        group: KV-cache group (hybrid models have several).
        sparse: Whether the group can hold a block without those before it (sliding window, state-space layers);
            None if the engine does not say.
        window: Tokens at the end of a hit that a sparse group has to hold; 0 if the engine does not say.
        adapter: Name of the LoRA adapter, empty for none.
        salt: The request's cache salt, empty for none. Known only on the run that begins a prompt.
        extras: What else is part of each block's identity (images and the like), in a canonical form: one entry per
            name, None for nothing. None: nothing in any of them.
    """

    names: Sequence[int]
    parent: int | None
    tokens: bytes
    block_size: int
    medium: Medium = Medium.GPU
    group: int = 0
    sparse: bool | None = None
    window: int = 0
    adapter: str = ""
    salt: str = ""
    extras: Sequence[bytes | None] | None = None


class BlockRemoved(NamedTuple):
    """One copy of each named block is gone from a medium."""

    names: Sequence[int]
    medium: Medium = Medium.GPU
    group: int = 0


class AllBlocksCleared(NamedTuple):
    """The whole cache was cleared."""


UNREADABLE = "unreadable"
"""Type of the event that replaces an unreadable batch."""

_CHANGES = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared", UNREADABLE})


class UnknownEvent(NamedTuple):
    """An event of a type that is not known here, or one that cannot be read.

    Attributes:
        type: The engine's name for it.
    """

    type: str

    @property
    def is_loss(self) -> bool:
        """Whether it changed the cache in a way that is not known now."""
        return self.type in _CHANGES


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared | UnknownEvent


class EventBatch(NamedTuple):
    """What one scheduler step of the engine did to its cache.

    Attributes:
        timestamp: Unix time at the engine.
        events: In their order.
        rank: Data-parallel rank, if the batch names it.
    """

    timestamp: float
    events: Sequence[KvEvent]
    rank: int | None = None


class Unmatched(NamedTuple):
    """Blocks in events that match nothing that is known of their target.

    Attributes:
        unfit: Stored, in a run that cannot be blocks of this target: another block size, too few tokens.
        unplaced: Stored behind a block that is not known, or without tokens while too many wait for theirs.
        removed: Removed, and not known.
    """

    unfit: int = 0
    unplaced: int = 0
    removed: int = 0


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where the events of one data-parallel rank can be had.

    Attributes:
        rank: The rank.
        events: ZeroMQ address to subscribe to, such as ``tcp://vllm-0:5557``.
        replay: ZeroMQ address to ask for past batches; None if the engine keeps none.
        topic: Prefix of the messages' topic.
        problem: Why this source cannot work as the engine is set up, with the flag to change; None if it can.
        refused: Whether the gateway does not connect there: a replica may only name TCP ports of its own host.
    """

    rank: int
    events: str
    replay: str | None = None
    topic: str = ""
    problem: str | None = None
    refused: bool = False


class FeedState(StrEnum):
    """State of the event feed of one target."""

    OFF = "off"
    """There are none, by configuration or because the engine publishes none."""
    CONNECTING = "connecting"
    """No events received yet, or catching up after a loss."""
    REBUILDING = "rebuilding"
    """The events are correct but incomplete: the engine may hold more blocks."""
    LIVE = "live"
    """All that the engine holds is known; after a loss that could not be made good, all but one percent of it."""
    SILENT = "silent"
    """Events are expected and do not arrive."""


class IndexSource(StrEnum):
    """Where the holdings of a replica come from."""

    EVENTS = "events"
    """The engine's KV events: exact."""
    PREDICTED = "predicted"
    """Requests sent there, corrected by the cached tokens that the engine reports."""
    BLIND = "blind"
    """Requests sent there, unconfirmed."""
