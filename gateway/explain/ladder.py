"""The ladder: ascending prefix lengths (rungs) of one request, and the reasons of the tokens between them.

For any input, hits and missed tokens add up to the prompt's tokens: each rung is clamped between the one before and the
prompt length, and the tokens between two rungs are divided completely among reasons.
"""

from collections.abc import Iterable, Sequence

from gateway.core.reasons import Reason, Rung

RUNGS = tuple(Rung)


class Ladder:
    """The rungs of one request, and the missed tokens between them.

    Args:
        prompt_tokens: Length of the prompt, which is the last rung.
        hits: The first rung, ``Rung.CONFIRMED``.
    """

    def __init__(self, prompt_tokens: int, hits: int) -> None:
        self.prompt_tokens = max(prompt_tokens, 0)
        self._at = min(max(hits, 0), self.prompt_tokens)
        self._rungs = [self._at]
        self._missed: dict[Reason, int] = {}

    @property
    def at(self) -> int:
        """Length of the last rung set."""
        return self._at

    @property
    def rungs(self) -> tuple[int, ...]:
        """The rungs set so far, in the order of ``Rung``."""
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
        before = self._at
        rung = min(max(length, before), self.prompt_tokens)
        if rung > before:
            self._missed[reason] = self._missed.get(reason, 0) + rung - before
            self._at = rung
        self._rungs.append(rung)
        return rung - before

    def climb_by(self, length: int, ends: Iterable[tuple[int, Reason]]) -> int:
        """Set the next rung, and divide the tokens since the one before among reasons.

        Args:
            length: Length of the rung.
            ends: End token of each reason, ascending; the last reason extends to the rung.

        Returns:
            Number of tokens between the two rungs.
        """
        before = self._at
        rung = min(max(length, before), self.prompt_tokens)
        pieces: Sequence[tuple[int, Reason]] = tuple(ends) or ((rung, Reason.UNCLASSIFIED),)
        for number, (end, reason) in enumerate(pieces if rung > before else ()):
            limit = rung if number == len(pieces) - 1 else min(max(end, self._at), rung)
            if limit > self._at:
                self._missed[reason] = self._missed.get(reason, 0) + limit - self._at
                self._at = limit
        assert self._at == rung
        self._rungs.append(rung)
        return rung - before
