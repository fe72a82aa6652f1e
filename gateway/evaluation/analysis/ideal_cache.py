"""The ideal cache: one cache for all requests that never evicts; and when each block of it was used last.

A block is reused at the age that it has then. As every use of a block uses all blocks in front of it, ages grow along a
prompt, so the tokens younger than a TTL are exactly those that a cache with that TTL would have reused.
"""

from typing import NamedTuple

from gateway.core.explanation import RequestRecord
from gateway.core.ids import ModelId
from gateway.core.prompt import TOKEN_BYTES
from gateway.explain.seen import PromptHashes, space_name
from gateway.explain.seen.block_tree import BlockTree, note, noted_at
from gateway.tokenize.block_hashes import ChainHasher

_UNUSED_NUMBER = 0
_BLOCK_BYTES = 16


class Reuse(NamedTuple):
    """What of one prompt is reused.

    Attributes:
        tokens: Length of the reused prefix, whole blocks.
        ages: Seconds since its blocks were used last, with the tokens of each age.
    """

    tokens: int
    ages: list[tuple[float, int]]


class IdealCache:
    """Computed blocks by their hash.

    Args:
        blocks: Capacity, at 16 bytes per block; beyond it, the blocks that were not used for longest are forgotten.
    """

    def __init__(self, blocks: int) -> None:
        self._tree = BlockTree(_BLOCK_BYTES * blocks)
        self._hashes = PromptHashes(ChainHasher())
        self._began_at: float | None = None

    @property
    def forgets(self) -> bool:
        """Whether its capacity did not suffice."""
        return self._tree.has_forgotten

    def take(self, record: RequestRecord) -> Reuse:
        """What of a request's prompts is reused; records them as computed."""
        if self._began_at is None:
            self._began_at = record.at
        at = max(record.at - self._began_at, 0.0)
        size, where = record.block_size, record.where
        key = self._hashes.root(ModelId(where.model), where.adapter, space_name(where))
        now = note(at, _UNUSED_NUMBER)
        tokens = 0
        ages: list[tuple[float, int]] = []
        for part in record.parts:
            hashes = self._hashes.of(record, part)
            # Engines always compute the last token.
            reusable = max(len(part) // TOKEN_BYTES - 1, 0) // size
            for noted, blocks in self._tree.notes(key, hashes, 0, reusable):
                tokens += blocks * size
                ages.append((max(at - noted_at(noted), 0.0), blocks * size))
            replies = [reply.ids for reply in record.replies if reply.ids]
            for reply in replies or [b""]:
                self._tree.write(key, self._hashes.of(record, part, reply), lambda _: now)
        return Reuse(tokens, ages)
