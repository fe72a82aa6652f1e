"""The ideal cache: one cache for all requests that never evicts; and when each block of it was used last.

A block is reused at the age that it has then. As every use of a block uses all blocks in front of it, ages grow along a
prompt, so the tokens younger than a TTL are exactly those that a cache with that TTL would have reused.
"""

from typing import NamedTuple

import numpy as np

from gateway.core.explanation import RequestRecord
from gateway.core.ids import ModelId
from gateway.core.prompt import TOKEN_BYTES
from gateway.explain.seen import PromptHashes, space_name
from gateway.explain.seen.block_table import BlockTable, Hashes
from gateway.tokenize.block_hashes import ChainHasher

_UNUSED_PLACE = 0


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
        blocks: Capacity; beyond it, the blocks that were not used for longest are forgotten.
    """

    def __init__(self, blocks: int) -> None:
        self._table = BlockTable(blocks)
        self._hashes = PromptHashes(ChainHasher())
        self._began_at: float | None = None

    def hashes_of(self, record: RequestRecord, part: bytes) -> Hashes:
        """The hashes of a prompt's full blocks; equal for equal prefixes of one space."""
        where = record.where
        key = np.uint64(self._hashes.root(ModelId(where.model), where.adapter, space_name(where)))
        return self._hashes.of(record, part) ^ key

    def take(self, record: RequestRecord) -> Reuse:
        """What of a request's prompts is reused; records them as computed."""
        if self._began_at is None:
            self._began_at = record.at
        at = max(record.at - self._began_at, 0.0)
        size = record.block_size
        tokens = 0
        ages: list[tuple[float, int]] = []
        for part in record.parts:
            hashes = self.hashes_of(record, part)
            # Engines always compute the last token.
            reusable = max(len(part) // TOKEN_BYTES - 1, 0) // size
            for run in self._table.beginning(hashes[:reusable]):
                tokens += run.blocks * size
                ages.append((max(at - run.at, 0.0), run.blocks * size))
            replies = [reply.ids for reply in record.replies if reply.ids]
            for reply in replies or [b""]:
                computed = self._with_reply(record, part, reply) if reply else hashes
                self._table.put(computed, _UNUSED_PLACE, at)
        return Reuse(tokens, ages)

    def _with_reply(self, record: RequestRecord, part: bytes, reply: bytes) -> Hashes:
        where = record.where
        key = np.uint64(self._hashes.root(ModelId(where.model), where.adapter, space_name(where)))
        return self._hashes.of(record, part, reply) ^ key
