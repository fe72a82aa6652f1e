"""Event batches in short steps: decodes large batches in portions, joins small events and splits large ones.

A step that takes long would delay every request.
"""

from collections.abc import Iterable, Iterator

from gateway.core.kv_events import UNREADABLE, BlockRemoved, BlockStored, EventBatch, KvEvent, UnknownEvent
from gateway.core.prompt import TOKEN_BYTES
from gateway.engines import BatchReader, BatchUnreadable, decode_batch

PIECE_BLOCKS = 128
"""Blocks applied in one step. The thousands of blocks of a long prompt at once would delay every request."""

_PIECE_TOKENS = 65_536
"""Most tokens of one step, unless a single block has more: the engine chooses the block size."""

_SMALL_BYTES = 16_384
"""Batches up to this size are decoded in one step, larger ones in several."""

_UNREADABLE = EventBatch(0.0, (UnknownEvent(UNREADABLE),))


class EncodedBatch:
    """A received batch that is being decoded.

    Args:
        sequence: Its number.
        payload: The batch as the engine encoded it.
        replayed: Whether it is part of the answer to a replay.

    Attributes:
        sequence: As above.
        size: Its encoded size in bytes.
        replayed: As above.
        is_large: Whether decoding takes several steps.
    """

    __slots__ = ("_payload", "_reader", "is_large", "replayed", "sequence", "size")

    def __init__(self, sequence: int, payload: bytes, *, replayed: bool) -> None:
        self.sequence = sequence
        self.size = len(payload)
        self.replayed = replayed
        self.is_large = self.size > _SMALL_BYTES
        self._payload = payload
        self._reader: BatchReader | None = None

    def decode(self) -> EventBatch | None:
        """Do one step. Returns the batch, with an unknown event if it cannot be decoded; None if steps are left."""
        try:
            if not self.is_large:
                return decode_batch(self._payload)
            if self._reader is None:
                self._reader = BatchReader(self._payload)
                self._payload = b""
            return self._reader.read()
        except BatchUnreadable:
            return _UNREADABLE


def pieces(events: Iterable[KvEvent]) -> Iterator[KvEvent]:
    """The same changes in the same order, in events of limited size.

    Runs that continue each other are joined (SGLang sends one event per page), and so are removals (vLLM sends one
    event per block); long runs are split.
    """
    alike: list[KvEvent] = []
    blocks = 0
    for event in events:
        if alike and not (blocks < PIECE_BLOCKS and len(alike) < PIECE_BLOCKS and _continues(alike[-1], event)):
            yield from _joined(alike)
            alike, blocks = [], 0
        alike.append(event)
        blocks += len(event.names) if isinstance(event, BlockStored | BlockRemoved) else 0
    if alike:
        yield from _joined(alike)


def _continues(before: KvEvent, event: KvEvent) -> bool:
    if isinstance(before, BlockRemoved):
        return isinstance(event, BlockRemoved) and event[1:] == before[1:]
    return (
        isinstance(before, BlockStored)
        and isinstance(event, BlockStored)
        and bool(before.names)
        and event.parent == before.names[-1]
        and event.block_size == before.block_size
        and event.medium is before.medium
        and event.group == before.group
        and event.sparse == before.sparse
        and event.adapter == before.adapter
        and event.extras is None
        and before.extras is None
        and _is_whole(before)
        and _is_whole(event)
    )


def _joined(alike: list[KvEvent]) -> Iterator[KvEvent]:
    """One event for all of them, or several if it would be too long."""
    first = alike[0]
    if isinstance(first, BlockRemoved):
        names = [name for event in alike if isinstance(event, BlockRemoved) for name in event.names]
        for start in range(0, len(names), PIECE_BLOCKS):
            yield first._replace(names=names[start : start + PIECE_BLOCKS])
    elif isinstance(first, BlockStored):
        runs = [event for event in alike if isinstance(event, BlockStored)]
        if len(runs) > 1:
            names = [name for event in runs for name in event.names]
            first = first._replace(names=names, tokens=b"".join(event.tokens for event in runs))
        yield from _split(first)
    else:
        yield from alike


def _split(event: BlockStored) -> Iterator[BlockStored]:
    blocks = PIECE_BLOCKS
    if event.tokens and event.block_size:
        blocks = min(blocks, max(_PIECE_TOKENS // event.block_size, 1))
    if len(event.names) <= blocks or (event.tokens and not _is_whole(event)):
        yield event
        return
    size = event.block_size * TOKEN_BYTES
    parent = event.parent
    for start in range(0, len(event.names), blocks):
        end = start + blocks
        names = event.names[start:end]
        yield event._replace(
            names=names,
            parent=parent,
            tokens=event.tokens[start * size : end * size],
            extras=event.extras[start:end] if event.extras else None,
        )
        parent = names[-1]


def _is_whole(event: BlockStored) -> bool:
    """Whether every block of the run has its name and its tokens."""
    return bool(event.names) and len(event.tokens) == len(event.names) * event.block_size * TOKEN_BYTES
