"""How much of a prompt was computed before, by any earlier request: the measure of a reference.

A reference that shares less than that is not the request that shares most.
"""

from typing import NamedTuple


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

    def exceeds(self, equal: int, own: int) -> bool:
        """Whether another request may share more than the first ``equal`` of ``own`` tokens of the prompt."""
        return equal < own and (self.is_all or equal < self.tokens)


NOTHING_KNOWN = Known()
