"""Remembers in which forms each block of a prompt was computed, or would have been."""

from collections.abc import Sequence
from typing import NamedTuple

from gateway.core.explanation import RequestRecord
from gateway.core.prompt import TOKEN_BYTES
from gateway.explain.seen import PromptHashes
from gateway.explain.seen.block_tree import NUMBERS, BlockTree, Hashes, note
from gateway.explain.whatif.forms import EVERY_FORM, FORMS

_BLOCK_BYTES = 16


class FormBlocks(NamedTuple):
    """A prompt in one form.

    Attributes:
        key: Key of its prefix space, in its epoch.
        reusable_blocks: Number of reusable blocks: the last token is always computed.
        computed: Block hashes of the prompt with its reply: one chain per reply.
    """

    key: int
    reusable_blocks: int
    computed: Sequence[Hashes]


class SeenForms:
    """Each block has a mark for every form in which it was computed, and the time of the latest one.

    Args:
        hashes: Hashes prompts; it remembers what the explainer hashed a moment ago.
        blocks: Capacity, at 16 bytes per block.
        ttl_seconds: Lifetime of a mark.
    """

    def __init__(self, hashes: PromptHashes, blocks: int, ttl_seconds: float) -> None:
        self.ttl_seconds = ttl_seconds
        self._hashes = hashes
        self._tree = BlockTree(_BLOCK_BYTES * blocks)
        self._began_at: float | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the blocks."""
        return self._tree.nbytes

    def prompt(self, record: RequestRecord, ids: bytes) -> FormBlocks:
        """The block hashes of a prompt.

        Args:
            record: The request.
            ids: The prompt's token ids, little-endian u32.
        """
        where = record.where
        # The epoch separates a space from itself before a reset.
        key = self._hashes.space_root(where, record.life)
        replies = [reply.ids for reply in record.replies if reply.ids] or [b""]
        computed = [self._hashes.of(record, ids, reply) for reply in replies]
        reusable = max(len(ids) // TOKEN_BYTES - 1, 0) // record.block_size
        return FormBlocks(key, reusable, computed)

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
        since, now = note(at - self.ttl_seconds, 0), note(at, forms)

        def marked(noted: int) -> int:
            return now | noted & NUMBERS if noted >= since else now

        before, *_ = [self._tree.write(prompt.key, computed, marked) for computed in prompt.computed]
        marks, left, tokens = EVERY_FORM, prompt.reusable_blocks, [0] * FORMS
        in_every_form = 0
        for noted, blocks in before:
            marks &= noted if noted >= since else 0
            counted = min(blocks, left) * record.block_size
            left -= blocks
            if marks == EVERY_FORM:
                in_every_form += counted
            elif marks:
                for number in range(FORMS):
                    if marks >> number & 1:
                        tokens[number] += counted
            if not marks or left <= 0:
                break
        return [in_every_form + each for each in tokens]

    def _at(self, record: RequestRecord) -> float:
        if self._began_at is None:
            self._began_at = record.at
        return max(record.at - self._began_at, 0.0)
