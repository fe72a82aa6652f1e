"""A prompt as a chain of block hashes."""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from gateway.core.ids import BlockHash


class BlockChain(msgspec.Struct, frozen=True, gc=False):
    """Chained hashes of the full blocks of one prompt.

    Attributes:
        hashes: ``hashes[i]`` identifies the first ``(i + 1) * block_size`` tokens. Empty for a prompt below one block.
        block_size: Tokens per block.
        tokens: Length of the whole prompt in tokens, the partial last block included.
    """

    hashes: Sequence[BlockHash]
    block_size: int
    tokens: int

    @property
    def reusable_blocks(self) -> int:
        """Maximum number of blocks that can be cached: engines always compute the last token."""
        return min(len(self.hashes), (self.tokens - 1) // self.block_size) if self.tokens else 0


_SMALLEST_BLOCK = 16


@lru_cache(maxsize=256)
def chain_block_size(engine_block_size: int) -> int:
    """Tokens per block of the chains for an engine with this block size.

    The engine's own size, except for engines that cache by very small pages (SGLang's default page is one token):
    coarser blocks lose at most 15 tokens of a prediction and cost a sixteenth of the time.
    """
    if engine_block_size >= _SMALLEST_BLOCK:
        return engine_block_size
    return _SMALLEST_BLOCK // engine_block_size * engine_block_size
