"""How much of a prompt was computed before, by any earlier request: the measure of a reference.

A reference that shares less than that is not the request that shares most.
"""

from typing import NamedTuple

from gateway.core.prompt import TOKEN_BYTES
from gateway.explain.reference.overlap import common_tokens
from gateway.explain.reference.reference_index import KeptRequest


class Known(NamedTuple):
    """Leading tokens of a prompt that are held or were computed before, in whole blocks.

    Attributes:
        tokens: Their number.
        limit: As many as whole blocks can hold of this prompt; 0 if it has none.
    """

    tokens: int = 0
    limit: int = 0

    @property
    def is_all(self) -> bool:
        """Whether every whole block of the prompt was computed before."""
        return 0 < self.limit <= self.tokens

    def exceeds(self, reference: KeptRequest, prompt: KeptRequest) -> bool:
        """Whether another request may share more of the prompt than the reference does."""
        if not self.tokens:
            return False
        equal = common_tokens(reference.ids, prompt.ids)
        return equal < len(prompt.ids) // TOKEN_BYTES and (self.is_all or equal < self.tokens)


NOTHING_KNOWN = Known()
