"""Remembers in which forms each block was computed, or would have been."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gateway.core.explanation import RequestRecord
from gateway.core.ids import ModelId
from gateway.core.prompt import TOKEN_BYTES
from gateway.explain.seen.block_table import BlockTable, Hashes
from gateway.explain.whatif.forms import FORMS
from gateway.tokenize.block_hashes import ChainHasher

_BITS = np.arange(FORMS, dtype=np.uint64)


class FormBlocks(NamedTuple):
    """A prompt in one form.

    Attributes:
        reusable_blocks: Number of reusable blocks: the last token is always computed.
        computed: Block hashes of the prompt with its reply: one chain per reply.
    """

    reusable_blocks: int
    computed: Sequence[Hashes]


class SeenForms:
    """A table for all forms: each block has a mark for every form in which it was computed.

    Args:
        chains: Hashes prompts; it caches what the explainer hashed a moment ago from the same root.
        blocks: Capacity in blocks.
        ttl_seconds: Lifetime of a mark.
    """

    def __init__(self, chains: ChainHasher, blocks: int, ttl_seconds: float) -> None:
        self.ttl_seconds = ttl_seconds
        self._chains = chains
        self._table = BlockTable(blocks)
        self._began_at: float | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the table."""
        return self._table.nbytes

    def prompt(self, finished: RequestRecord, ids: bytes) -> FormBlocks:
        """The block hashes of a prompt.

        Args:
            finished: The request.
            ids: The prompt's token ids, little-endian u32.
        """
        where, size = finished.where, finished.block_size
        parts = "\0".join(str(getattr(where, name)) for name in where.__struct_fields__)
        root = self._chains.root(ModelId(""), "", where.variant)
        # The life separates a space from itself before a reset.
        key = np.uint64(self._chains.root(ModelId(where.model), finished.life, parts))
        replies = [reply.ids for reply in finished.replies if reply.ids] or [b""]
        computed = [np.array(self._chains.chain(root, ids + reply, size).hashes, np.uint64) ^ key for reply in replies]
        reusable = max(len(ids) // TOKEN_BYTES - 1, 0) // size
        return FormBlocks(reusable, computed)

    def take(self, prompt: FormBlocks, finished: RequestRecord, forms: int) -> list[int]:
        """Record a computed prompt.

        Args:
            prompt: The prompt.
            finished: Its request.
            forms: Bit mask of the forms with this prompt.

        Returns:
            For every form, the number of leading tokens computed before.
        """
        at = self._at(finished)
        since = at - self.ttl_seconds
        before = self._table.mark(prompt.computed[0], forms, at, since)[: prompt.reusable_blocks]
        for computed in prompt.computed[1:]:
            self._table.mark(computed, forms, at, since)
        if not before.size:
            return [0] * FORMS
        ahead = np.bitwise_and.accumulate(before)
        blocks: list[int] = ((ahead[:, None] >> _BITS) & np.uint64(1)).sum(0, dtype=np.int64).tolist()
        return [count * finished.block_size for count in blocks]

    def _at(self, finished: RequestRecord) -> float:
        if self._began_at is None:
            self._began_at = finished.at
        return max(finished.at - self._began_at, 0.0)
