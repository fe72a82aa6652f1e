"""Remembers in which forms each block of a prompt was computed, or would have been."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gateway.core.explanation import RequestRecord
from gateway.core.prompt import TOKEN_BYTES
from gateway.explain.seen import PromptHashes
from gateway.explain.seen.block_table import BlockTable, Hashes, runs
from gateway.explain.whatif.forms import EVERY_FORM, FORMS


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
        hashes: Hashes prompts; it remembers what the explainer hashed a moment ago.
        blocks: Capacity in blocks.
        ttl_seconds: Lifetime of a mark.
    """

    def __init__(self, hashes: PromptHashes, blocks: int, ttl_seconds: float) -> None:
        self.ttl_seconds = ttl_seconds
        self._hashes = hashes
        self._table = BlockTable(blocks)
        self._began_at: float | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the table."""
        return self._table.nbytes

    def prompt(self, record: RequestRecord, ids: bytes) -> FormBlocks:
        """The block hashes of a prompt.

        Args:
            record: The request.
            ids: The prompt's token ids, little-endian u32.
        """
        where = record.where
        # The epoch separates a space from itself before a reset.
        key = np.uint64(self._hashes.space_root(where, record.life))
        replies = [reply.ids for reply in record.replies if reply.ids] or [b""]
        computed = [self._hashes.of(record, ids, reply) ^ key for reply in replies]
        reusable = max(len(ids) // TOKEN_BYTES - 1, 0) // record.block_size
        return FormBlocks(reusable, computed)

    def take(self, prompt: FormBlocks, record: RequestRecord, forms: int) -> list[int]:
        """Record a computed prompt.

        Args:
            prompt: The prompt.
            record: Its request.
            forms: Bit mask of the forms with this prompt.

        Returns:
            For every form, the number of leading tokens computed before.
        """
        at = self._at(record)
        since = at - self.ttl_seconds
        before = self._table.mark(prompt.computed[0], forms, at, since)[: prompt.reusable_blocks]
        for computed in prompt.computed[1:]:
            self._table.mark(computed, forms, at, since)
        if not before.size:
            return [0] * FORMS
        size, in_every_form, tokens = record.block_size, 0, [0] * FORMS
        for marks, count in runs(np.bitwise_and.accumulate(before)):
            if marks == EVERY_FORM:
                in_every_form = count * size
            elif marks:
                for number in range(FORMS):
                    if marks >> number & 1:
                        tokens[number] += count * size
        return [in_every_form + each for each in tokens]

    def _at(self, record: RequestRecord) -> float:
        if self._began_at is None:
            self._began_at = record.at
        return max(record.at - self._began_at, 0.0)
