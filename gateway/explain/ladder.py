"""The ladder: prefix lengths of one request, each at least as long as the one before, and the tokens between them.

Whatever the lengths are that come in, hits and missed tokens add up to the prompt's tokens: every rung is the running
maximum of itself and the one before, none is above the last, and what stands between two rungs is divided completely.
"""

from collections.abc import Iterable, Sequence

from gateway.core.reasons import Reason, Rung

RUNGS = tuple(Rung)


class Ladder:
    """One request's rungs and what is between them.

    Args:
        prompt_tokens: Length of the prompt: the last rung.
        hits: The first rung, ``Rung.CONFIRMED``.
    """

    def __init__(self, prompt_tokens: int, hits: int) -> None:
        self.prompt_tokens = max(prompt_tokens, 0)
        self._at = min(max(hits, 0), self.prompt_tokens)
        self._rungs = [self._at]
        self._missed: dict[Reason, int] = {}

    @property
    def at(self) -> int:
        """The last rung that was set."""
        return self._at

    @property
    def rungs(self) -> tuple[int, ...]:
        """Those that were set, in the order of ``Rung``."""
        return tuple(self._rungs)

    @property
    def hits(self) -> int:
        """The first rung."""
        return self._rungs[0]

    @property
    def missed(self) -> dict[Reason, int]:
        """Tokens per reason, none of them 0."""
        return dict(self._missed)

    def climb(self, length: int, reason: Reason) -> int:
        """As ``climb_by``, for one reason."""
        return self.climb_by(length, ((length, reason),))

    def climb_by(self, length: int, ends: Iterable[tuple[int, Reason]]) -> int:
        """Set the next rung; what is between it and the one before is missed for several reasons.

        Args:
            length: The rung.
            ends: Up to which token a reason goes, ascending; the last one goes to the rung in any case.

        Returns:
            How many tokens are between the rungs.
        """
        before = self._at
        rung = min(max(length, before), self.prompt_tokens)
        pieces: Sequence[tuple[int, Reason]] = tuple(ends) or ((rung, Reason.UNCLASSIFIED),)
        for number, (end, reason) in enumerate(pieces):
            limit = rung if number == len(pieces) - 1 else min(max(end, self._at), rung)
            if limit > self._at:
                self._missed[reason] = self._missed.get(reason, 0) + limit - self._at
                self._at = limit
        assert self._at == rung
        self._rungs.append(rung)
        return rung - before
